//! Requests to drain a replica: how they merge and how their progress is checked.
//!
//! The rules are pure; `queue/lua/control_drain.lua` states them for Redis.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use ebbtide_core::ids::{IdError, NodeName, ReplicaId};
use ebbtide_core::time::UnixMillis;
use serde::{Deserialize, Serialize};

/// Why a replica is drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DrainReason {
    /// An interruption notice from AWS.
    Notice,
    /// A rebalance recommendation.
    Rebalance,
    /// Scheduled maintenance.
    Maintenance,
    /// An Auto Scaling lifecycle action.
    Lifecycle,
    /// The controller needs fewer replicas.
    ScaleIn,
    /// The controller replaces the replica by another.
    Swap,
    /// A person asked for it.
    Operator,
    /// Another handler (Karpenter, a managed node group) empties the node.
    Foreign,
    /// A rehearsal.
    Drill,
}

impl DrainReason {
    /// The word in records, in logs and on the node.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Notice => "notice",
            Self::Rebalance => "rebalance",
            Self::Maintenance => "maintenance",
            Self::Lifecycle => "lifecycle",
            Self::ScaleIn => "scale_in",
            Self::Swap => "swap",
            Self::Operator => "operator",
            Self::Foreign => "foreign",
            Self::Drill => "drill",
        }
    }
}

/// How far a drain is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DrainState {
    /// Asked for; no agent has taken it up.
    Requested,
    /// The gate is closed, work goes back.
    Draining,
    /// Nothing is held, no stream is open.
    Drained,
    /// The controller terminates the instances; nobody but the controller can cancel it any more.
    Terminating,
    /// Taken back; the replica works on.
    Cancelled,
}

impl DrainState {
    /// Whether the replica must not lease work.
    pub fn closes_gate(self) -> bool {
        self != Self::Cancelled
    }
}

/// A request to drain a replica, and its progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainRecord {
    /// The replica.
    pub replica: ReplicaId,
    /// Names the request; a report on another request is refused.
    pub request_id: String,
    /// Generation of the writer's leadership; an older one is refused.
    pub generation: u64,
    /// Why.
    pub reason: DrainReason,
    /// When the replica must be empty, on the server's clock. Only ever becomes earlier.
    pub deadline: UnixMillis,
    /// How far it is.
    pub state: DrainState,
    /// When it was first asked for, on the server's clock.
    pub requested_at: UnixMillis,
    /// The nodes that are lost, as far as known; the other nodes of the replica stay. None: the
    /// replica goes, or comes back, as a whole.
    #[serde(default, skip_serializing_if = "NodeNames::is_empty")]
    pub lost: NodeNames,
}

/// Names of nodes; as a field they stand side by side, with a comma between two.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeNames(pub BTreeSet<NodeName>);

impl NodeNames {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<NodeName> for NodeNames {
    fn from(node: NodeName) -> Self {
        Self([node].into())
    }
}

impl TryFrom<String> for NodeNames {
    type Error = IdError;

    fn try_from(text: String) -> Result<Self, IdError> {
        text.split(',')
            .filter(|name| !name.is_empty())
            .map(str::parse)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

impl From<NodeNames> for String {
    fn from(names: NodeNames) -> Self {
        names.to_string()
    }
}

impl fmt::Display for NodeNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, name) in self.0.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            write!(f, "{comma}{name}")?;
        }
        Ok(())
    }
}

/// Asks for a drain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainRequest {
    /// The replica.
    pub replica: ReplicaId,
    /// Names the request; repeating it changes nothing.
    pub request_id: String,
    /// Generation of the writer's leadership; 0 from agents and operators.
    pub generation: u64,
    /// Why.
    pub reason: DrainReason,
    /// Time left from now until the replica must be empty.
    pub remaining: Duration,
    /// The nodes that are lost; see [`DrainRecord::lost`].
    pub lost: NodeNames,
}

impl DrainRequest {
    /// What holds after this request at `now`, given what stood before.
    ///
    /// A running drain keeps its identity and progress: its deadline only becomes earlier, nodes
    /// that are lost add up, and an AWS notice overrides any other reason. A rehearsal gives way to
    /// any other drain: it ends by itself, and would take with it what joins it.
    pub fn merge(&self, before: Option<&DrainRecord>, now: UnixMillis) -> DrainRecord {
        let deadline = now.plus(self.remaining);
        let is_drill = |reason| reason == DrainReason::Drill;
        let gives_way = |it: &&DrainRecord| is_drill(it.reason) && !is_drill(self.reason);
        match before.filter(|before| !gives_way(before)) {
            Some(running) if running.state != DrainState::Cancelled => DrainRecord {
                deadline: running.deadline.min(deadline),
                reason: if self.reason == DrainReason::Notice {
                    DrainReason::Notice
                } else {
                    running.reason
                },
                generation: running.generation.max(self.generation),
                lost: NodeNames(&running.lost.0 | &self.lost.0),
                ..running.clone()
            },
            Some(cancelled) if cancelled.request_id == self.request_id => cancelled.clone(),
            _ => DrainRecord {
                replica: self.replica.clone(),
                request_id: self.request_id.clone(),
                generation: self.generation,
                reason: self.reason,
                deadline,
                state: DrainState::Requested,
                requested_at: now,
                lost: self.lost.clone(),
            },
        }
    }
}

/// Reports progress of a drain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainProgress {
    /// The replica.
    pub replica: ReplicaId,
    /// The request that is reported on.
    pub request_id: String,
    /// Generation of the writer's leadership; 0 from agents and operators.
    pub generation: u64,
    /// The state that is reached.
    pub state: DrainState,
}

impl DrainProgress {
    /// What holds after this report, or `None` when it is refused: another request, an older
    /// generation, a step backwards, or a cancellation after `terminating` by anybody but the
    /// leader, who alone knows that what was terminated is gone and the nodes stay.
    pub fn merge(&self, before: &DrainRecord) -> Option<DrainRecord> {
        let is_same = before.request_id == self.request_id;
        let is_outdated = self.generation != 0 && self.generation < before.generation;
        let is_forward = match (before.state, self.state) {
            (DrainState::Cancelled, _) => false,
            (DrainState::Terminating, to) => to == DrainState::Cancelled && self.generation != 0,
            (_, DrainState::Cancelled) => true,
            (from, to) => to > from,
        };
        (is_same && !is_outdated && is_forward).then(|| DrainRecord {
            state: self.state,
            generation: before.generation.max(self.generation),
            ..before.clone()
        })
    }
}
