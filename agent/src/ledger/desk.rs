//! The ledger as all loops share it: one lock, and one signal that something was decided.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::Ledger;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    ledger: Mutex<Ledger>,
    changes: watch::Sender<()>,
}

impl Desk {
    /// The ledger; keep the guard short and never across an await.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the ledger and tells everybody who waits.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Ledger) -> T) -> T {
        let result = change(&mut self.ledger());
        self.changes.send_replace(());
        result
    }

    /// Tells everybody who waits to look again.
    pub(crate) fn nudge(&self) {
        self.changes.send_replace(());
    }

    /// Notices every change from now on.
    pub(crate) fn subscribe(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }
}
