//! What the leading controller buys: in whose name, and what the provider has not answered or does
//! not show yet. A controller that takes over goes on where the one before it was.

use std::collections::BTreeSet;

use ebbtide_core::observation::InstanceId;
use ebbtide_core::policy::PoolName;
use ebbtide_core::time::UnixMillis;
use serde::{Deserialize, Serialize};

/// The name of the run's store. It was drawn when it was first asked for and never changes; a store
/// that is made anew gets another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreRecord {
    /// The name.
    #[serde(rename = "store")]
    pub name: String,
    /// When it was given, on the server's clock.
    pub named_at: UnixMillis,
}

/// Nodes that were asked for in one call of the provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PurchaseRecord {
    /// Names the call, and no other: the provider answers it once.
    pub purchase: String,
    /// The pool.
    pub pool: PoolName,
    /// What was asked for, in words: under its name nothing else may be.
    pub terms: String,
    /// What came of it; none before the answer.
    #[serde(default, skip_serializing_if = "InstanceIds::is_empty")]
    pub instances: InstanceIds,
    /// When this was written, on the server's clock; set by the store.
    #[serde(default)]
    pub noted_at: UnixMillis,
}

/// The name of the store and the purchases on record, at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PurchaseBook {
    /// The store's clock.
    pub now: UnixMillis,
    /// The store's name, once it was asked for.
    pub store: Option<StoreRecord>,
    /// Purchases, in any order.
    pub purchases: Vec<PurchaseRecord>,
}

/// Ids of instances; as a field they stand side by side, with a comma between two.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct InstanceIds(pub BTreeSet<InstanceId>);

impl InstanceIds {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<String> for InstanceIds {
    fn from(text: String) -> Self {
        let ids = text.split(',').filter(|id| !id.is_empty());
        Self(ids.map(|id| InstanceId(id.to_owned())).collect())
    }
}

impl From<InstanceIds> for String {
    fn from(ids: InstanceIds) -> Self {
        ids.0.into_iter().map(|id| id.0).collect::<Vec<_>>().join(",")
    }
}
