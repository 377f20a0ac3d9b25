//! Laws of stragglers: who is named, when, and when no longer.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::ids::PolicyVersion;
use crate::observation::Signal;

/// Between two observations.
const TICK: Duration = Duration::from_secs(5);

/// A replica with so many streams of so many tokens per second each.
fn replica(name: &str, streams: u32, speed: f64) -> ReplicaView {
    ReplicaView {
        id: name.parse().expect("valid"),
        nodes: Vec::new(),
        state: ReplicaState::Ready,
        in_flight: streams,
        leased: Signal::fresh(u64::from(streams)),
        tokens_per_second: f64::from(streams) * speed,
        generating: Some(streams),
        capacity: None,
        instance_type: Some("p5en.48xlarge".to_owned()),
        market: None,
        pool: None,
        has_notice: false,
        is_advised: false,
        drain: None,
    }
}

/// A fleet of equals, and one called `odd`.
fn fleet(peers: usize, odd: ReplicaView) -> Vec<ReplicaView> {
    (0..peers).map(|n| replica(&format!("r{n}"), 100, 20.0)).chain([odd]).collect()
}

struct Run {
    memory: StragglerMemory,
    now: UnixMillis,
}

impl Run {
    fn new() -> Self {
        Self { memory: StragglerMemory::default(), now: UnixMillis(1_000_000) }
    }

    /// Shows the same for so many windows; the names that stand then.
    fn windows(&mut self, count: u32, replicas: &[ReplicaView]) -> Vec<String> {
        let ticks = count * u32::try_from(WINDOW.as_secs() / TICK.as_secs()).expect("small");
        for _ in 0..=ticks {
            self.memory.note(&observation(self.now, Signal::fresh(replicas.to_vec())));
            self.now = self.now.plus(TICK);
        }
        self.now = UnixMillis(self.now.0 - 5_000);
        self.names()
    }

    fn names(&self) -> Vec<String> {
        self.memory.stragglers().map(|straggler| straggler.replica.to_string()).collect()
    }
}

fn observation(now: UnixMillis, replicas: Signal<Vec<ReplicaView>>) -> Observation {
    Observation {
        now,
        ready: Signal::fresh(0),
        in_flight: Signal::fresh(0),
        environment_waiting: Signal::fresh(0),
        reward_ready: Signal::fresh(0),
        reward_in_flight: Signal::fresh(0),
        completed: Signal::fresh(0),
        buffer_groups: Signal::fresh(0),
        buffer_taken: Signal::fresh(0),
        oldest_ready_age: Signal::fresh(Duration::ZERO),
        trainer: Signal::unknown("no trainer"),
        trainer_resize: None,
        trainer_resize_ended: None,
        trainer_pool: None,
        policy_version: Signal::fresh(PolicyVersion(0)),
        replicas,
        pools: Vec::new(),
        others_at_work: Signal::unknown("not read"),
        gone: BTreeSet::new(),
        others_dollars_per_hour: None,
        is_cost_of_others_unknown: false,
        service: None,
    }
}

#[test]
fn replica_that_stays_slow_is_named_and_cleared_when_it_is_as_fast_again() {
    let mut run = Run::new();
    let slow = fleet(4, replica("odd", 100, 12.0));
    assert!(run.windows(2, &slow).is_empty(), "two windows may be chance");
    assert_eq!(run.windows(1, &slow), ["odd"]);
    let named = run.memory.stragglers().next().expect("named");
    assert!((named.share - 0.6).abs() < 1e-9, "{named:?}");
    assert_eq!(run.windows(3, &fleet(4, replica("odd", 100, 17.0))), ["odd"], "in between");
    assert_eq!(run.windows(1, &fleet(4, replica("odd", 100, 19.0))), ["odd"]);
    assert!(run.windows(1, &fleet(4, replica("odd", 100, 19.0))).is_empty());
}

#[test]
fn slow_windows_count_only_in_a_row() {
    let mut run = Run::new();
    for _ in 0..5 {
        assert!(run.windows(2, &fleet(4, replica("odd", 100, 12.0))).is_empty());
        assert!(run.windows(1, &fleet(4, replica("odd", 100, 20.0))).is_empty());
    }
}

#[test]
fn nothing_is_said_without_three_peers_of_the_same_type_and_batch() {
    let other_type =
        ReplicaView { instance_type: Some("g6.xlarge".to_owned()), ..replica("odd", 100, 5.0) };
    for (why, replicas) in [
        ("two peers", fleet(2, replica("odd", 100, 5.0))),
        ("a batch twice as large is slower", fleet(9, replica("odd", 200, 11.0))),
        ("another type", fleet(9, other_type)),
    ] {
        assert!(Run::new().windows(9, &replicas).is_empty(), "{why}");
    }
}

#[test]
fn replica_that_is_not_at_work_is_not_slow() {
    let mut paused = replica("odd", 100, 0.0);
    assert!(Run::new().windows(9, &fleet(4, paused.clone())).is_empty(), "paused for weights");
    paused.state = ReplicaState::Loading;
    paused.tokens_per_second = 1.0;
    assert!(Run::new().windows(9, &fleet(4, paused)).is_empty());
    let silent = ReplicaView { generating: None, ..replica("odd", 100, 1.0) };
    assert!(Run::new().windows(9, &fleet(4, silent)).is_empty(), "it does not tell its batch");
}

#[test]
fn what_was_said_ends_with_the_replica_or_after_long_silence() {
    let slow = fleet(4, replica("odd", 100, 12.0));
    let mut run = Run::new();
    assert_eq!(run.windows(3, &slow), ["odd"]);
    let alone = [replica("odd", 100, 12.0)];
    assert_eq!(run.windows(SILENT_WINDOWS - 1, &alone), ["odd"]);
    assert!(run.windows(1, &alone).is_empty());
    assert_eq!(run.windows(3, &slow), ["odd"]);
    run.memory.note(&observation(run.now, Signal::unknown("redis is away")));
    assert_eq!(run.names(), ["odd"], "unknown is not gone");
    run.memory.note(&observation(run.now, Signal::fresh(Vec::new())));
    assert!(run.names().is_empty());
}

#[test]
fn next_controller_goes_on_with_what_the_last_one_said() {
    let mut run = Run::new();
    run.memory.adopt(Straggler { replica: "odd".parse().expect("valid"), share: 0.5 });
    assert_eq!(run.windows(1, &fleet(4, replica("odd", 100, 17.0))), ["odd"]);
    assert!(run.windows(2, &fleet(4, replica("odd", 100, 20.0))).is_empty());
    run.memory.adopt(Straggler { replica: "odd".parse().expect("valid"), share: 0.5 });
    assert!(run.names().is_empty(), "this one knows better");
}

proptest! {
    /// A fleet whose speeds differ by less than the tolerance has no straggler, and the fastest is
    /// never one.
    #[test]
    fn even_fleets_have_no_straggler(speeds in proptest::collection::vec(18.0..20.0_f64, 1..12)) {
        let replicas: Vec<ReplicaView> = speeds
            .iter()
            .enumerate()
            .map(|(n, speed)| replica(&format!("r{n}"), 100, *speed))
            .collect();
        prop_assert!(Run::new().windows(6, &replicas).is_empty());
    }

    #[test]
    fn fastest_is_never_named(speeds in proptest::collection::vec(1.0..50.0_f64, 1..12)) {
        let replicas: Vec<ReplicaView> = speeds
            .iter()
            .enumerate()
            .map(|(n, speed)| replica(&format!("r{n}"), 100, *speed))
            .collect();
        let fastest = replicas
            .iter()
            .max_by(|a, b| a.tokens_per_second.total_cmp(&b.tokens_per_second))
            .expect("not empty");
        let named = Run::new().windows(6, &replicas);
        prop_assert!(!named.contains(&fastest.id.to_string()));
    }
}
