//! The laws of the queue, each told once and checked in every world.

use std::collections::HashMap;
use std::time::Duration;

use ebbtide_core::ids::{PolicyVersion, UnitId};
use ebbtide_core::work::{OnDeadSlot, ResumePolicy};
use ebbtide_harness::{EVENT_LIMIT, until};
use ebbtide_queue::client::LeaseTerms;
use ebbtide_queue::command::{
    HandBackCause, ProgressLimits, Renewal, Stage, Then, UnitWrite, Waiting,
};
use ebbtide_queue::reply::{Grant, WriteReply};

use super::worlds::*;

laws![
    2;
    group_is_sealed_once_with_all_its_samples,
    enqueue_is_idempotent,
    repeated_complete_is_answered_already_done,
    zombie_is_fenced_and_changes_nothing,
    expired_lease_is_requeued_once_and_is_no_attempt,
    handed_back_unit_keeps_its_tokens_and_comes_first,
    late_hand_back_vouches_for_no_token_that_is_not_stored,
    hand_back_never_counts_as_an_attempt,
    faults_use_up_attempts_and_fail_the_group,
    dead_slot_lets_a_group_shrink,
    append_at_a_wrong_offset_changes_nothing,
    repeated_append_is_ok,
    versions_never_fall_along_a_response,
    version_is_never_lowered,
    stale_worker_gets_no_fresh_unit,
    unit_with_newer_tokens_is_skipped_and_others_see_it,
    restart_if_newer_drops_old_tokens,
    too_old_partial_expires,
    mask_old_goes_on_and_masks,
    group_too_old_in_the_buffer_never_reaches_the_trainer,
    unacknowledged_groups_come_again_to_their_consumer_only,
    lost_consumers_groups_are_taken_over,
    renew_names_the_lost_units,
    stuck_unit_goes_to_another_and_counts_as_an_attempt,
    restarted_agent_gets_its_units_back_into_the_queue,
    partial_at_its_limit_completes_without_new_tokens,
    response_is_never_longer_than_its_limit,
    expired_group_fails_when_it_is_met,
    unit_whose_group_fails_in_the_same_call_is_not_granted,
    no_shard_is_asked_first_by_everybody,
    own_groups_of_every_shard_come_before_new_ones,
    tokens_are_progress_while_the_environment_is_waited_for,
    many_workers_at_once_get_every_unit_once,
];

async fn group_is_sealed_once_with_all_its_samples(world: World) {
    let a = holder("a");
    world.enqueue(&group("g", 3)).await;
    let grants = world.lease(&a, 10, LONG).await;
    assert_eq!(grants.len(), 3);
    for grant in &grants {
        assert!(world.take("t").await.is_empty());
        assert_eq!(world.complete(&a, grant, vec![tokens(0, 4, 0)]).await, WriteReply::Ok);
    }
    let taken = world.take("t").await;
    assert_eq!(taken.len(), 1);
    assert_eq!(taken[0].samples.len(), 3);
    assert!(taken[0].samples.iter().all(|sample| is_whole(sample) && sample.len() == 4));
    assert_eq!(world.queue.acknowledge("t", &[group_id("g")]).await.unwrap(), 1);
    assert!(world.take("t").await.is_empty());
    assert_eq!(world.queue.acknowledge("t", &[group_id("g")]).await.unwrap(), 0);
    let status = world.status().await;
    assert_eq!((status.groups_sealed, status.completed), (1, 3));
    assert_eq!(status.tokens.accepted, 12);
    world.assert_conserved().await;
}

async fn enqueue_is_idempotent(world: World) {
    assert_eq!(world.enqueue(&group("g", 2)).await, WriteReply::Ok);
    assert_eq!(world.enqueue(&group("g", 2)).await, WriteReply::AlreadyDone);
    world.queue.fail_group(&group_id("g"), "no longer wanted").await.unwrap();
    assert_eq!(world.enqueue(&group("g", 2)).await, WriteReply::AlreadyDone);
    assert_eq!(world.status().await.enqueued, 2);
    world.assert_conserved().await;
}

async fn repeated_complete_is_answered_already_done(world: World) {
    let a = holder("a");
    world.enqueue(&group("g", 1)).await;
    let grants = world.lease(&a, 1, LONG).await;
    let tail = vec![tokens(0, 2, 0)];
    assert_eq!(world.complete(&a, &grants[0], tail.clone()).await, WriteReply::Ok);
    assert_eq!(world.complete(&a, &grants[0], tail.clone()).await, WriteReply::AlreadyDone);
    world.take("t").await;
    world.queue.acknowledge("t", &[group_id("g")]).await.unwrap();
    assert_eq!(world.complete(&a, &grants[0], tail).await, WriteReply::AlreadyDone);
    assert_eq!(world.status().await.groups_sealed, 1);
}

/// Case 25 of rollouts.
async fn zombie_is_fenced_and_changes_nothing(world: World) {
    let (a, b) = (holder("a"), holder("b"));
    world.enqueue(&group("g", 1)).await;
    let old = world.lease(&a, 1, NONE).await;
    let new = world.lease(&b, 1, LONG).await;
    assert!(new[0].fencing_token > old[0].fencing_token);
    let late = vec![tokens(0, 9, 0)];
    assert_eq!(world.complete(&a, &old[0], late.clone()).await, WriteReply::Fenced);
    assert_eq!(world.hand_back(&a, &old[0], late.clone()).await, WriteReply::Fenced);
    // The right token in the wrong hands is refused as well.
    assert_eq!(world.complete(&a, &new[0], late).await, WriteReply::Fenced);
    assert_eq!(world.complete(&b, &new[0], vec![tokens(0, 2, 0)]).await, WriteReply::Ok);
    assert_eq!(world.take("t").await[0].samples[0].len(), 2);
    world.assert_conserved().await;
}

async fn expired_lease_is_requeued_once_and_is_no_attempt(world: World) {
    world.enqueue(&group("g", 1)).await;
    let grants = world.lease(&holder("a"), 1, NONE).await;
    assert_eq!(world.queue.reap(100).await.unwrap(), 1);
    assert_eq!(world.queue.reap(100).await.unwrap(), 0);
    let unit = &world.queue.scan().await.unwrap()[0];
    assert_eq!((unit.attempts, unit.infra_attempts, unit.hand_backs), (0, 1, 0));
    assert_eq!(unit.unit, grants[0].unit);
    world.assert_conserved().await;
}

async fn handed_back_unit_keeps_its_tokens_and_comes_first(world: World) {
    let (a, b) = (holder("a"), holder("b"));
    world.enqueue(&group("g", 1)).await;
    let grants = world.lease(&a, 1, LONG).await;
    world.write_as(&a, &grants[0], vec![tokens(0, 5, 0)], Then::Continue).await;
    world.enqueue(&group("h", 2)).await;
    assert_eq!(world.hand_back(&a, &grants[0], vec![tokens(5, 3, 0)]).await, WriteReply::Ok);
    assert_eq!(
        world.hand_back(&a, &grants[0], vec![tokens(5, 3, 0)]).await,
        WriteReply::AlreadyDone
    );
    let resumed: Vec<_> = world.lease(&b, 3, LONG).await;
    let resumed = resumed.iter().find(|grant| grant.unit == unit("g.0000")).unwrap();
    let ids: Vec<i32> = resumed.partial.iter().flat_map(|c| c.token_ids.clone()).collect();
    assert_eq!(ids, (0..8).collect::<Vec<i32>>());
    world.complete(&b, resumed, vec![tokens(8, 2, 0)]).await;
    assert!(is_whole(&world.take("t").await[0].samples[0]));
    let status = world.status().await;
    assert_eq!(status.tokens.preserved, 8);
    assert_eq!(status.hand_backs["notice"], 1);
    world.assert_conserved().await;
}

async fn late_hand_back_vouches_for_no_token_that_is_not_stored(world: World) {
    let a = holder("a");
    world.enqueue(&group("g", 1)).await;
    let grants = world.lease(&a, 1, LONG).await;
    world.write_as(&a, &grants[0], vec![tokens(0, 5, 0)], Then::Continue).await;
    world.queue.requeue(&grants[0].unit).await.unwrap();
    for then in [Then::HandBack(HandBackCause::Notice.into()), Then::Fault("late".to_owned())] {
        let write = async |tail| world.write_as(&a, &grants[0], tail, then.clone()).await;
        assert_eq!(write(vec![tokens(5, 3, 0)]).await, WriteReply::Fenced, "{then:?}");
        assert_eq!(write(vec![tokens(0, 5, 0)]).await, WriteReply::AlreadyDone, "{then:?}");
        assert_eq!(write(Vec::new()).await, WriteReply::AlreadyDone, "{then:?}");
    }
    let status = world.status().await;
    assert_eq!((status.tokens.generated, status.hand_backs["operator"]), (5, 1));
    world.assert_conserved().await;
}

async fn hand_back_never_counts_as_an_attempt(world: World) {
    world.enqueue(&group("g", 1)).await;
    for round in 0..10 {
        let a = holder("a");
        let grants = world.lease(&a, 1, LONG).await;
        assert_eq!(grants.len(), 1, "round {round}");
        world.hand_back(&a, &grants[0], Vec::new()).await;
    }
    assert_eq!(world.queue.scan().await.unwrap()[0].attempts, 0);
    world.assert_conserved().await;
}

async fn faults_use_up_attempts_and_fail_the_group(world: World) {
    let a = holder("a");
    world.enqueue(&group("g", 2)).await;
    for _ in 0..3 {
        let grants = world.lease(&a, 2, LONG).await;
        let poison = grants.iter().find(|grant| grant.unit.slot == 0).unwrap();
        world.write_as(&a, poison, vec![], Then::Fault("engine died".into())).await;
        for other in grants.iter().filter(|grant| grant.unit.slot == 1) {
            world.hand_back(&a, other, vec![]).await;
        }
    }
    let status = world.status().await;
    assert_eq!((status.dead, status.groups_failed), (1, 1));
    assert_eq!(status.enqueued, status.dead + status.cancelled + status.completed);
    let shard = world.queue.shard_of(&group_id("g"));
    let failures = world.queue.failures(shard, "", 10).await.unwrap();
    assert_eq!(failures[0].reason, "dead");
    assert_eq!((failures[0].dead, failures[0].cancelled), (1, 1));
    world.assert_conserved().await;
}

async fn dead_slot_lets_a_group_shrink(world: World) {
    let a = holder("a");
    let mut shrinking = group("g", 3);
    shrinking.on_dead_slot = OnDeadSlot::Shrink { min_samples: 2 };
    shrinking.max_attempts = 1;
    world.enqueue(&shrinking).await;
    let grants = world.lease(&a, 3, LONG).await;
    world.write_as(&a, &grants[0], vec![], Then::Fault("poison".into())).await;
    world.complete(&a, &grants[1], vec![tokens(0, 1, 0)]).await;
    world.complete(&a, &grants[2], vec![tokens(0, 1, 0)]).await;
    let taken = world.take("t").await;
    assert_eq!(taken[0].samples.len(), 2);
    assert_eq!(taken[0].missing_slots, vec![grants[0].unit.slot]);
    world.assert_conserved().await;
}

async fn append_at_a_wrong_offset_changes_nothing(world: World) {
    let a = holder("a");
    world.enqueue(&group("g", 1)).await;
    let grants = world.lease(&a, 1, LONG).await;
    world.write_as(&a, &grants[0], vec![tokens(0, 4, 0)], Then::Continue).await;
    for tail in [tokens(5, 1, 0), tokens(3, 1, 0), tokens(2, 9, 0)] {
        let reply = world.write_as(&a, &grants[0], vec![tail], Then::Continue).await;
        assert_eq!(reply, WriteReply::Offset(4));
    }
    let reply = world.complete(&a, &grants[0], vec![tokens(9, 1, 0)]).await;
    assert_eq!(reply, WriteReply::Offset(4), "it must not complete with a gap");
    assert_eq!(world.status().await.tokens.generated, 4);
}

async fn repeated_append_is_ok(world: World) {
    let a = holder("a");
    world.enqueue(&group("g", 1)).await;
    let grants = world.lease(&a, 1, LONG).await;
    let (first, second) = (tokens(0, 4, 0), tokens(4, 4, 0));
    for tail in [vec![first.clone()], vec![first.clone()], vec![first, second]] {
        let reply = world.write_as(&a, &grants[0], tail, Then::Continue).await;
        assert_eq!(reply, WriteReply::Ok);
    }
    assert_eq!(world.status().await.tokens.generated, 8);
    world.assert_conserved().await;
}

async fn versions_never_fall_along_a_response(world: World) {
    let a = holder("a");
    world.enqueue(&group("g", 1)).await;
    let grants = world.lease(&a, 1, LONG).await;
    world.write_as(&a, &grants[0], vec![tokens(0, 1, 3)], Then::Continue).await;
    let reply = world.write_as(&a, &grants[0], vec![tokens(1, 1, 2)], Then::Continue).await;
    assert_eq!(reply, WriteReply::BadVersion);
}

async fn version_is_never_lowered(world: World) {
    assert_eq!(world.set_version(7).await, 7);
    assert_eq!(world.set_version(3).await, 7);
    assert_eq!(world.status().await.version.0, 7);
    assert_eq!(world.queue.view().await.unwrap().version.version.0, 7);
}

async fn stale_worker_gets_no_fresh_unit(world: World) {
    let a = holder("a");
    world.set_version(5).await;
    world.enqueue(&group("g", 1)).await;
    assert!(world.lease_at(&a, 1, LONG, 2).await.is_empty());
    assert_eq!(world.lease_at(&a, 1, LONG, 3).await.len(), 1, "the bound is inclusive");
}

async fn unit_with_newer_tokens_is_skipped_and_others_see_it(world: World) {
    let (a, b) = (holder("a"), holder("b"));
    world.enqueue(&group("g", 1)).await;
    let grants = world.lease_at(&a, 1, LONG, 4).await;
    world.hand_back(&a, &grants[0], vec![tokens(0, 3, 4)]).await;
    world.enqueue(&group("h", 1)).await;
    let lower = world.lease_at(&b, 2, LONG, 3).await;
    assert_eq!(lower.len(), 1, "the head must not block");
    assert_eq!(lower[0].unit, unit("h.0000"));
    assert_eq!(world.lease_at(&b, 2, LONG, 4).await[0].unit, unit("g.0000"));
}

/// Case 1 of rollouts.
async fn restart_if_newer_drops_old_tokens(world: World) {
    let a = holder("a");
    let mut strict = group("g", 1);
    strict.resume_policy = ResumePolicy::RestartIfNewer;
    world.enqueue(&strict).await;
    let grants = world.lease_at(&a, 1, LONG, 0).await;
    world.hand_back(&a, &grants[0], vec![tokens(0, 6, 0)]).await;
    world.set_version(1).await;
    assert!(world.lease_at(&a, 1, LONG, 0).await.is_empty(), "only the current version will do");
    let fresh = world.lease_at(&a, 1, LONG, 1).await;
    assert!(fresh[0].partial.is_empty());
    let status = world.status().await;
    assert_eq!(status.tokens.wasted["restarted"], 6);
    assert_eq!(status.tokens.preserved, 0);
    world.assert_conserved().await;
}

async fn too_old_partial_expires(world: World) {
    let a = holder("a");
    world.enqueue(&group("g", 2)).await;
    let grants = world.lease_at(&a, 2, LONG, 0).await;
    world.hand_back(&a, &grants[0], vec![tokens(0, 6, 0)]).await;
    world.set_version(3).await;
    assert!(world.lease_at(&a, 2, LONG, 3).await.is_empty());
    let status = world.status().await;
    assert_eq!((status.expired, status.cancelled, status.groups_failed), (1, 1, 1));
    assert_eq!(status.tokens.wasted["stale"], 6);
    world.assert_conserved().await;
}

async fn mask_old_goes_on_and_masks(world: World) {
    let a = holder("a");
    let mut masked = group("g", 1);
    masked.resume_policy = ResumePolicy::MaskOld;
    world.enqueue(&masked).await;
    let grants = world.lease_at(&a, 1, LONG, 0).await;
    world.hand_back(&a, &grants[0], vec![tokens(0, 2, 0)]).await;
    world.set_version(9).await;
    let grants = world.lease_at(&a, 1, LONG, 9).await;
    world.complete(&a, &grants[0], vec![tokens(2, 1, 9)]).await;
    let taken = world.take("t").await;
    let mask = taken[0].samples[0].loss_mask(
        taken[0].group.resume_policy,
        taken[0].taken_at_version,
        taken[0].group.max_lag,
    );
    assert_eq!(mask, vec![false, false, true]);
}

async fn group_too_old_in_the_buffer_never_reaches_the_trainer(world: World) {
    let a = holder("a");
    world.enqueue(&group("g", 1)).await;
    let grants = world.lease_at(&a, 1, LONG, 0).await;
    world.complete(&a, &grants[0], vec![tokens(0, 5, 0)]).await;
    assert_eq!(world.status().await.tokens.accepted, 5);
    world.set_version(3).await;
    assert!(world.take("t").await.is_empty());
    let status = world.status().await;
    assert_eq!((status.completed, status.groups_failed), (1, 1));
    assert_eq!(status.tokens.accepted, 0);
    assert_eq!(status.tokens.wasted["stale"], 5);
    world.assert_conserved().await;
}

async fn unacknowledged_groups_come_again_to_their_consumer_only(world: World) {
    let a = holder("a");
    world.enqueue(&group("g", 1)).await;
    let grants = world.lease(&a, 1, LONG).await;
    world.complete(&a, &grants[0], vec![tokens(0, 1, 0)]).await;
    assert!(!world.take("t").await[0].is_redelivered);
    assert!(world.take("u").await.is_empty());
    assert!(world.take("t").await[0].is_redelivered);
    let status = world.status().await;
    assert_eq!((status.sealed_waiting, status.sealed_taken), (0, 1));
}

async fn lost_consumers_groups_are_taken_over(world: World) {
    let a = holder("a");
    world.enqueue(&group("g", 1)).await;
    let grants = world.lease(&a, 1, LONG).await;
    world.complete(&a, &grants[0], vec![tokens(0, 1, 0)]).await;
    world.take("lost").await;
    assert_eq!(world.queue.take_over("lost", "u").await.unwrap(), 1);
    assert!(world.take("lost").await.is_empty());
    assert_eq!(world.take("u").await.len(), 1);
    assert_eq!(world.queue.acknowledge("u", &[group_id("g")]).await.unwrap(), 1);
}

/// Case 30 of rollouts.
async fn renew_names_the_lost_units(world: World) {
    let (a, b) = (holder("a"), holder("b"));
    world.enqueue(&group("g", 1)).await;
    let grants = world.lease(&a, 1, NONE).await;
    assert!(world.renew(&a, &grants[0], ProgressLimits::default()).await, "not reaped yet");
    let grants_again = world.lease(&b, 1, LONG).await;
    assert!(grants_again.is_empty(), "the renewed lease holds");
    world.hand_back(&a, &grants[0], vec![]).await;
    assert!(!world.renew(&a, &grants[0], ProgressLimits::default()).await);
}

async fn stuck_unit_goes_to_another_and_counts_as_an_attempt(world: World) {
    let a = holder("a");
    world.enqueue(&group("g", 1)).await;
    let grants = world.lease(&a, 1, LONG).await;
    let limits = ProgressLimits { idle: Duration::ZERO, ..ProgressLimits::default() };
    tokio::time::sleep(Duration::from_millis(3)).await;
    assert!(!world.renew(&a, &grants[0], limits).await);
    let again = world.lease(&holder("b"), 1, LONG).await;
    assert_eq!(again[0].attempts, 1);
}

async fn restarted_agent_gets_its_units_back_into_the_queue(world: World) {
    let before = "n/boot-1/agent-1".parse().unwrap();
    let worker = "n/boot-1/worker-1".parse().unwrap();
    let other_node = "m/boot-1/agent-1".parse().unwrap();
    world.enqueue(&group("g", 3)).await;
    for holder in [&before, &worker, &other_node] {
        assert_eq!(world.lease(holder, 1, LONG).await.len(), 1);
    }
    let after = "n/boot-1/agent-2".parse().unwrap();
    assert_eq!(world.queue.reclaim(&after).await.unwrap(), 1, "only the earlier agent's");
    assert_eq!(world.queue.reclaim(&after).await.unwrap(), 0);
    let rebooted = "n/boot-2/agent-3".parse().unwrap();
    assert_eq!(world.queue.reclaim(&rebooted).await.unwrap(), 1, "everybody of the old boot");
    assert_eq!(world.status().await.hand_backs[HandBackCause::AgentRestart.as_str()], 2);
    world.assert_conserved().await;
}

async fn partial_at_its_limit_completes_without_new_tokens(world: World) {
    let (a, b) = (holder("a"), holder("b"));
    let mut short = group("g", 1);
    short.sampling.max_tokens = 4;
    world.enqueue(&short).await;
    let grants = world.lease(&a, 1, LONG).await;
    world.hand_back(&a, &grants[0], vec![tokens(0, 4, 0)]).await;
    let grants = world.lease(&b, 1, LONG).await;
    assert_eq!(world.complete(&b, &grants[0], vec![]).await, WriteReply::Ok);
    assert_eq!(world.take("t").await[0].samples[0].len(), 4);
    assert_eq!(world.status().await.tokens.preserved, 4);
}

async fn response_is_never_longer_than_its_limit(world: World) {
    let a = holder("a");
    let mut short = group("g", 1);
    short.sampling.max_tokens = 4;
    world.enqueue(&short).await;
    let grants = world.lease(&a, 1, LONG).await;
    let reply = world.complete(&a, &grants[0], vec![tokens(0, 5, 0)]).await;
    assert_eq!(reply, WriteReply::Offset(0));
}

async fn expired_group_fails_when_it_is_met(world: World) {
    let mut short_lived = group("g", 2);
    short_lived.expires_at = Some(ebbtide_core::time::UnixMillis(1));
    world.enqueue(&short_lived).await;
    assert!(world.lease(&holder("a"), 2, LONG).await.is_empty());
    let status = world.status().await;
    assert_eq!((status.expired, status.cancelled), (1, 1));
    world.assert_conserved().await;
}

async fn unit_whose_group_fails_in_the_same_call_is_not_granted(world: World) {
    let a = holder("a");
    let mut strict = group("g", 2);
    strict.max_lag = 1;
    world.enqueue(&strict).await;
    let grants = world.lease_at(&a, 2, LONG, 5).await;
    world.hand_back(&a, &grants[0], vec![tokens(0, 3, 5)]).await;
    world.hand_back(&a, &grants[1], vec![tokens(0, 3, 4)]).await;
    world.set_version(6).await;
    // The first may go on, the second is too old, and with it the group ends.
    assert!(world.lease_at(&a, 2, LONG, 6).await.is_empty());
    assert_eq!(world.status().await.groups_failed, 1);
    world.assert_conserved().await;
}

async fn no_shard_is_asked_first_by_everybody(world: World) {
    for number in 0..40 {
        world.enqueue(&group(&format!("g{number}"), 1)).await;
    }
    let mut first_shards = std::collections::BTreeSet::new();
    for _ in 0..10 {
        let grants = world.lease(&holder("a"), 1, LONG).await;
        first_shards.insert(world.queue.shard_of(&grants[0].unit.group));
    }
    assert_eq!(first_shards.len(), 2, "a deep queue is taken from all shards in turn");
}

async fn own_groups_of_every_shard_come_before_new_ones(world: World) {
    let a = holder("a");
    for number in 0..12 {
        world.enqueue(&group(&format!("g{number}"), 1)).await;
    }
    for grant in world.lease(&a, 12, LONG).await {
        world.complete(&a, &grant, vec![tokens(0, 1, 0)]).await;
    }
    let first = world.queue.take("t", 5).await.unwrap();
    for _ in 0..4 {
        let again = world.queue.take("t", 5).await.unwrap();
        assert!(again.iter().all(|taken| taken.is_redelivered), "nothing new before the old");
        assert_eq!(again.len(), first.len());
    }
    let ids: Vec<_> = first.iter().map(|taken| taken.group.group_id.clone()).collect();
    assert_eq!(world.queue.acknowledge("t", &ids).await.unwrap(), 5);
    assert_eq!(world.queue.take("t", 20).await.unwrap().len(), 7);
}

async fn tokens_are_progress_while_the_environment_is_waited_for(world: World) {
    let a = holder("a");
    world.enqueue(&group("g", 1)).await;
    let grants = world.lease(&a, 1, LONG).await;
    let renewal = Renewal {
        unit: grants[0].unit.clone(),
        fencing_token: grants[0].fencing_token,
        ttl: LONG,
        waiting: Waiting::Environment,
    };
    let wait = async |limit: Duration| {
        let limits = ProgressLimits { environment: limit, ..ProgressLimits::default() };
        world.queue.renew(&a, vec![renewal.clone()], limits).await.unwrap().is_empty()
    };
    assert!(wait(LONG).await);
    // Long after the wait began, by this queue's clock, but right after a token.
    let began = world.status().await.now;
    until("the queue's clock to go on", EVENT_LIMIT, || async {
        (world.status().await.now.since(began) > Duration::from_millis(30)).then_some(())
    })
    .await
    .unwrap();
    world.write_as(&a, &grants[0], vec![tokens(0, 1, 0)], Then::Continue).await;
    let token_at = world.status().await.now;
    assert!(wait(token_at.since(began) - Duration::from_millis(1)).await, "a token is progress");
}

/// Their calls travel together, old and new weights mixed.
async fn many_workers_at_once_get_every_unit_once(world: World) {
    world.set_version(1).await;
    let new_only = |number: u64| number.is_multiple_of(3);
    for number in 0..30 {
        let mut group = group(&format!("g{number}"), 3);
        group.max_lag = 1;
        group.min_policy_version = PolicyVersion(u64::from(new_only(number)));
        world.enqueue(&group).await;
    }
    let work = |worker: u64| {
        let (queue, holder) = (world.queue.clone(), holder(&format!("w{worker}")));
        async move {
            let worker_version = PolicyVersion(worker % 2);
            let stage = Stage::Generate;
            let terms = LeaseTerms { stage, holder: &holder, ttl: LONG, worker_version };
            let mut grants = queue.lease_while(terms, 2, || true).await.unwrap().grants;
            let mut granted = Vec::new();
            while !grants.is_empty() {
                granted.extend(grants.iter().map(|grant| (grant.unit.clone(), worker)));
                let complete = |grant: &Grant| UnitWrite {
                    unit: grant.unit.clone(),
                    fencing_token: grant.fencing_token,
                    tail: vec![tokens(0, 2, worker % 2)],
                    then: Then::Complete(stop()),
                };
                let writes = grants.iter().map(complete).collect();
                let (replies, leased) = queue.exchange(terms, writes, 2).await;
                replies.into_iter().for_each(|reply| assert_eq!(reply.unwrap(), WriteReply::Ok));
                grants = leased.grants;
            }
            granted
        }
    };
    let granted = futures::future::join_all((0..24).map(work)).await.concat();
    let owners: HashMap<UnitId, u64> = granted.iter().cloned().collect();
    assert_eq!((granted.len(), owners.len()), (90, 90));
    let taken = world.queue.take("t", 100).await.unwrap();
    assert_eq!(taken.len(), 30);
    for sample in taken.iter().flat_map(|group| &group.samples) {
        let owner = owners[&sample.unit];
        assert!(is_whole(sample) && sample.len() == 2);
        assert_eq!(sample.chunks[0].origin.holder, holder(&format!("w{owner}")));
        let number = sample.unit.group.as_str()[1..].parse().unwrap();
        assert!(owner % 2 == 1 || !new_only(number), "{sample:?}");
    }
    world.assert_conserved().await;
}
