//! What a worker is told of its node and its units, put together at a moment.

use ebbtide_core::notice::NoticeKind;
use ebbtide_queue::command::{HandBackCause, Stage};
use tokio::time::Instant;

use super::unit::{HeldUnit, LeaseKey, Phase};
use super::{WorkerName, Workers};
use crate::gate::ClosedFor;
use crate::shared::Shared;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct View {
    /// Why no work is leased; empty when it is.
    pub(crate) closed_for: Vec<ClosedFor>,
    /// What happens to the node, if something does.
    pub(crate) notice: Option<NodeNotice>,
    /// The worker's units that it may still write to.
    pub(crate) units: Vec<UnitView>,
    /// A drain begins at this very moment, and what it is about is told next.
    pub(crate) is_settling: bool,
    /// The agent has ended.
    pub(crate) is_over: bool,
}

/// What happens to the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeNotice {
    /// The notice behind it, if this node has one.
    pub(crate) kind: Option<NoticeKind>,
    /// In a word: the reason of the drain, `rebalance` or `shutdown`.
    pub(crate) reason: &'static str,
    /// When the node is lost or must be empty; none when that is not known.
    pub(crate) deadline: Option<Instant>,
}

/// One unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnitView {
    pub(crate) key: LeaseKey,
    pub(crate) stage: Stage,
    /// Tokens that the queue is known to have.
    pub(crate) tokens: u32,
    pub(crate) state: UnitState,
}

/// What becomes of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnitState {
    /// Nothing threatens it.
    Working,
    /// The node goes, but the unit may finish until then.
    Keep(Instant),
    /// It must be handed back by then.
    Release(HandBackCause, Instant),
}

/// What `worker` is to know now.
pub(crate) fn view(shared: &Shared, worker: Option<&WorkerName>) -> View {
    let closed_for = shared.gate.closed_for();
    let (notice, drain) = {
        let standing = shared.standing.borrow();
        (standing.notice, standing.drain)
    };
    let is_settling = drain.is_none() && closed_for.contains(&ClosedFor::Drain);
    let notice = match (notice, drain) {
        (notice, Some(drain)) => Some(NodeNotice {
            kind: notice.map(|(kind, _)| kind),
            reason: drain.reason.as_str(),
            deadline: Some(drain.deadline),
        }),
        (Some((kind, deadline)), None) => {
            Some(NodeNotice { kind: Some(kind), reason: kind.as_str(), deadline })
        }
        (None, None) if closed_for.contains(&ClosedFor::Shutdown) => {
            Some(NodeNotice { kind: None, reason: "shutdown", deadline: None })
        }
        (None, None) => None,
    };
    let workers = shared.workers.workers();
    let units = worker.map_or(Vec::new(), |worker| workers.seen_by(worker, drain.is_some()));
    View { closed_for, notice, units, is_settling, is_over: workers.is_closed }
}

impl Workers {
    fn seen_by(&self, worker: &WorkerName, is_draining: bool) -> Vec<UnitView> {
        let own = self.units.iter().filter(|(_, unit)| unit.worker == *worker);
        let seen = own.filter(|(_, unit)| unit.is_delivered).filter_map(|(id, unit)| {
            let state = match unit.phase {
                Phase::Working { keep_until: Some(until) } if is_draining => UnitState::Keep(until),
                Phase::Working { .. } => UnitState::Working,
                Phase::Releasing { why, write_by } => UnitState::Release(why.cause, write_by),
                Phase::HandingBack(_) => return None,
            };
            let HeldUnit { stage, end: tokens, fencing_token, .. } = *unit;
            let key = LeaseKey { unit: id.clone(), fencing_token };
            Some(UnitView { key, stage, tokens, state })
        });
        seen.collect()
    }
}
