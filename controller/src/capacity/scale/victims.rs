//! Which pods a smaller size takes. Pure.
//!
//! A StatefulSet gives up its highest ordinals, a LeaderWorkerSet its highest group indexes. A
//! Deployment's ReplicaSet takes pods without a node first, then those that have not begun, then
//! those that are not ready, and only among equals the lowest deletion cost
//! (`ActivePodsWithRanks` in `pkg/controller/controller_utils.go` of Kubernetes 1.36).

use std::collections::BTreeSet;

use ebbtide_core::observation::{InstanceId, InstanceView};
use ebbtide_core::policy::ScaledKind;

use super::object::Object;
use crate::capacity::CapacityError;
use crate::capacity::cluster::pod::{SeenPod, in_the_way};

/// The pods with nodes, each with its group and with the rank in which it can go.
pub(super) fn instances(object: &Object, pods: &[SeenPod]) -> Vec<InstanceView> {
    let seen = pods.iter().filter_map(|pod| {
        let instance = pod.instance(has_ended(object, pod))?;
        let group = object.kind == ScaledKind::LeaderWorkerSet;
        let group = pod.group_index.filter(|_| group).map(|index| index.to_string());
        Some(InstanceView { group, removal_rank: rank(object, pod), ..instance })
    });
    seen.collect()
}

/// The first to go have rank 0.
fn rank(object: &Object, pod: &SeenPod) -> u32 {
    match place(object, pod) {
        Some(place) => object.end().saturating_sub(place.saturating_add(1)),
        None => u32::from(pod.is_running) + u32::from(pod.is_running && pod.is_ready),
    }
}

/// The ordinal or index by which a set gives it up.
fn place(object: &Object, pod: &SeenPod) -> Option<u32> {
    match object.kind {
        ScaledKind::StatefulSet => pod.ordinal,
        ScaledKind::LeaderWorkerSet => pod.group_index,
        ScaledKind::Deployment => None,
    }
}

/// Whether it is beyond the size that is asked for: it goes, though nobody has told it yet.
fn has_ended(object: &Object, pod: &SeenPod) -> bool {
    place(object, pod).is_some_and(|place| place >= object.end())
}

/// The named pods that are there and still count.
pub(super) fn named<'a>(
    object: &Object,
    pods: &'a [SeenPod],
    instances: &[InstanceId],
) -> Vec<&'a SeenPod> {
    let names: BTreeSet<&InstanceId> = instances.iter().collect();
    let stays = |pod: &&SeenPod| pod.counts() && !has_ended(object, pod);
    pods.iter().filter(stays).filter(|pod| names.contains(&pod.id())).collect()
}

/// A Deployment that changes its template has pods of two makers, and lowers both in proportion.
///
/// # Errors
/// It has.
pub(super) fn one_owner(pods: &[SeenPod]) -> Result<(), CapacityError> {
    let owners = pods.iter().filter(|pod| !pod.is_going).map(|pod| pod.owner.as_deref());
    let owners: BTreeSet<_> = owners.collect();
    if owners.len() <= 1 {
        return Ok(());
    }
    Err(refused("RollingOut", "it replaces its pods by others, and would lower both".to_owned()))
}

/// By how many replicas the size may be lowered, at most as many as are named: taken are only named
/// pods and those without a node. When these come first, the named ones go at a later call.
///
/// # Errors
/// Something else would be taken first.
pub(super) fn fewer(
    object: &Object,
    pods: &[SeenPod],
    named: &[&SeenPod],
) -> Result<u32, CapacityError> {
    let named: BTreeSet<&str> = named.iter().map(|pod| pod.uid.as_str()).collect();
    let may_go = |pod: &&SeenPod| !pod.counts() || named.contains(pod.uid.as_str());
    let (steps, limit) = match object.kind {
        ScaledKind::Deployment => {
            let mut order: Vec<&SeenPod> = pods.iter().filter(|pod| !pod.is_going).collect();
            order.sort_by_key(|pod| {
                (pod.node.is_some(), pod.is_running, pod.is_ready, pod.deletion_cost)
            });
            let blocked = order.iter().find(|pod| !may_go(pod)).map(|pod| pod.name.clone());
            let taken = order.iter().take_while(|pod| may_go(pod)).count();
            // What was not made yet is taken first.
            let missing = usize::try_from(object.replicas).unwrap_or(usize::MAX);
            let missing = missing.saturating_sub(order.len());
            ((missing + taken, blocked), named.len())
        }
        ScaledKind::StatefulSet | ScaledKind::LeaderWorkerSet => {
            let places: BTreeSet<Option<u32>> = pods
                .iter()
                .filter(|pod| named.contains(pod.uid.as_str()))
                .map(|pod| place(object, pod))
                .collect();
            (from_the_top(object, pods, &named), places.len())
        }
    };
    let (taken, blocked) = steps;
    match u32::try_from(taken.min(limit)).unwrap_or(u32::MAX) {
        0 => {
            let first = blocked.unwrap_or_else(|| "another pod".to_owned());
            Err(refused("OutOfTurn", format!("pod {first} would go first, and was not named")))
        }
        fewer => Ok(fewer),
    }
}

/// How many replicas from the highest on may go, and the pod that ends the row.
fn from_the_top(
    object: &Object,
    pods: &[SeenPod],
    named: &BTreeSet<&str>,
) -> (usize, Option<String>) {
    let mut taken = 0;
    for at in (object.first_ordinal..object.end()).rev() {
        let own = pods.iter().filter(|pod| place(object, pod) == Some(at));
        let own: Vec<&SeenPod> = own.collect();
        if let Some(pod) = in_the_way(&own, named) {
            return (taken, Some(pod.name.clone()));
        }
        taken += 1;
    }
    (taken, None)
}

fn refused(code: &str, message: String) -> CapacityError {
    CapacityError::Refused { what: "lowering the scale".to_owned(), code: code.to_owned(), message }
}

#[cfg(test)]
mod tests;
