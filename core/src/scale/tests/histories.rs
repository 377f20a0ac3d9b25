//! Laws that hold at every plan of any history: pools that fail, refuse, lose nodes and are set by
//! others; groups that lack nodes; notices, drains of everybody, silence, signals that come and go;
//! budgets, deadlines, reservations and swaps meanwhile.

mod rules;

use std::time::Duration;

use proptest::prelude::*;

use self::rules::check;
use super::goals::{Goals, any_goals};
use super::laws::{PHASES, PURPOSES, STAGES, blind};
use super::world::World;
use crate::observation::{FailureKind, InstanceState, ReplicaState, Signal};
use crate::policy::Market;
use crate::scale::{ActionResult, SILENCE_LIMIT, ScalePlan};
use crate::time::UnixMillis;

const POOLS: [(&str, Market); 4] = [
    ("spot-a", Market::Spot),
    ("on-demand", Market::OnDemand),
    ("spot-b", Market::Spot),
    ("on-demand-b", Market::OnDemand),
];

/// Something that happens between two plans. Replicas are named by their place, which may be
/// nobody's.
#[derive(Debug, Clone)]
enum Event {
    Pass(u32),
    Work {
        ready: u64,
        in_flight: u64,
        buffer: u64,
    },
    Phase(usize),
    /// The next plan does not see these signals.
    Blind(u8),
    /// A replica goes from one moment to the next, with its leases reaped or not.
    Lose {
        replica: usize,
        is_reaped: bool,
    },
    /// One node of a replica goes.
    LoseNode(usize),
    Notice {
        replica: usize,
        has: bool,
    },
    Advise {
        replica: usize,
        has: bool,
    },
    Load {
        replica: usize,
        load: u32,
    },
    State {
        replica: usize,
        state: usize,
    },
    Silence {
        replica: usize,
        seconds: u64,
    },
    Drain {
        replica: usize,
        purpose: usize,
        stage: usize,
    },
    /// The pool says that a launch failed.
    Fail {
        pool: usize,
        kind: usize,
    },
    /// Somebody else sets the size of a pool.
    Set {
        pool: usize,
        desired: u32,
    },
    Limit {
        pool: usize,
        limit: Option<u32>,
    },
    Floor {
        pool: usize,
        floor: u32,
    },
    /// An instance whose node says nothing.
    Stray {
        pool: usize,
        is_in_service: bool,
    },
}

const STATES: [ReplicaState; 4] =
    [ReplicaState::Starting, ReplicaState::Loading, ReplicaState::NotReady, ReplicaState::Ready];

fn event() -> impl Strategy<Value = Event> {
    let replica = || 0..10_usize;
    let pool = || 0..POOLS.len();
    prop_oneof![
        4 => (1..1000_u32).prop_map(Event::Pass),
        2 => (0..600_u64, 0..200_u64, 0..40_u64)
            .prop_map(|(ready, in_flight, buffer)| Event::Work { ready, in_flight, buffer }),
        1 => (0..PHASES.len()).prop_map(Event::Phase),
        1 => (1..64_u8).prop_map(Event::Blind),
        1 => (replica(), any::<bool>())
            .prop_map(|(replica, is_reaped)| Event::Lose { replica, is_reaped }),
        1 => replica().prop_map(Event::LoseNode),
        1 => (replica(), any::<bool>()).prop_map(|(replica, has)| Event::Notice { replica, has }),
        1 => (replica(), any::<bool>()).prop_map(|(replica, has)| Event::Advise { replica, has }),
        1 => (replica(), 0..17_u32).prop_map(|(replica, load)| Event::Load { replica, load }),
        1 => (replica(), 0..STATES.len())
            .prop_map(|(replica, state)| Event::State { replica, state }),
        1 => (replica(), 0..40_u64)
            .prop_map(|(replica, seconds)| Event::Silence { replica, seconds }),
        1 => (replica(), 0..PURPOSES.len(), 0..STAGES.len())
            .prop_map(|(replica, purpose, stage)| Event::Drain { replica, purpose, stage }),
        2 => (pool(), 0..FailureKind::ALL.len())
            .prop_map(|(pool, kind)| Event::Fail { pool, kind }),
        1 => (pool(), 0..12_u32).prop_map(|(pool, desired)| Event::Set { pool, desired }),
        1 => (pool(), proptest::option::of(0..12_u32))
            .prop_map(|(pool, limit)| Event::Limit { pool, limit }),
        1 => (pool(), 0..4_u32).prop_map(|(pool, floor)| Event::Floor { pool, floor }),
        1 => (pool(), any::<bool>())
            .prop_map(|(pool, is_in_service)| Event::Stray { pool, is_in_service }),
    ]
}

/// What becomes of an action: mostly what it asks for.
fn result() -> impl Strategy<Value = ActionResult> {
    prop_oneof![
        6 => Just(ActionResult::Done),
        1 => (0..FailureKind::ALL.len())
            .prop_map(|kind| ActionResult::Refused(FailureKind::ALL[kind])),
        1 => Just(ActionResult::Failed),
    ]
}

/// A history: how it begins, and what happens before each plan.
#[derive(Debug, Clone)]
struct History {
    world: World,
    turns: Vec<(Vec<Event>, Vec<ActionResult>)>,
}

fn history() -> impl Strategy<Value = History> {
    let bounds = (0..6_u32, 0..12_u32, 1..6_u32, 1..4_u16);
    let loads = proptest::collection::vec(proptest::collection::vec(0..17_u32, 0..4), POOLS.len());
    let pace = proptest::option::of((5..40_u64, 5..200_u64));
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    let turn = (proptest::collection::vec(event(), 1..4), proptest::collection::vec(result(), 8));
    let turns = proptest::collection::vec(turn, 1..25);
    let parts = (bounds, loads, pace, flags, any_goals(), turns);
    parts.prop_map(|(bounds, loads, pace, flags, goals, turns)| History {
        world: first_world(bounds, &loads, pace, flags, &goals),
        turns,
    })
}

fn first_world(
    (min, above, changes, nodes): (u32, u32, u32, u16),
    loads: &[Vec<u32>],
    pace: Option<(u64, u64)>,
    (are_alike, joins_at_step_end, is_unmanaged): (bool, bool, bool),
    goals: &Goals,
) -> World {
    let mut world = World::of_pools(&POOLS).with_bounds(min, min + above).with_work(300, 40, 0);
    world.terms.nodes_per_replica = nodes;
    world.terms.max_changes_per_tick = changes;
    world.terms.joins_at_step_end = joins_at_step_end;
    let types = if are_alike {
        ["p5.48xlarge"; 4]
    } else {
        ["p5.48xlarge", "p5.48xlarge", "g6e.xlarge", "m7i.large"]
    };
    for (place, instance_type) in types.into_iter().enumerate() {
        world.terms.pools[place].instance_type = Some(instance_type.parse().expect("valid"));
    }
    world.size_mut(2).is_unmanaged = is_unmanaged;
    if let Some((busy, in_flight)) = pace {
        world = world.with_pace(busy, in_flight);
    }
    for (pool, loads) in loads.iter().enumerate() {
        world = world.with_replicas(pool, loads);
    }
    goals.set_in(world)
}

impl World {
    fn id_at(&self, place: usize) -> Option<String> {
        self.replicas().get(place).map(|replica| replica.id.to_string())
    }

    /// An instance is gone, and its provider says so.
    fn lose_instance(&mut self, place: usize, node: usize) {
        let Some(id) = self.replicas()[place].nodes[node].instance.clone() else { return };
        for pool in 0..POOLS.len() {
            let size = self.size_mut(pool);
            size.instances.retain(|instance| instance.id != id);
            if size.is_unmanaged {
                size.desired = u32::try_from(size.counted().count()).expect("few");
            }
        }
        self.seen.gone.insert(id);
    }

    /// Lets one thing happen; answers the signals that the next plan does not see.
    fn suffer(&mut self, event: &Event, clock: u64) -> u8 {
        match *event {
            Event::Pass(seconds) => self.pass(Duration::from_secs(seconds.into())),
            Event::Work { ready, in_flight, buffer } => {
                self.seen.ready = Signal::fresh(ready);
                self.seen.in_flight = Signal::fresh(in_flight);
                self.seen.buffer_groups = Signal::fresh(buffer);
            }
            Event::Phase(phase) => *self = self.clone().with_phase(PHASES[phase]),
            Event::Blind(bits) => return bits,
            Event::Fail { pool, kind } => {
                self.fail_launch(pool, FailureKind::ALL[kind], UnixMillis(clock));
            }
            Event::Set { pool, desired } => self.size_mut(pool).desired = desired,
            Event::Limit { pool, limit } => self.size_mut(pool).limit = limit,
            Event::Floor { pool, floor } => self.size_mut(pool).floor = floor,
            Event::Stray { pool, is_in_service } => {
                let states = [InstanceState::Pending, InstanceState::InService];
                let state = states[usize::from(is_in_service)];
                self.add_silent(pool, &format!("i-stray-{clock}"), state);
            }
            Event::Lose { replica, .. }
            | Event::LoseNode(replica)
            | Event::Notice { replica, .. }
            | Event::Advise { replica, .. }
            | Event::Load { replica, .. }
            | Event::State { replica, .. }
            | Event::Silence { replica, .. }
            | Event::Drain { replica, .. } => self.befall(event, replica),
        }
        0
    }

    /// Lets something happen to a replica.
    fn befall(&mut self, event: &Event, place: usize) {
        let Some(id) = self.id_at(place) else { return };
        match *event {
            Event::Lose { is_reaped, .. } => {
                for node in 0..self.replicas()[place].nodes.len() {
                    self.lose_instance(place, node);
                }
                let replica = self.replica_mut(&id);
                replica.state = ReplicaState::Unknown;
                if is_reaped {
                    replica.leased = Signal::fresh(0);
                }
                for node in &mut replica.nodes {
                    node.heartbeat_age = Duration::from_secs(60);
                }
            }
            Event::LoseNode(_) => {
                self.lose_instance(place, 0);
                let replica = self.replica_mut(&id);
                if replica.nodes.len() > 1 {
                    replica.nodes.remove(0);
                    replica.state = ReplicaState::Pending;
                }
            }
            Event::Notice { has, .. } => {
                self.replica_mut(&id).has_notice = has;
                self.replica_mut(&id).nodes[0].is_reclaimed = has;
            }
            Event::Advise { has, .. } => self.replica_mut(&id).is_advised = has,
            Event::Load { load, .. } => {
                self.replica_mut(&id).in_flight = load;
                self.replica_mut(&id).leased = Signal::fresh(load.into());
            }
            Event::State { state, .. } => {
                let replica = self.replica_mut(&id);
                if replica.drain.is_none() && replica.silence() <= SILENCE_LIMIT {
                    replica.state = STATES[state];
                }
            }
            Event::Silence { seconds, .. } => {
                let replica = self.replica_mut(&id);
                replica.nodes[0].heartbeat_age = Duration::from_secs(seconds);
                if replica.silence() > SILENCE_LIMIT {
                    replica.state = ReplicaState::Unknown;
                } else if replica.drain.is_none() {
                    replica.state = ReplicaState::Ready;
                }
            }
            Event::Drain { purpose, stage, .. } => {
                self.set_drain(&id, PURPOSES[purpose], STAGES[stage]);
                if self.replica_mut(&id).silence() > SILENCE_LIMIT {
                    self.replica_mut(&id).state = ReplicaState::Unknown;
                }
            }
            _ => {}
        }
    }

    /// Lets happen what becomes of each action.
    fn carry_out(&mut self, plan: &ScalePlan, results: &[ActionResult]) {
        for (action, result) in plan.actions.iter().zip(results.iter().cycle()) {
            if *result == ActionResult::Done {
                let alone = ScalePlan { actions: vec![action.clone()], ..plan.clone() };
                self.apply(&alone);
            } else {
                self.memory.note_outcome(action, *result);
            }
        }
    }
}

proptest! {
    #[test]
    fn every_plan_of_any_history_keeps_to_the_laws(history in history()) {
        let History { mut world, turns } = history;
        let mut clock = 1000;
        for (events, results) in turns {
            let mut bits = 0;
            for event in &events {
                clock += 1;
                bits |= world.suffer(event, clock);
            }
            let mut seen = world.clone();
            blind(&mut seen, bits);
            let plan = seen.plan();
            world.memory = seen.memory.clone();
            check(&seen, &plan)?;
            world.carry_out(&plan, &results);
            world.pass(Duration::from_secs(5));
        }
    }
}
