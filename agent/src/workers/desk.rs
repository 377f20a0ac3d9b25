//! The workers' state as all loops share it: one lock, and one signal that something has changed.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::Workers;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct WorkerDesk {
    workers: Mutex<Workers>,
    changes: watch::Sender<()>,
}

impl WorkerDesk {
    /// The state; keep the guard short and never across an await. Of two locks the ledger's comes
    /// first.
    pub(crate) fn workers(&self) -> MutexGuard<'_, Workers> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and tells everybody who waits.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Workers) -> T) -> T {
        let result = change(&mut self.workers());
        self.nudge();
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
