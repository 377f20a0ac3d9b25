//! The trainer's size: stories of both directions, everything that may go wrong, and the laws.

mod hindrances;
mod laws;
mod leaving;
mod surplus;

use std::time::Duration;

use super::*;
use crate::bottleneck::{Bottleneck, IterationPhases, IterationStage, PhaseSeconds};
use crate::ids::NodeName;
use crate::observation::{
    EndedResize, InstanceId, InstanceState, InstanceView, PoolView, ReleasedNode, ResizeEnd,
    ResizeView, Signal, TrainerPhase, TrainerView,
};
use crate::scale::reason::{BreakerReason, CapacityReason, Reason};
use crate::scale::tests::world::{World, pool_name};
use crate::scale::{BudgetTerms, ScaleMemory};

const MINUTE: Duration = Duration::from_mins(1);

/// A trainer of 2 of [2, 4, 8] nodes at $10 an hour, whose pool holds as many, and what the
/// rollouts' plan says.
struct Run {
    terms: SizingTerms,
    seen: Observation,
    plan: ScalePlan,
    memory: TrainerMemory,
}

impl Run {
    fn new() -> Self {
        let World { mut terms, seen, .. } = World::new();
        terms.trainer = Some(TrainerTerms {
            pool: pool_name("trainers"),
            legal_sizes: vec![2, 4, 8],
            dollars_per_node_hour: Some(10.0),
            resize_after: 30 * MINUTE,
        });
        let plan = ScalePlan {
            running: Some(10),
            wish: Some(10),
            desired: Some(10),
            bottleneck: Bottleneck::default(),
            actions: Vec::new(),
            reasons: Vec::new(),
            memory: ScaleMemory::default(),
        };
        let mut run = Self { terms, seen, plan, memory: TrainerMemory::default() };
        run.says(TrainerPhase::Train, 10, Some(2));
        run.holds(2);
        run
    }

    fn says(&mut self, phase: TrainerPhase, step: u64, nodes: Option<u32>) {
        self.seen.trainer = Signal::fresh(TrainerView { phase, step, groups_per_step: 8, nodes });
    }

    /// The pool is asked for so many nodes, and all of them serve: n1, n2, …
    fn holds(&mut self, nodes: u32) {
        let instance = |number| InstanceView {
            node: Some(format!("n{number}").parse().expect("valid")),
            ..InstanceView::new(InstanceId(format!("i-{number}")), InstanceState::InService)
        };
        let size = PoolSize {
            desired: nodes,
            instances: (1..=nodes).map(instance).collect(),
            ..PoolSize::default()
        };
        let activities = Signal::unknown("not asked");
        let view = PoolView { name: pool_name("trainers"), size: Signal::fresh(size), activities };
        self.seen.trainer_pool = Some(view);
    }

    fn pool(&mut self) -> &mut PoolSize {
        let pool = self.seen.trainer_pool.as_mut().expect("has one");
        match &mut pool.size {
            Signal::Known { value, .. } => value,
            Signal::Unknown { why } => panic!("{why}"),
        }
    }

    /// The trainer limits the run, and the buffer is filled.
    fn too_slow(mut self) -> Self {
        let seconds = PhaseSeconds { train: 95.0, sync: 5.0, ..PhaseSeconds::default() };
        self.limits(IterationStage::Trainer, true, seconds);
        self
    }

    /// Rollouts limit the run, the buffer is empty, and there can be no more of them.
    fn too_fast(mut self) -> Self {
        let seconds = PhaseSeconds { train: 20.0, sync: 5.0, wait: 75.0, checkpoint: 0.0 };
        self.limits(IterationStage::Rollout, false, seconds);
        self.plan.reasons = vec![Reason::AtMaximum { maximum: 10 }];
        self
    }

    fn limits(&mut self, stage: IterationStage, is_buffer_filled: bool, seconds: PhaseSeconds) {
        let phases = IterationPhases {
            updates: 4.0,
            is_overlapped: true,
            is_buffer_filled,
            seconds,
            ..IterationPhases::default()
        };
        self.plan.bottleneck = Bottleneck { stage: Some(stage), phases };
    }

    fn asked(&mut self, size: u32) {
        self.seen.trainer_resize = Some(ResizeView {
            size,
            generation: 7,
            asked_for: Duration::ZERO,
            is_confirmed: false,
            has_restarted: false,
            released: Vec::new(),
        });
    }

    fn resize(&mut self) -> &mut ResizeView {
        self.seen.trainer_resize.as_mut().expect("asked")
    }

    fn confirmed(&mut self, released: &[&str]) {
        let node = |name: &&str| ReleasedNode {
            name: name.parse().expect("valid"),
            instance: None,
            has_notice: false,
            is_trainers: true,
        };
        let released = released.iter().map(node).collect();
        let resize = self.resize();
        (resize.is_confirmed, resize.released) = (true, released);
    }

    /// The request is over, as the record has it.
    fn ended(&mut self, how: ResizeEnd) {
        self.seen.trainer_resize = None;
        self.seen.trainer_resize_ended = Some(EndedResize { how, ago: Duration::ZERO });
    }

    fn pass(&mut self, time: Duration) {
        self.seen.now = self.seen.now.plus(time);
        if let Some(resize) = &mut self.seen.trainer_resize {
            resize.asked_for += time;
        }
        if let Some(ended) = &mut self.seen.trainer_resize_ended {
            ended.ago += time;
        }
    }

    fn plan(&mut self) -> TrainerPlan {
        let plan = plan_trainer(&self.terms, &self.seen, &self.plan, &self.memory);
        self.memory = plan.memory.clone();
        plan
    }

    /// Plans once a minute for so long; what was to be done first, if anything.
    fn watch(&mut self, time: Duration) -> Option<TrainerAction> {
        let until = self.seen.now.plus(time);
        while self.seen.now < until {
            if let Some(action) = self.plan().action {
                return Some(action);
            }
            self.pass(MINUTE);
        }
        None
    }

    /// What a plan says, line by line.
    fn told(&mut self) -> Vec<String> {
        let plan = self.plan();
        let action = plan.action.iter().map(|action| format!("do: {action}"));
        action.chain(plan.reasons.iter().map(ToString::to_string)).collect()
    }
}

fn request(from: u32, to: u32) -> Option<TrainerAction> {
    Some(TrainerAction::Request { from, to })
}

fn end(size: u32, how: ResizeEnd) -> Option<TrainerAction> {
    end_without(size, how, &[])
}

/// The end of a request with which these nodes are gone.
fn end_without(size: u32, how: ResizeEnd, gone: &[&str]) -> Option<TrainerAction> {
    let name = |name: &&str| name.parse::<NodeName>().expect("valid");
    let gone = gone.iter().map(name).collect();
    Some(TrainerAction::End { generation: 7, size, how, gone })
}

fn release(ids: &[&str]) -> Option<TrainerAction> {
    let instances = ids.iter().map(|id| InstanceId((*id).to_owned())).collect();
    let (generation, pool) = (7, pool_name("trainers"));
    Some(TrainerAction::Release { generation, pool, instances })
}

#[test]
fn trainer_that_is_too_slow_for_the_whole_window_grows_by_one_size() {
    let mut run = Run::new().too_slow();
    assert_eq!(run.watch(29 * MINUTE), None);
    assert_eq!(
        run.told(),
        ["the trainer is what limits the run for 29m: after 30m it is asked to run on 4 nodes"]
    );
    run.pass(MINUTE);
    assert_eq!(run.told(), ["do: ask the trainer to run on 4 nodes instead of 2"]);
    run.asked(4);
    run.pass(2 * MINUTE);
    assert_eq!(
        run.told(),
        ["the trainer was asked to run on 4 nodes 2m ago and has not confirmed, which it may \
             until 1h"]
    );
    run.confirmed(&[]);
    assert_eq!(run.told(), ["do: raise pool trainers of the trainer from 2 to 4"]);
    run.pass(Duration::from_secs(5));
    assert_eq!(run.told(), Vec::<String>::new(), "what is asked for may not show at once");
    run.pool().desired = 4;
    assert_eq!(run.told(), ["pool trainers of the trainer fills up: 2 of 4 nodes"]);
    run.holds(4);
    assert_eq!(run.told(), ["the trainer confirmed 4 nodes, they are there, and it runs on 2"]);
    run.says(TrainerPhase::Train, 12, Some(4));
    assert_eq!(run.told(), ["do: end the request for a trainer of 4 nodes: it runs on so many"]);
    run.seen.trainer_resize = None;
    assert_eq!(
        run.told(),
        ["the trainer's size has just changed: it can be judged 5 updates later"]
    );
    run.says(TrainerPhase::Train, 17, Some(4));
    assert_eq!(run.watch(30 * MINUTE), None, "the window begins anew");
    assert_eq!(run.plan().action, request(4, 8));
}

#[test]
fn trainer_that_is_too_fast_for_the_whole_window_shrinks_by_what_it_has_left() {
    let mut run = Run::new().too_fast();
    run.says(TrainerPhase::Wait, 10, Some(4));
    run.holds(4);
    assert_eq!(run.watch(29 * MINUTE), None);
    assert_eq!(
        run.told(),
        ["the trainer waits for rollouts, of which there can be no more for 29m: after 30m it is \
          asked to run on 2 nodes"]
    );
    run.pass(MINUTE);
    assert_eq!(run.told(), ["do: ask the trainer to run on 2 nodes instead of 4"]);
    run.asked(2);
    assert_eq!(run.watch(10 * MINUTE), None, "nothing goes before it has confirmed");
    // Its word says that it has left two nodes, and runs on two.
    run.confirmed(&["n2", "n4"]);
    run.says(TrainerPhase::Wait, 14, Some(2));
    assert_eq!(run.told(), ["do: terminate what the trainer has left in pool trainers: i-2, i-4"]);
    run.pool().desired = 2;
    run.pool().instances.retain(|it| it.id.0 != "i-2");
    run.pool().instances[2].state = InstanceState::Terminating;
    assert_eq!(run.told(), Vec::<String>::new(), "one is still on its way out");
    run.pool().instances.remove(2);
    assert_eq!(run.plan().action, end_without(2, ResizeEnd::Done, &["n2", "n4"]));
}

/// Each stage of a resize, both ways, with the trainer silent: by a crash, or for a relaunch.
#[test]
fn silent_trainer_changes_nothing_at_any_stage_and_goes_on_where_it_was() {
    let stages: [fn(&mut Run); 5] = [
        |_| {},
        |run| run.asked(4),
        |run| {
            run.asked(4);
            run.confirmed(&[]);
        },
        |run| {
            run.asked(4);
            run.confirmed(&[]);
            run.pool().desired = 4;
        },
        |run| {
            run.asked(2);
            run.confirmed(&["n3", "n4"]);
            run.holds(4);
        },
    ];
    for (number, stage) in stages.into_iter().enumerate() {
        let mut run = Run::new().too_slow();
        run.watch(30 * MINUTE);
        stage(&mut run);
        let alive = run.seen.trainer.clone();
        let expected = run.plan().action;
        run.seen.trainer = Signal::unknown("its heartbeat is 31s old, at most 30s count");
        assert_eq!(run.watch(50 * MINUTE), None, "stage {number}");
        assert_eq!(
            run.told(),
            ["the trainer is unknown (its heartbeat is 31s old, at most 30s count): its size is \
              left alone"]
        );
        run.seen.trainer = alive;
        assert_eq!(run.plan().action, expected, "stage {number}");
    }
}

#[test]
fn another_leader_goes_on_from_the_record() {
    let mut run = Run::new().too_slow();
    run.asked(4);
    run.confirmed(&[]);
    for _ in 0..2 {
        run.memory = TrainerMemory::default();
        let raise = TrainerAction::Raise { pool: pool_name("trainers"), from: 2, to: 4 };
        assert_eq!(run.plan().action, Some(raise), "by an absolute number, whoever asks");
    }
    run.holds(4);
    run.memory = TrainerMemory::default();
    assert_eq!(run.plan().action, None, "what was raised is not raised again");
    run.says(TrainerPhase::Train, 12, Some(4));
    run.memory = TrainerMemory::default();
    assert_eq!(run.plan().action, end(4, ResizeEnd::Done));
}
