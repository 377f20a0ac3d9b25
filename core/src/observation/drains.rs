//! Drains as sizing sees them.

use serde::{Deserialize, Serialize};

use super::ReplicaView;
use crate::ids::NodeName;
use crate::scale::Role;

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

impl ReplicaView {
    /// Whether its agents have said that its drain is done.
    pub fn is_said_drained(&self) -> bool {
        self.drain.as_ref().is_some_and(|drain| drain.stage >= DrainStage::Drained)
    }

    /// Whether nothing is known to be at work there; what is unknown may be. Leases tell of
    /// rollouts. Services may work without any: of these only their agents tell, by the drain and
    /// by the pods that have left.
    pub fn is_known_idle(&self, role: Role) -> bool {
        let is_left = self.nodes.iter().all(|node| node.pods_left.unwrap_or(0) == 0);
        let serves_nobody = role.is_rollout() || (self.is_said_drained() && is_left);
        self.leased.known() == Some(&0) && serves_nobody
    }
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
