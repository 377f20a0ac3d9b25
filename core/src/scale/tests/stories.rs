//! Whole runs in small: what is planned happens, with its delays, and the planner sees what
//! follows. Work flows evenly; what matters here is what the planner does over hours.

mod noise;

use std::time::Duration;

use super::world::{SPOT, World};
use crate::ids::PolicyVersion;
use crate::observation::{ReplicaState, Signal, TrainerPhase, TrainerView};
use crate::scale::{Action, whole};

const SECOND: Duration = Duration::from_secs(1);

/// Samples of a group, groups of an update, and samples that a replica works on at a time.
const GROUP: f64 = 4.0;
const STEP: f64 = 8.0;
const PLACES: f64 = 16.0;

/// Seconds between two plans.
const TICK: u64 = 5;

/// A run whose trainer, replicas and buffer follow one another.
struct Run {
    world: World,
    /// Seconds that one sample takes.
    sample: f64,
    /// Seconds of an update.
    train: u64,
    /// Seconds for which engines stand still after an update, while the next one goes on.
    spread: Box<dyn FnMut(u64) -> u64>,
    /// From an order to the first sample, in seconds.
    startup: u64,
    seconds: u64,
    phase: TrainerPhase,
    phase_until: u64,
    step: u64,
    published_at: u64,
    paused_until: u64,
    buffer: f64,
    completed: f64,
    in_flight: f64,
    /// Replicas that are still to start, with the second at which they are ready.
    starting: Vec<(String, u64)>,
    /// What was ordered and taken away, in replicas, with the second.
    changes: Vec<(u64, i64)>,
}

impl Run {
    fn new(replicas: usize, sample: f64, train: u64, startup: u64) -> Self {
        let mut world = World::new().with_bounds(1, 40).with_replicas(SPOT, &vec![16; replicas]);
        world.size_mut(SPOT).limit = None;
        world.terms.pools[SPOT].max_nodes = 40;
        world.terms.startup = SECOND * u32::try_from(startup).expect("small");
        world.terms.stabilization_down = SECOND * 300;
        let phase = TrainerPhase::Wait;
        let (seconds, phase_until, step, completed) = (0, 0, 0, 0.0);
        let in_flight = 0.0;
        Self {
            world,
            sample,
            train,
            spread: Box::new(|_| 0),
            published_at: 0,
            paused_until: 0,
            startup,
            seconds,
            phase,
            phase_until,
            step,
            buffer: STEP,
            completed,
            in_flight,
            starting: Vec::new(),
            changes: Vec::new(),
        }
    }

    /// Replicas that the pace asks for: those in flight that make what an iteration consumes.
    fn knee(&self) -> f64 {
        let samples = STEP * GROUP;
        samples * self.sample / count(self.train) / PLACES
    }

    fn running(&self) -> usize {
        let is_here = |state| state <= ReplicaState::Ready;
        self.world.replicas().iter().filter(|replica| is_here(replica.state)).count()
    }

    fn run_for(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.second();
        }
    }

    fn second(&mut self) {
        self.seconds += 1;
        self.world.pass(SECOND);
        self.train_on();
        self.generate();
        let due = |(_, at): &(String, u64)| *at <= self.seconds;
        let ready: Vec<_> = self.starting.iter().filter(|it| due(it)).cloned().collect();
        for (id, _) in ready {
            self.world.replica_mut(&id).state = ReplicaState::Ready;
            self.starting.retain(|(other, _)| *other != id);
        }
        if self.seconds.is_multiple_of(TICK) {
            self.plan();
        }
    }

    fn train_on(&mut self) {
        if self.phase == TrainerPhase::Wait {
            if self.buffer >= STEP {
                self.buffer -= STEP;
                (self.phase, self.phase_until) = (TrainerPhase::Train, self.seconds + self.train);
            }
            return;
        }
        if self.seconds < self.phase_until {
            return;
        }
        self.step += 1;
        self.paused_until = self.seconds + (self.spread)(self.step);
        self.published_at = self.seconds;
        self.phase = TrainerPhase::Wait;
    }

    /// Engines work on what may still be used in time: four steps of groups, lag 3.
    fn generate(&mut self) {
        let (from, to) = match self.seconds < self.paused_until {
            true => (ReplicaState::Ready, ReplicaState::NotReady),
            false => (ReplicaState::NotReady, ReplicaState::Ready),
        };
        let ids: Vec<String> = self.world.replicas().iter().map(|it| it.id.to_string()).collect();
        for id in ids {
            let replica = self.world.replica_mut(&id);
            if replica.state == from {
                replica.state = to;
            }
        }
        if self.seconds < self.paused_until {
            return;
        }
        let is_ready = |state| state == ReplicaState::Ready;
        let ready = self.world.replicas().iter().filter(|replica| is_ready(replica.state)).count();
        let room = self.room();
        self.in_flight = (count(ready as u64) * PLACES).min(room);
        let made = self.in_flight / self.sample;
        self.completed += made;
        self.buffer += made / GROUP;
    }

    /// Samples that may be in the system beside those in the buffer, before they are too old.
    fn room(&self) -> f64 {
        let taken = if self.phase == TrainerPhase::Train { STEP } else { 0.0 };
        ((4.0 * STEP - self.buffer - taken) * GROUP).max(0.0)
    }

    fn plan(&mut self) {
        let world = &mut self.world;
        world.seen.trainer = Signal::fresh(TrainerView {
            phase: self.phase,
            step: self.step,
            groups_per_step: 8,
            nodes: None,
        });
        world.seen.in_flight = Signal::fresh(whole(self.in_flight).into());
        world.seen.completed = Signal::fresh(whole(self.completed).into());
        let taken = if self.phase == TrainerPhase::Train { 8 } else { 0 };
        world.seen.buffer_taken = Signal::fresh(taken);
        world.seen.buffer_groups = Signal::fresh(whole(self.buffer).into());
        let room = (self.room() - self.in_flight).max(0.0);
        let world = &mut self.world;
        world.seen.ready = Signal::fresh(whole(room).into());
        let age = Duration::from_secs(self.seconds - self.published_at);
        world.seen.policy_version = Signal::Known { value: PolicyVersion(self.step), age };
        let plan = world.plan();
        let before: Vec<String> = world.replicas().iter().map(|it| it.id.to_string()).collect();
        for action in &plan.actions {
            match action {
                Action::Raise { from, to, .. } => {
                    self.changes.push((self.seconds, i64::from(*to) - i64::from(*from)));
                }
                Action::RequestDrain { .. } => self.changes.push((self.seconds, -1)),
                _ => {}
            }
        }
        world.apply(&plan);
        let after: Vec<String> = world.replicas().iter().map(|it| it.id.to_string()).collect();
        for id in after.into_iter().filter(|id| !before.contains(id)) {
            world.replica_mut(&id).state = ReplicaState::Loading;
            self.starting.push((id, self.seconds + self.startup));
        }
    }

    /// Changes since that second.
    fn changes_since(&self, second: u64) -> Vec<i64> {
        let since = self.changes.iter().filter(|(at, _)| *at >= second);
        since.map(|(_, change)| *change).collect()
    }
}

fn count(number: u64) -> f64 {
    crate::scale::count(number)
}

#[test]
fn faster_rollouts_shrink_the_fleet_to_its_new_size_and_no_further() {
    // 32 samples in 100 s, each 400 s in flight: 128 in flight, 8 replicas.
    let mut run = Run::new(8, 400.0, 100, 180);
    run.run_for(4 * 3600);
    assert!((8..=9).contains(&run.running()), "{} run, {:?}", run.running(), run.changes);
    let settled = run.changes_since(2 * 3600);
    assert!(settled.is_empty(), "a settled fleet needs no change: {settled:?}");

    run.sample /= 1.4;
    let since = run.seconds;
    run.run_for(4 * 3600);
    let changes = run.changes_since(since);
    assert!((5.7..5.8).contains(&run.knee()));
    assert!((6..=7).contains(&run.running()), "{} run, {changes:?}", run.running());
    assert!(changes.iter().all(|change| *change < 0), "it oscillates: {changes:?}");
    assert!(run.changes_since(since + 3 * 3600).is_empty(), "{:?}", run.changes);
}

#[test]
fn nothing_is_launched_for_a_buffer_that_drains_while_engines_load() {
    let mut run = Run::new(10, 400.0, 100, 330);
    // 30 to 300 s, in an order that looks like chance.
    run.spread = Box::new(|step| 30 + (step * 97) % 271);
    run.run_for(2 * 3600);
    let since = run.seconds;
    run.run_for(4 * 3600);
    let raised = run.changes_since(since).into_iter().filter(|change| *change > 0).count();
    assert_eq!(raised, 0, "{:?}", run.changes);
}
