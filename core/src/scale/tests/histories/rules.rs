//! What every plan keeps to.

use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::ids::ReplicaId;
use crate::observation::{DrainPurpose, DrainStage};
use crate::policy::PoolName;
use crate::scale::tests::world::World;
use crate::scale::{
    Action, CapacityReason, LeaveReason, Reason, SILENCE_LIMIT, ScalePlan, SwapStep,
};

/// What every plan keeps to, on what it saw.
pub(super) fn check(seen: &World, plan: &ScalePlan) -> Result<(), TestCaseError> {
    let terms = &seen.terms;
    if let Some(desired) = plan.desired {
        prop_assert!((terms.min_replicas..=terms.max_replicas).contains(&desired), "{plan}");
    }
    let is_size_unknown = seen.seen.pools.iter().any(|pool| pool.size.known().is_none());
    prop_assert!(!is_size_unknown || plan.is_settled(), "no write from unknown: {plan}");
    let mut replicas = BTreeSet::<&ReplicaId>::new();
    let mut pools = BTreeSet::new();
    for action in &plan.actions {
        match action {
            Action::Raise { pool, .. } => {
                prop_assert!(pools.insert(pool), "one order for a pool: {plan}");
            }
            Action::Discard { .. } => {}
            // A passing drain is taken back just before its replica is asked for good.
            Action::CancelDrain { replica, .. } if asks_to_drain(plan, replica) => {}
            Action::CancelDrain { replica, .. }
            | Action::RequestDrain { replica, .. }
            | Action::Retire { replica, .. }
            | Action::Forget { replica, .. } => {
                prop_assert!(replicas.insert(replica), "one thing for a replica: {plan}");
            }
        }
        check_action(seen, plan, action)?;
    }
    check_sum(seen, plan)
}

fn check_action(seen: &World, plan: &ScalePlan, action: &Action) -> Result<(), TestCaseError> {
    let gang = u32::from(seen.terms.nodes_per_replica);
    let view = |id: &ReplicaId| seen.replicas().iter().find(|view| view.id == *id);
    let size = |name: &PoolName| {
        let pool = seen.seen.pools.iter().find(|pool| pool.name == *name);
        pool.and_then(|pool| pool.size.known()).expect("it was read")
    };
    match action {
        Action::Raise { pool, from, to } => {
            let terms = seen.terms.pools.iter().find(|terms| terms.name == *pool);
            let most = terms.expect("exists").max_nodes.min(size(pool).limit.unwrap_or(u32::MAX));
            prop_assert!(to > from && *to <= most, "within {most}: {plan}");
            prop_assert!(*from == size(pool).desired && to % gang == 0, "gangs are whole: {plan}");
        }
        Action::CancelDrain { replica, request_id } => {
            let view = view(replica).expect("seen");
            let drain = view.drain.as_ref().expect("it drains");
            let passes = drain.purpose == DrainPurpose::Passing && view.is_advised;
            let is_taken_over = passes && asks_to_drain(plan, replica);
            let is_ours = drain.purpose == DrainPurpose::Sizing || is_taken_over;
            prop_assert!(is_ours, "only ours: {plan}");
            prop_assert!(drain.request_id == *request_id, "{plan}");
            prop_assert!(drain.stage < DrainStage::Terminating && !view.has_notice, "{plan}");
        }
        Action::RequestDrain { replica, why } => {
            let view = view(replica).expect("seen");
            let is_taken_over = |action: &Action| match action {
                Action::CancelDrain { replica: taken, .. } => taken == replica,
                _ => false,
            };
            let is_free = view.drain.is_none() || plan.actions.iter().any(is_taken_over);
            prop_assert!(is_free && !view.has_notice, "{plan}");
            // What is left of a group is let go whether it answers or not.
            let is_left = matches!(why, LeaveReason::Partial | LeaveReason::Silent);
            let is_heard = view.silence() <= SILENCE_LIMIT || is_left;
            prop_assert!(is_heard, "it would not hear of it: {plan}");
        }
        Action::Retire { replica, pool, instances, .. } => {
            let view = view(replica).expect("seen");
            let drain = view.drain.as_ref().expect("it drains");
            prop_assert!(drain.purpose == DrainPurpose::Sizing && !view.has_notice, "{plan}");
            prop_assert!(view.leased.known() == Some(&0), "it is busy: {plan}");
            let is_silent = view.silence() > SILENCE_LIMIT;
            prop_assert!(drain.stage >= DrainStage::Drained || is_silent, "{plan}");
            let own = view.instances();
            for id in instances {
                let counts = size(pool).counted().any(|instance| instance.id == *id);
                prop_assert!(own.contains(id) && counts, "{plan}");
            }
        }
        Action::Discard { pool, instances } => {
            for id in instances {
                let is_anybodys = seen.replicas().iter().any(|view| view.instances().contains(id));
                let counts = size(pool).counted().any(|instance| instance.id == *id);
                prop_assert!(!is_anybodys && counts, "{plan}");
            }
            let left =
                size(pool).desired.saturating_sub(u32::try_from(instances.len()).expect("few"));
            prop_assert!(left >= size(pool).floor, "{plan}");
        }
        Action::Forget { replica, nodes, .. } => {
            let view = view(replica).expect("seen");
            prop_assert!(view.leased.known() == Some(&0), "it holds work: {plan}");
            for node in view.nodes.iter().filter(|node| nodes.contains(&node.name)) {
                let id = node.instance.as_ref().expect("it told");
                prop_assert!(seen.seen.gone.contains(id), "it may be there: {plan}");
            }
        }
    }
    Ok(())
}

fn asks_to_drain(plan: &ScalePlan, replica: &ReplicaId) -> bool {
    plan.actions.iter().any(|action| action.asks_to_drain(replica))
}

/// As many as there may be, and not more at a time than was allowed.
fn check_sum(seen: &World, plan: &ScalePlan) -> Result<(), TestCaseError> {
    let gang = u32::from(seen.terms.nodes_per_replica);
    let added = plan.actions.iter().map(|action| match action {
        Action::Raise { from, to, .. } => to / gang - from / gang,
        Action::CancelDrain { replica, .. } if !asks_to_drain(plan, replica) => 1,
        _ => 0,
    });
    let added = added.sum::<u32>();
    prop_assert!(added <= seen.terms.max_changes_per_tick, "{plan}");
    let is_swap = |reason: &Reason| {
        let begins = |step| [SwapStep::Launch, SwapStep::Probe].contains(&step);
        matches!(reason, Reason::Capacity(CapacityReason::Swap { step, .. }) if begins(*step))
    };
    let mut most = seen.terms.max_replicas + u32::from(plan.reasons.iter().any(is_swap));
    // What a pool that ends has runs beside what replaces it.
    for reason in &plan.reasons {
        if let Reason::Capacity(CapacityReason::ReservationEnds { pool, .. }) = reason {
            let pool = seen.seen.pools.iter().find(|view| view.name == *pool).expect("exists");
            most += pool.size.known().map_or(0, |size| size.desired.max(size.counted_nodes(1)));
        }
    }
    let running = plan.running.unwrap_or(0);
    prop_assert!(added == 0 || running + added <= most, "{running} + {added} > {most}: {plan}");
    Ok(())
}
