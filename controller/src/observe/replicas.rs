//! Replicas from node records, drains, leases and pools.

use std::collections::HashMap;
use std::time::Duration;

use super::{
    BTreeMap, ControlView, InstanceId, NodeName, NodeRecord, NodeView, PoolName, Reads, ReplicaId,
    ReplicaState, ReplicaView, SILENCE_LIMIT, Signal, control,
};
use control::{DrainReason, DrainRecord, DrainState, NodeState};
use ebbtide_core::notice::NoticeKind;
use ebbtide_core::observation::{DrainPurpose, DrainStage, DrainView, InstanceView, PoolView};
use ebbtide_core::scale::Role;

/// Age up to which a heartbeat says nothing: agents send one each second.
const HEARD_OF_LATE: Duration = Duration::from_secs(5);

/// Everything the pools say about instances, for look-ups.
struct Instances<'a> {
    by_id: HashMap<&'a str, (&'a InstanceView, &'a PoolName)>,
    by_node: HashMap<&'a NodeName, &'a InstanceId>,
}

/// One view for each replica of a worker group of which a node has a record.
pub(super) fn gather(
    view: &ControlView,
    reads: &Reads,
    role: Role,
    nodes_per_replica: u16,
) -> Vec<ReplicaView> {
    let instances = Instances::of(reads.pools_of(role));
    let drains: BTreeMap<&ReplicaId, &DrainRecord> =
        view.drains.iter().map(|drain| (&drain.replica, drain)).collect();
    let mut members = BTreeMap::<&ReplicaId, Vec<&NodeRecord>>::new();
    let is_of_group = |record: &&NodeRecord| record.role.sized() == Some(role);
    for record in view.nodes.iter().filter(is_of_group) {
        members.entry(&record.replica).or_default().push(record);
    }
    members
        .into_iter()
        .map(|(id, records)| {
            let drain = drains.get(id).filter(|drain| drain.state != DrainState::Cancelled);
            build(id, &records, drain.copied(), view, reads, &instances, nodes_per_replica)
        })
        .collect()
}

/// Rounded, so that a journal of it is short and reads back as it was.
fn in_hundredths(speed: f64) -> f64 {
    (speed * 100.0).round() / 100.0
}

fn build(
    id: &ReplicaId,
    records: &[&NodeRecord],
    drain: Option<&DrainRecord>,
    view: &ControlView,
    reads: &Reads,
    instances: &Instances<'_>,
    nodes_per_replica: u16,
) -> ReplicaView {
    let nodes: Vec<NodeView> = records
        .iter()
        .map(|record| NodeView {
            name: record.node.clone(),
            instance: instances.of_node(record),
            heartbeat_age: silence(view, record).min(reads.watched_for),
            is_reclaimed: is_reclaimed(record, drain),
            pods_left: record.pods_left,
        })
        .collect();
    let leased = match &reads.status {
        Ok(status) => Signal::fresh(
            records.iter().filter_map(|record| status.leased_by_node.get(&record.node)).sum(),
        ),
        Err(why) => Signal::unknown(why.clone()),
    };
    let purpose = drain.map(|drain| purpose(drain, records));
    let is_reclaimed = purpose == Some(DrainPurpose::Reclaim);
    let is_drain_advised = drain.is_some_and(|drain| drain.reason == DrainReason::Rebalance);
    let state = state_of(records, &nodes, drain, nodes_per_replica);
    ReplicaView {
        id: id.clone(),
        state,
        in_flight: records.iter().map(|record| record.in_flight).sum(),
        leased,
        tokens_per_second: in_hundredths(
            records.iter().map(|record| record.tokens_per_second).sum(),
        ),
        // Only the node that runs the engine of an EP group tells.
        generating: records.iter().filter_map(|record| record.generating).reduce(|a, b| a + b),
        capacity: records.iter().filter_map(|record| record.capacity).reduce(|a, b| a + b),
        instance_type: common_type(records),
        market: records.iter().filter_map(|record| record.market).max(),
        pool: instances.common_pool(&nodes),
        has_notice: is_reclaimed || records.iter().any(|record| has_notice(record)),
        is_advised: is_drain_advised || records.iter().any(|record| is_advised(record)),
        drain: drain.zip(purpose).map(|(drain, purpose)| DrainView {
            request_id: drain.request_id.clone(),
            purpose,
            stage: stage(drain.state),
            lost: drain.lost.0.iter().cloned().collect(),
        }),
        nodes,
    }
}

/// Since when a node is silent: not at all while it was heard of late. A journal of ages that say
/// nothing would be twice as long.
fn silence(view: &ControlView, record: &NodeRecord) -> Duration {
    let age = view.now.since(record.heartbeat);
    if age < HEARD_OF_LATE { Duration::ZERO } else { age }
}

fn common_type(records: &[&NodeRecord]) -> Option<String> {
    let first = records.first()?.instance_type.as_ref()?;
    let is_common = records.iter().all(|record| record.instance_type.as_ref() == Some(first));
    is_common.then(|| first.clone())
}

fn state_of(
    records: &[&NodeRecord],
    nodes: &[NodeView],
    drain: Option<&DrainRecord>,
    nodes_per_replica: u16,
) -> ReplicaState {
    if drain.is_some_and(|drain| drain.state == DrainState::Terminating) {
        return ReplicaState::Terminating;
    }
    if nodes.iter().any(|node| node.heartbeat_age > SILENCE_LIMIT) {
        return ReplicaState::Unknown;
    }
    if records.len() < usize::from(nodes_per_replica) {
        return ReplicaState::Pending;
    }
    let states = records.iter().map(|record| match record.state {
        NodeState::Starting => ReplicaState::Starting,
        NodeState::Loading => ReplicaState::Loading,
        NodeState::Ready => ReplicaState::Ready,
        NodeState::NotReady => ReplicaState::NotReady,
        NodeState::Draining => ReplicaState::Draining,
        NodeState::Drained => ReplicaState::Drained,
    });
    let states: Vec<ReplicaState> = states.collect();
    let is_out = |state: &&ReplicaState| **state >= ReplicaState::Draining;
    match (drain, states.iter().filter(is_out).min()) {
        (Some(_), None) => ReplicaState::Draining,
        (_, Some(_)) if states.iter().all(|state| *state == ReplicaState::Drained) => {
            ReplicaState::Drained
        }
        (_, Some(_)) => ReplicaState::Draining,
        (None, None) => states.into_iter().min().unwrap_or(ReplicaState::Pending),
    }
}

/// Whether AWS has announced the loss of the node, and soon. A rebalance recommendation and a
/// maintenance that is still ahead are advice: such a node is left first, and works until then.
fn has_notice(record: &NodeRecord) -> bool {
    record.notice_kind.is_some() && !is_advised(record)
}

/// Whether EC2 takes the node for itself, by the agent's word or that of the queue of events.
pub(super) fn is_reclaimed(record: &NodeRecord, drain: Option<&DrainRecord>) -> bool {
    let kinds = [NoticeKind::SpotTerminate, NoticeKind::SpotStop, NoticeKind::SpotHibernate];
    let is_told = kinds.iter().any(|kind| record.notice_kind.as_deref() == Some(kind.as_str()));
    let is_lost = |drain: &DrainRecord| {
        let is_named = drain.lost.is_empty() || drain.lost.0.contains(&record.node);
        drain.reason == DrainReason::Notice && is_named
    };
    is_told || drain.is_some_and(is_lost)
}

fn is_advised(record: &NodeRecord) -> bool {
    let advice = [NoticeKind::Rebalance, NoticeKind::Maintenance, NoticeKind::Retirement];
    advice.iter().any(|kind| record.notice_kind.as_deref() == Some(kind.as_str()))
}

/// For whom the replica that consists of these nodes drains. A group that another handler moved is
/// made anew under the same name, without the node that was taken, and takes its drain back.
fn purpose(drain: &DrainRecord, records: &[&NodeRecord]) -> DrainPurpose {
    let is_lost = |record: &&NodeRecord| drain.lost.0.contains(&record.node);
    match drain.reason {
        DrainReason::ScaleIn | DrainReason::Swap => DrainPurpose::Sizing,
        DrainReason::Notice | DrainReason::Lifecycle => DrainPurpose::Reclaim,
        DrainReason::Rebalance | DrainReason::Drill => DrainPurpose::Passing,
        DrainReason::Foreign if !records.iter().any(is_lost) => DrainPurpose::Passing,
        DrainReason::Maintenance | DrainReason::Operator | DrainReason::Foreign => {
            DrainPurpose::Others
        }
    }
}

fn stage(state: DrainState) -> DrainStage {
    match state {
        DrainState::Requested | DrainState::Cancelled => DrainStage::Requested,
        DrainState::Draining => DrainStage::Draining,
        DrainState::Drained => DrainStage::Drained,
        DrainState::Terminating => DrainStage::Terminating,
    }
}

impl<'a> Instances<'a> {
    fn of(pools: &'a [PoolView]) -> Self {
        let mut found = Self { by_id: HashMap::new(), by_node: HashMap::new() };
        for pool in pools {
            let instances = pool.size.known().map_or(&[][..], |size| &size.instances);
            for instance in instances {
                found.by_id.insert(&instance.id.0, (instance, &pool.name));
                if let Some(node) = &instance.node {
                    found.by_node.insert(node, &instance.id);
                }
            }
        }
        found
    }

    /// The instance by the agent's word, when a pool shows it. Else what a pool shows on the node:
    /// where instances are pods, the agent cannot know its own.
    fn of_node(&self, record: &NodeRecord) -> Option<InstanceId> {
        let told = record.instance_id.clone().map(InstanceId);
        let shown = told.clone().filter(|id| self.by_id.contains_key(id.0.as_str()));
        let by_node = || self.by_node.get(&record.node).map(|id| (*id).clone());
        shown.or_else(by_node).or(told)
    }

    /// The pool of all nodes that a pool shows; `None` when there are several or none.
    fn common_pool(&self, nodes: &[NodeView]) -> Option<PoolName> {
        let ids = nodes.iter().filter_map(|node| node.instance.as_ref());
        let mut pools = ids.filter_map(|id| self.by_id.get(id.0.as_str()).map(|(_, pool)| *pool));
        let first = pools.next()?;
        pools.all(|pool| pool == first).then(|| first.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ebbtide_queue::control::{DrainRequest, NodeNames};

    use super::*;

    #[test]
    fn group_that_another_handler_moved_leaves_only_while_the_taken_node_is_in_it() {
        let record = |node: &str| {
            let holder = format!("{node}/boot/agent-1").parse().expect("a holder");
            NodeRecord::new(holder, NodeState::Drained)
        };
        let drain = |reason, lost: &[&str]| {
            let lost = lost.iter().map(|node| node.parse().expect("a node")).collect();
            let request = DrainRequest {
                replica: "ep-0".parse().expect("a replica"),
                request_id: "1".to_owned(),
                generation: 0,
                reason,
                remaining: Duration::from_mins(1),
                lost: NodeNames(lost),
            };
            request.merge(None, Default::default())
        };
        let (kept, taken) = (record("n1"), record("n2"));
        let of = |drain: &DrainRecord, records: &[&NodeRecord]| purpose(drain, records);
        let moved = drain(DrainReason::Foreign, &["n2"]);
        assert_eq!(of(&moved, &[&kept, &taken]), DrainPurpose::Others);
        assert_eq!(of(&moved, &[&kept, &record("n3")]), DrainPurpose::Passing);
        let deleted = drain(DrainReason::Foreign, &[]);
        assert_eq!(of(&deleted, &[&kept, &taken]), DrainPurpose::Passing);
        let asked = drain(DrainReason::Operator, &["n2"]);
        assert_eq!(of(&asked, &[&kept, &record("n3")]), DrainPurpose::Others);
    }
}
