//! What limits the iteration, given what it looked like.

use std::time::Duration;

use super::*;
use crate::observation::{Signal, TrainerPhase, TrainerView};
use crate::scale::tests::world::{SPOT, World};

/// A run in which samples are made while the policy is updated, over five updates.
fn phases(train: f64, sync: f64, wait: f64, checkpoint: f64) -> IterationPhases {
    IterationPhases {
        updates: 5.0,
        is_overlapped: true,
        is_buffer_filled: true,
        seconds: PhaseSeconds { train, sync, wait, checkpoint },
        while_waiting: WaitPicture { places: 64.0, ..WaitPicture::default() },
    }
}

fn stage(phases: IterationPhases) -> Option<IterationStage> {
    judge_bottleneck(&phases).stage
}

#[test]
fn trainer_that_never_waits_is_limited_by_what_takes_it_longest() {
    assert_eq!(stage(phases(80.0, 10.0, 5.0, 5.0)), Some(IterationStage::Trainer));
    assert_eq!(stage(phases(20.0, 70.0, 5.0, 5.0)), Some(IterationStage::WeightSync));
    assert_eq!(stage(phases(20.0, 10.0, 0.0, 70.0)), Some(IterationStage::Storage));
    let low = IterationPhases { is_buffer_filled: false, ..phases(80.0, 10.0, 5.0, 5.0) };
    assert_eq!(stage(low), None, "the buffer runs low: rollouts just keep pace");
}

#[test]
fn trainer_that_waits_is_limited_by_the_last_stage_at_which_work_piles_up() {
    let waiting = |picture: WaitPicture| {
        let picture = WaitPicture { places: 64.0, ..picture };
        stage(IterationPhases { while_waiting: picture, ..phases(50.0, 5.0, 40.0, 5.0) })
    };
    let all = WaitPicture {
        ready: 30.0,
        in_flight: 60.0,
        environment: 40.0,
        reward_ready: 12.0,
        reward_in_flight: 8.0,
        places: 0.0,
    };
    assert_eq!(waiting(all), Some(IterationStage::Reward));
    let scored_soon = WaitPicture { reward_ready: 2.0, ..all };
    assert_eq!(waiting(scored_soon), Some(IterationStage::Environment));
    let answered = WaitPicture { environment: 10.0, ..scored_soon };
    assert_eq!(waiting(answered), Some(IterationStage::Rollout));
    let taken = WaitPicture { ready: 0.0, ..answered };
    assert_eq!(waiting(taken), Some(IterationStage::Rollout), "every place is taken");
    let tail = WaitPicture { in_flight: 9.0, environment: 1.0, ..taken };
    assert_eq!(waiting(tail), None, "the last samples of a step: nobody else has work");
}

#[test]
fn stages_that_take_turns_are_limited_by_the_longest() {
    let serial = |train, sync, wait| IterationPhases {
        is_overlapped: false,
        is_buffer_filled: false,
        while_waiting: WaitPicture { ready: 8.0, in_flight: 64.0, ..WaitPicture::default() },
        ..phases(train, sync, wait, 0.0)
    };
    // Two runs of Seer: rollouts, training and weight sync take so many per cent.
    assert_eq!(stage(serial(14.0, 2.0, 84.0)), Some(IterationStage::Rollout));
    assert_eq!(stage(serial(31.0, 6.0, 63.0)), Some(IterationStage::Rollout));
    assert_eq!(stage(serial(60.0, 5.0, 35.0)), Some(IterationStage::Trainer));
}

#[test]
fn nothing_is_said_before_three_updates() {
    let young = IterationPhases { updates: 2.0, ..phases(80.0, 10.0, 5.0, 5.0) };
    let verdict = judge_bottleneck(&young);
    assert_eq!(verdict.stage, None);
    let text = "what limits the iteration is unknown: 2 updates were seen, 3 are needed";
    assert_eq!(verdict.to_string(), text);
}

#[test]
fn verdict_says_its_evidence() {
    let seen = WaitPicture { ready: 12.0, in_flight: 60.0, places: 64.0, ..WaitPicture::default() };
    let waiting = IterationPhases { while_waiting: seen, ..phases(50.0, 5.0, 40.0, 5.0) };
    assert_eq!(
        judge_bottleneck(&waiting).to_string(),
        "rollout limits the iteration: the trainer trains 50 %, syncs 5 %, checkpoints 5 % and \
         waits 40 % of its time, while 12 units wait and 60 of 64 are generated"
    );
}

/// Lets a trainer go through its phases, one look each second.
fn run(clock: &mut IterationClock, world: &mut World, updates: u64, parts: &[(TrainerPhase, u64)]) {
    for _ in 0..updates {
        for (phase, seconds) in parts {
            for _ in 0..*seconds {
                let step = world.seen.trainer.known().map_or(0, |trainer| trainer.step);
                let phase = *phase;
                world.seen.trainer =
                    Signal::fresh(TrainerView { phase, step, groups_per_step: 8, nodes: None });
                *clock = clock.advance(&world.seen, 16);
                world.pass(Duration::from_secs(1));
            }
        }
        if let Signal::Known { value, .. } = &mut world.seen.trainer {
            value.step += 1;
        }
    }
    *clock = clock.advance(&world.seen, 16);
}

#[test]
fn clock_gathers_shares_and_forgets_what_is_long_ago() {
    let mut world = World::new().with_work(40, 30, 0).with_replicas(SPOT, &[15, 15]);
    let mut clock = IterationClock::default();
    let (train, wait, sync) = (TrainerPhase::Train, TrainerPhase::Wait, TrainerPhase::Sync);
    run(&mut clock, &mut world, 4, &[(train, 10), (wait, 30), (sync, 2)]);
    let seen = clock.phases(true, false);
    assert_eq!(judge_bottleneck(&seen).stage, Some(IterationStage::Rollout), "{seen:?}");
    let picture = seen.while_waiting;
    assert!((picture.ready - 40.0).abs() < 1e-6 && (picture.places - 32.0).abs() < 1e-6);
    run(&mut clock, &mut world, 4, &[(train, 10), (sync, 2)]);
    let seen = clock.phases(true, true);
    assert_eq!(judge_bottleneck(&seen).stage, Some(IterationStage::Trainer), "{seen:?}");
    assert!(seen.seconds.wait < 1e-6, "four updates are looked back on: {seen:?}");
}

#[test]
fn time_that_nobody_watched_is_left_out() {
    let mut world = World::new();
    let mut clock = IterationClock::default();
    run(&mut clock, &mut world, 4, &[(TrainerPhase::Train, 10)]);
    let before = clock.phases(true, true).seconds.total();
    world.pass(Duration::from_hours(2));
    clock = clock.advance(&world.seen, 16);
    assert!((clock.phases(true, true).seconds.total() - before).abs() < 1e-6);
    world.seen.trainer = Signal::unknown("silent");
    clock = clock.advance(&world.seen, 16);
    world.pass(Duration::from_secs(20));
    clock = clock.advance(&world.seen, 16);
    assert!((clock.phases(true, true).seconds.total() - before).abs() < 1e-6);
}
