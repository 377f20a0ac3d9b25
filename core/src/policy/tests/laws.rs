//! Properties: any text is answered, and an accepted policy keeps its rules.

use proptest::prelude::*;

use super::*;
use crate::policy::{FleetSpec, Market};
use crate::work::OnDeadSlot;

/// What every part of the program may take for granted.
fn assert_invariants(spec: &FleetSpec) {
    let (queue, drain, rollout) = (&spec.queue, &spec.drain, &spec.rollout);
    assert!(queue.renew_every <= queue.lease / 2 && !queue.renew_every.is_zero());
    assert!(queue.progress_limit >= queue.lease);
    assert!(drain.grace <= drain.reserve && drain.reserve < drain.request_deadline);
    assert!(drain.reserve < drain.asg_deadline);
    assert!(rollout.min_replicas <= rollout.max_replicas);
    assert!(rollout.buffer_target_steps <= rollout.buffer_max_steps);
    assert!(spec.buffer_max_groups() <= spec.admission_ceiling_groups());
    assert!(!rollout.tick.is_zero());
    if let OnDeadSlot::Shrink { min_samples } = queue.on_dead_slot {
        assert!((1..=spec.trainer.group_size).contains(&min_samples));
    }
    assert_eq!(spec.has_reward_stage(), spec.reward.is_some());
    assert_eq!(spec.rollout_pools().count(), rollout.pools.len());
    let held: u32 = spec.rollout_pools().map(|pool| spec.replicas_in(pool)).sum();
    assert!(rollout.max_replicas <= held);
    assert!(spec.rollout_pools().all(|pool| spec.replicas_in(pool) > 0));
    for name in spec.trainer.pool.iter().chain(&spec.buffer.pool) {
        assert_eq!(spec.pool(name).map(|pool| pool.market), Some(Market::OnDemand));
    }
}

/// Lines that keep, bend or break the rules, as an operator's edits do.
fn any_edit() -> impl Strategy<Value = String> {
    let seconds = || (0..40_u32).prop_map(|s| format!("{s}s"));
    prop_oneof![
        (seconds(), seconds())
            .prop_map(|(a, b)| format!("  queue: {{ lease: {a}, renewEvery: {b} }}")),
        (0..12_u32).prop_map(|n| format!("  queue: {{ onDeadSlot: shrink, minSamples: {n} }}")),
        (seconds(), seconds())
            .prop_map(|(a, b)| format!("  drain: {{ reserve: {a}, grace: {b} }}")),
        (0..4_u32).prop_map(|lag| format!("  staleness: {{ maxLag: {lag} }}")),
        (0..200_u32).prop_map(|n| format!("  budget: {{ dollarsPerHour: {n} }}")),
        Just("  mode: act".to_owned()),
        "[ a-z:{}\\[\\]&*!#'\"\t-]{0,20}".prop_map(|text| format!("  {text}")),
    ]
}

/// The rollout section with sizes around what the pool holds.
fn any_rollout() -> impl Strategy<Value = String> {
    (1..4_u32, 0..4_u32, 1..5_u32, 0..3_u32).prop_map(|(nodes, min, max, steps)| {
        format!(
            "nodesPerReplica: {nodes}\n    minReplicas: {min}\n    maxReplicas: {max}\n    \
             bufferTargetSteps: {steps}.5"
        )
    })
}

proptest! {
    #[test]
    fn any_text_is_answered(text in any::<String>()) {
        let _ = parse(&text);
    }

    #[test]
    fn any_text_of_yaml_signs_is_answered(text in "[a-c0-9 \n\t:,{}\\[\\]&*!|>'\"#%@?-]{0,200}") {
        let _ = parse(&text);
    }

    #[test]
    fn a_policy_cut_anywhere_is_answered(end in 0..SHORTEST.len()) {
        let _ = parse(&SHORTEST[..end]);
    }

    #[test]
    fn a_shipped_policy_with_one_character_changed_keeps_its_rules_or_is_refused(
        place in any::<prop::sample::Index>(),
        sign in any::<char>(),
    ) {
        let mut signs: Vec<char> = shipped::GRPO_ASYNC.chars().collect();
        *place.get_mut(&mut signs) = sign;
        if let Ok(policy) = parse(&signs.into_iter().collect::<String>()) {
            assert_invariants(&policy);
        }
    }

    #[test]
    fn an_accepted_policy_keeps_its_rules(
        edits in prop::collection::vec(any_edit(), 0..4),
        rollout in any_rollout(),
    ) {
        let text = shortest_with(&edits.join("\n"), &[("maxReplicas: 6", &rollout)]);
        if let Ok(policy) = parse(&text) {
            assert_invariants(&policy);
        }
    }

    #[test]
    fn errors_stand_within_the_text_and_in_its_order(
        edits in prop::collection::vec(any_edit(), 1..6),
    ) {
        let text = shortest_with(&edits.join("\n"), &[]);
        if let Err(errors) = parse(&text) {
            prop_assert!(!errors.errors().is_empty());
            let places: Vec<_> = errors.errors().iter().map(|error| error.at).collect();
            prop_assert!(places.is_sorted());
            let lines = text.split(['\n', '\r']).count();
            prop_assert!(places.iter().all(|at| (1..=lines + 1).contains(&(at.line as usize))));
        }
    }
}

#[test]
fn a_full_size_text_of_mistakes_is_answered_soon() {
    let mut text = String::from("spec:\n");
    let mut index = 0;
    while text.len() < 250 * 1024 {
        index += 1;
        text.push_str(&format!("  k{index}:\n"));
    }
    assert!(complaints(&text).len() > index);
}
