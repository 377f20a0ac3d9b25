//! Drains as sizing sees them.

use serde::{Deserialize, Serialize};

use crate::ids::NodeName;

/// A drain that goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainView {
    /// Names the request.
    pub request_id: String,
    /// On whose behalf, as far as sizing is concerned.
    pub purpose: DrainPurpose,
    /// How far it is.
    pub stage: DrainStage,
    /// The nodes that are lost, when others of the replica stay.
    pub lost: Vec<NodeName>,
}

/// On whose behalf a replica drains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DrainPurpose {
    /// Sizing asked for it (`scale_in`, `swap`): sizing terminates it, or cancels.
    Sizing,
    /// AWS takes the node and its group replaces it (`notice`, `lifecycle`).
    Reclaim,
    /// It returns to work by itself (`rebalance`, `drill`, `foreign` without the node that is
    /// taken).
    Passing,
    /// Somebody else wants it empty (`operator`, `maintenance`, `foreign` with that node).
    Others,
}

/// How far a drain is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DrainStage {
    /// Asked for.
    Requested,
    /// Work goes back.
    Draining,
    /// Nothing is held.
    Drained,
    /// The instances are being terminated; no way back.
    Terminating,
}
