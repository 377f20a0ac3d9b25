//! Laws of the journal: what was recorded reads back, and is decided the same again.

use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::observation::{ReplicaState, Signal};
use crate::scale::tests::world::{SPOT, World};
use crate::scale::{ScalePlan, SizingTerms};

fn record(world: &World, plan: &ScalePlan, outcome: &Outcome, is_first: bool) -> Record {
    let recorded =
        |action: &Action| RecordedAction { action: action.clone(), outcome: outcome.clone() };
    Record {
        answered: Vec::new(),
        is_first,
        role: world.terms.role,
        mode: "act".to_owned(),
        generation: 7,
        running: plan.running,
        wish: plan.wish,
        desired: plan.desired,
        actions: plan.actions.iter().map(recorded).collect(),
        reasons: plan.reasons.iter().map(ToString::to_string).collect(),
        bottleneck: plan.bottleneck.to_string(),
        held: None,
        trainer: None,
        observation: world.seen.clone(),
    }
}

fn text(world: &World, plan: &ScalePlan, outcome: &Outcome, is_first: bool) -> RecordText {
    RecordText::of(&record(world, plan, outcome, is_first))
}

/// Two hours of a run: it grows, loses a signal, a launch and a replica, shrinks and ends.
fn recorded_run() -> (SizingTerms, Vec<Record>) {
    recorded_run_in(World::new())
}

fn recorded_run_in(world: World) -> (SizingTerms, Vec<Record>) {
    let mut world = world.with_work(40, 0, 0);
    let mut records = Vec::new();
    for tick in 0..1_440_u64 {
        match tick {
            100 => world = world.with_work(120, 64, 2),
            300 => world.seen.ready = Signal::unknown("queue gave no status"),
            320 => world = world.with_work(0, 8, 40),
            700 => {
                let at = world.seen.now;
                let kind = crate::observation::FailureKind::Capacity;
                world.fail_launch(SPOT, kind, at);
                world = world.with_work(160, 64, 0);
            }
            _ => {}
        }
        let tokens = f64::from(u32::try_from(tick % 17).expect("small")) * 0.25;
        if let Signal::Known { value: replicas, .. } = &mut world.seen.replicas {
            for replica in replicas.iter_mut().filter(|r| r.state == ReplicaState::Ready) {
                replica.tokens_per_second = tokens;
            }
        }
        let plan = world.plan();
        let why = || "LimitExceeded".to_owned();
        let outcome = match tick % 100 {
            3 => Outcome::Failed(why()),
            53 => Outcome::Refused { kind: FailureKind::Quota, why: why(), came: 0 },
            54 => Outcome::Refused { kind: FailureKind::Capacity, why: why(), came: 1 },
            _ => Outcome::Done,
        };
        records.push(record(&world, &plan, &outcome, tick == 0));
        if outcome == Outcome::Done {
            world.apply(&plan);
        } else if let Some(result) = outcome.result() {
            plan.actions.iter().for_each(|action| world.memory.note_outcome(action, result));
        }
        world.pass(Duration::from_secs(5));
    }
    (world.terms, records)
}

fn lines(records: &[Record]) -> Vec<String> {
    let mut encoder = Encoder::default();
    records.iter().map(|record| encoder.encode(&RecordText::of(record))).collect()
}

#[test]
fn recorded_run_is_decided_the_same_again() {
    let (terms, records) = recorded_run();
    let actions: usize = records.iter().map(|record| record.actions.len()).sum();
    assert!(actions > 6, "the run is worth a replay: {actions}");
    let (mut decoder, mut replay) = (Decoder::default(), Replay::new([terms.clone()]));
    for (line, record) in lines(&records).iter().zip(&records) {
        let read = decoder.decode(line).expect("a record").expect("its base is there");
        assert_eq!(&read, record, "as it was");
        let step = replay.step(&read).expect("its group is known");
        assert!(!step.differs, "{:?}\n{}", record.actions, step.plan);
        let reasons: Vec<String> = step.plan.reasons.iter().map(ToString::to_string).collect();
        assert_eq!(reasons, record.reasons);
    }
    let fewer = SizingTerms { max_replicas: 2, ..terms };
    let mut replay = Replay::new([fewer]);
    let steps = records.iter().filter_map(|record| replay.step(record));
    let differing = steps.filter(|step| step.differs).count();
    assert!(differing > 100, "another policy decides otherwise: {differing}");
}

#[test]
fn groups_of_one_journal_are_decided_side_by_side() {
    let (rollouts, of_rollouts) = recorded_run();
    let mut world = World::of_service();
    world.service_mut().rollout_growth = 1.37;
    world.seen.others_dollars_per_hour = Some(12.34);
    let (scorers, of_scorers) = recorded_run_in(world);
    let both = of_rollouts.into_iter().zip(of_scorers).flat_map(<[Record; 2]>::from);
    let records: Vec<Record> = both.collect();
    let lines = lines(&records);
    let differences: usize = lines[2..].iter().map(String::len).sum();
    assert!(differences / lines.len() < 500, "each is the difference to its own group's");
    let (mut decoder, mut replay) = (Decoder::default(), Replay::new([rollouts.clone(), scorers]));
    for (line, record) in lines.iter().zip(&records) {
        let read = decoder.decode(line).expect("a record").expect("its base is there");
        assert_eq!(&read, record);
        let step = replay.step(&read).expect("its group is known");
        assert!(!step.differs, "{} {:?}\n{}", record.role, record.actions, step.plan);
    }
    // A policy without the service has nothing to say about it.
    let mut replay = Replay::new([rollouts]);
    assert!(replay.step(&records[1]).is_none() && replay.step(&records[0]).is_some());
}

#[test]
fn lines_of_services_are_of_a_version_that_older_readers_refuse() {
    let (_, records) = recorded_run_in(World::of_service());
    for line in &lines(&records[..3]) {
        assert!(line.starts_with("{\"version\":2,\"role\":\"reward\","), "{line}");
    }
    let (_, records) = recorded_run();
    let lines = lines(&records[..2]);
    assert!(lines[0].starts_with("{\"version\":1,\"whole\""), "{}", lines[0]);
    assert!(lines[1].starts_with("{\"change\"") && !lines[0].contains("role"), "{}", lines[1]);
}

#[test]
fn journal_can_be_read_from_anywhere() {
    let (_, records) = recorded_run();
    let lines = lines(&records);
    let mut decoder = Decoder::default();
    let read: Vec<Option<Record>> =
        lines[50..].iter().map(|line| decoder.decode(line).expect("a record")).collect();
    let whole = usize::try_from(WHOLE_EVERY).expect("small");
    assert_eq!(read.iter().take_while(|record| record.is_none()).count(), whole - 50);
    assert_eq!(read.last().cloned().flatten().as_ref(), records.last());

    let mut decoder = Decoder::default();
    decoder.decode(&lines[0]).expect("a record");
    assert!(decoder.decode("{\"change\": {\"desired\":").is_err());
    assert!(decoder.decode(&lines[2]).expect("skipped").is_none(), "its base is unknown");
    let newer = "{\"version\": 4, \"whole\": {}}";
    assert!(matches!(decoder.decode(newer), Err(DecodeError::OtherVersion { version: 4, .. })));
}

#[test]
fn packed_lines_read_back_and_damaged_ones_are_told() {
    let (_, records) = recorded_run();
    let mut decoder = Decoder::default();
    let (mut plain, mut packed) = (0, 0);
    for (line, record) in lines(&records[..300]).into_iter().zip(&records) {
        plain += line.len();
        let line = pack(line);
        packed += line.len();
        assert_eq!(decoder.decode(&line).expect("a record").as_ref(), Some(record));
    }
    assert!(packed < plain, "{packed} of {plain}");
    let whole = pack(lines(&records[..1]).remove(0));
    assert!(whole.starts_with(r#"{"version":3,"packed":""#), "{whole}");
    let text = whole.split('"').nth(5).expect("the packed text");
    for damaged in [whole.replace(text, &text[..40]), whole.replace(text, "~~")] {
        let problem = decoder.decode(&damaged);
        assert!(matches!(problem, Err(DecodeError::Malformed { .. })), "{problem:?}");
    }
    assert!(decoder.decode(&whole).expect("a record").is_some(), "the next whole one is read");
}

#[test]
fn quiet_tick_costs_little() {
    let mut world = World::new().with_replicas(SPOT, &[16; 8]);
    let plan = world.plan();
    let mut encoder = Encoder::default();
    let whole = encoder.encode(&text(&world, &plan, &Outcome::Done, true));
    world.pass(Duration::from_secs(5));
    let change = encoder.encode(&text(&world, &plan, &Outcome::Done, false));
    assert!(change.len() < 120, "{change}");
    assert!(whole.len() > 2_000, "{}", whole.len());
    world.replica_mut("spot-3").in_flight = 4;
    let change = encoder.encode(&text(&world, &plan, &Outcome::Done, false));
    assert!(change.len() < 200, "{change}");
}

/// What the size of a journal is planned with: 48 replicas of which each changes at each tick.
#[test]
fn busy_tick_costs_some_hundred_bytes_a_replica() {
    let mut world = World::new().with_replicas(SPOT, &[16; 48]);
    let plan = world.plan();
    let mut encoder = Encoder::default();
    encoder.encode(&text(&world, &plan, &Outcome::Done, true));
    world.pass(Duration::from_secs(5));
    let Signal::Known { value: replicas, .. } = &mut world.seen.replicas else { return };
    for (number, replica) in replicas.iter_mut().enumerate() {
        replica.in_flight = 100 + u32::try_from(number).expect("small");
        replica.leased = Signal::fresh(u64::from(replica.in_flight));
        replica.generating = Some(replica.in_flight);
        replica.tokens_per_second = f64::from(replica.in_flight) * 31.25;
        replica.nodes[0].heartbeat_age = Duration::from_millis(700);
    }
    let change = encoder.encode(&text(&world, &plan, &Outcome::Done, false));
    assert!((48 * 60..48 * 170).contains(&change.len()), "{}", change.len());
}

/// Values with lists of named things, of others, objects and scalars.
fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        any::<u32>().prop_map(Value::from),
        "[a-c]{0,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 4, |inner| {
        let named = ("[a-d]", inner.clone())
            .prop_map(|(name, value)| json!({ "id": name, "value": value }));
        prop_oneof![
            prop::collection::btree_map("[x-z]", inner.clone(), 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
            prop::collection::vec(named, 0..4).prop_map(Value::from),
            prop::collection::vec(inner, 0..3).prop_map(Value::from),
        ]
    })
}

proptest! {
    #[test]
    fn difference_leads_from_one_value_to_the_other(old in any_value(), new in any_value()) {
        let (old, new) = (json!({ "top": old }), json!({ "top": new }));
        let raw = |value: &Value| to_raw_value(value).expect("JSON");
        match delta::between(&raw(&old), &raw(&new)) {
            Some(change) => {
                let change = serde_json::from_str(&change).expect("JSON");
                prop_assert_eq!(delta::apply(old, &change), new);
            }
            None => prop_assert_eq!(old, new),
        }
    }
}
