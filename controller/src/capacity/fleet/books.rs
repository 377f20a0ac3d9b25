//! What the run's store knows of fleets: its own name, which tells its instances from those of
//! another run of the same name, and the purchases that EC2 has not answered or does not show yet.
//!
//! A purchase is written down before it is made, and made under its name: a controller that lost
//! the answer, or takes over, asks under the same name again and gets the same nodes. By the time
//! that EC2 shows what it launched, the instances themselves tell.

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::time::Duration;

use ebbtide_core::observation::InstanceId;
use ebbtide_core::policy::PoolName;
use ebbtide_queue::client::QueueError;
use ebbtide_queue::control::{InstanceIds, PurchaseBook, PurchaseRecord};
use uuid::Uuid;

use crate::capacity::{CapacityError, Desk};

/// Longest time until EC2 shows what it launched (its answers are eventually consistent).
const SHOWN_WITHIN: Duration = Duration::from_secs(180);

/// Time in which all agents that live have told a new store of their nodes.
const AGENTS_TELL_WITHIN: Duration = Duration::from_secs(60);

/// The books, once there is a store to keep them in.
#[derive(Default)]
pub(super) struct Books(OnceLock<Desk>);

/// What the store knows, at one moment.
pub(super) struct Page {
    /// The name of the store.
    pub store: String,
    /// Whether agents may not have told it of their nodes yet.
    pub is_new: bool,
    /// Purchases that EC2 may not show yet.
    fresh: Vec<PurchaseRecord>,
    /// Names of those that are over.
    expired: Vec<String>,
}

impl Books {
    /// Where they are kept from now on.
    pub fn open(&self, desk: &Desk) {
        // There is one store for all the life of a controller.
        let _ = self.0.set(desk.clone());
    }

    fn desk(&self) -> Result<&Desk, CapacityError> {
        self.0.get().ok_or_else(|| unavailable("the store of the run is not known yet"))
    }

    /// What the store knows now. It gets its name when it is first asked for.
    pub async fn read(&self) -> Result<Page, CapacityError> {
        let queue = &self.desk()?.queue;
        let mut book = queue.purchases().await.map_err(unread)?;
        if book.store.is_none() {
            let name = Uuid::new_v4().simple().to_string();
            queue.name_store(&name).await.map_err(unread)?;
            book = queue.purchases().await.map_err(unread)?;
        }
        Page::of(book).ok_or_else(|| unavailable("the store of the run has no name"))
    }

    /// The instances that the records of nodes name.
    pub async fn recorded(&self) -> Result<BTreeSet<InstanceId>, CapacityError> {
        let view = self.desk()?.queue.view().await.map_err(unread)?;
        Ok(view.nodes.into_iter().filter_map(|node| node.instance_id).map(InstanceId).collect())
    }

    /// Writes a purchase down, or what came of it; refused once another controller leads.
    pub async fn write(&self, record: PurchaseRecord) -> Result<(), CapacityError> {
        let desk = self.desk()?;
        desk.queue.put_purchase(leading(desk)?, record).await.map_err(unread)
    }

    /// Takes a purchase off.
    pub async fn strike(&self, purchase: &str) -> Result<(), CapacityError> {
        let desk = self.desk()?;
        desk.queue.remove_purchase(leading(desk)?, purchase).await.map_err(unread)
    }
}

impl Page {
    fn of(book: PurchaseBook) -> Option<Self> {
        let store = book.store?;
        let is_fresh = |record: &PurchaseRecord| book.now.since(record.noted_at) < SHOWN_WITHIN;
        let (fresh, old): (Vec<_>, Vec<_>) = book.purchases.into_iter().partition(is_fresh);
        Some(Self {
            is_new: book.now.since(store.named_at) < AGENTS_TELL_WITHIN,
            store: store.name,
            fresh,
            expired: old.into_iter().map(|record| record.purchase).collect(),
        })
    }

    /// Purchases of a pool that EC2 may not show yet.
    pub fn fresh_of(&self, pool: &PoolName) -> impl Iterator<Item = &PurchaseRecord> {
        self.fresh.iter().filter(move |record| record.pool == *pool)
    }

    /// Names of purchases that nobody needs any more.
    pub fn expired(&self) -> &[String] {
        &self.expired
    }
}

/// A purchase of a pool that is about to be made.
pub(super) fn new_purchase(pool: &PoolName, terms: String) -> PurchaseRecord {
    PurchaseRecord {
        purchase: Uuid::new_v4().simple().to_string(),
        pool: pool.clone(),
        terms,
        instances: InstanceIds::default(),
        noted_at: Default::default(),
    }
}

fn leading(desk: &Desk) -> Result<u64, CapacityError> {
    let held = *desk.leadership.borrow();
    held.map(|held| held.generation).ok_or_else(|| unavailable("this controller does not lead"))
}

fn unavailable(problem: &str) -> CapacityError {
    let (what, problem) = ("the book of purchases".to_owned(), problem.to_owned());
    CapacityError::Unavailable { what, problem }
}

fn unread(error: QueueError) -> CapacityError {
    unavailable(&error.to_string())
}
