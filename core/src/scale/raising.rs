//! The way in: drains are taken back first, then more is ordered.

use super::census::Census;
use super::order::{Bounds, Order};
use super::plan::Action;
use super::reason::Reason;
use super::removal::Removal;
use super::terms::SizingTerms;
use crate::observation::{DrainPurpose, DrainStage, ReplicaView};

/// Brings `missing` more replicas, at most as many as one plan may change.
pub(super) fn raise(
    terms: &SizingTerms,
    census: &Census<'_>,
    bounds: &Bounds,
    missing: u32,
    actions: &mut Vec<Action>,
    reasons: &mut Vec<Reason>,
) {
    let limit = terms.max_changes_per_tick;
    if missing > limit {
        reasons.push(Reason::ChangesLimited { wanted: missing, limit });
    }
    let mut missing = missing.min(limit);
    let mut order = Order::new(terms, census, bounds);
    for (replica, request_id) in cancellable(census) {
        if missing == 0 {
            return;
        }
        if !order.keep(replica) {
            continue;
        }
        missing -= 1;
        let replica = replica.id.clone();
        actions.push(Action::CancelDrain { replica, request_id: request_id.to_owned() });
    }
    if missing > 0 && census.pools.iter().all(|pool| pool.holds == 0) {
        reasons.push(Reason::Infeasible { nodes_per_replica: terms.gang() });
        return;
    }
    let missing = missing.min(bounds.most_launches);
    order.fill(missing);
    order.finish(missing, actions, reasons);
}

/// Drains that may be taken back: ours, not yet terminating, of replicas that AWS leaves alone;
/// the ones that would go last first, then those that have come least far.
fn cancellable<'a>(census: &Census<'a>) -> Vec<(&'a ReplicaView, &'a str)> {
    let mut drains: Vec<_> = census
        .replicas
        .iter()
        .filter_map(|replica| Some((replica, replica.drain.as_ref()?)))
        .filter(|(replica, drain)| {
            drain.purpose == DrainPurpose::Sizing
                && drain.stage < DrainStage::Terminating
                && !replica.has_notice
                && replica.silence() <= super::SILENCE_LIMIT
                && census.is_counted(replica)
                && !census.is_ending(replica)
        })
        .collect();
    // Who is kept keeps everybody whom the provider can take only after it.
    let order = Removal::new(census, |_| false);
    let lateness = |replica| std::cmp::Reverse(order.lateness(replica));
    drains.sort_by_key(|(replica, drain)| (lateness(replica), drain.stage, &replica.id));
    drains.into_iter().map(|(replica, drain)| (replica, drain.request_id.as_str())).collect()
}
