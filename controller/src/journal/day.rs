//! A day of a busy fleet is kept, in the files and in the stream, and is decided again as it was.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::ids::PolicyVersion;
use ebbtide_core::journal::{Decoder, Outcome, RecordedAction, Replay};
use ebbtide_core::observation::{
    Activities, InstanceId, InstanceState, InstanceView, PoolSize, PoolView, Signal, TrainerPhase,
};
use ebbtide_core::policy::{FleetPolicy, Market};
use ebbtide_core::scale::{Action, ScaleMemory, SizingTerms, plan_scale};
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::client::MemoryPort;
use ebbtide_queue::control::{ControlView, NodeRecord, NodeState, TrainerRecord, VersionRecord};
use ebbtide_queue::memory::ShardSettings;
use ebbtide_queue::status::ShardStatus;
use serde_json::json;

use super::*;
use crate::observe::{Reads, build};

const REPLICAS: u32 = 48;
const NODES_PER_REPLICA: u16 = 4;
const TICK: Duration = Duration::from_secs(5);
const TICKS_OF_A_DAY: u64 = 17_280;
/// Three stretches from one whole record to the next: what a day has 48 times as much of.
const TICKS: u64 = 3 * WHOLE_EVERY as u64;

const POLICY: &str = "
apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {name: day}
spec:
  staleness: {maxLag: 4}
  trainer: {groupsPerStep: 96, groupSize: 16}
  rollout: {nodesPerReplica: 4, maxReplicas: 64, concurrencyPerReplica: 64, pools: [spot]}
  pools:
    - {name: spot, provider: local, market: spot, maxNodes: 256, dollarsPerNodeHour: 20}
";

/// Everything that changes from tick to tick in a fleet at work, as far as numbers go.
fn reads(tick: u64, now: UnixMillis) -> Reads {
    let nodes = REPLICAS * u32::from(NODES_PER_REPLICA);
    // Some number below the limit, another one at each tick and for each node.
    let some = |number: u32, limit: u64| {
        let mixed = (tick * 7_919 + u64::from(number) * 104_729).wrapping_mul(2_654_435_761);
        (mixed >> 8) % limit
    };
    let name = |number: u32| format!("ip-10-0-{}-{}.ec2.internal", number / 250, number % 250);
    let id = |number: u32| format!("i-{number:017x}");
    let records = (0..nodes).map(|number| {
        let holder = format!("{}/boot/agent", name(number)).parse().expect("valid");
        let leads = number.is_multiple_of(NODES_PER_REPLICA.into());
        let in_flight = 40 + u32::try_from(some(number, 24)).expect("small");
        let replica = number / u32::from(NODES_PER_REPLICA);
        NodeRecord {
            replica: format!("replica-{replica}").parse().expect("valid"),
            instance_id: Some(id(number)),
            zone: Some("us-east-2a".to_owned()),
            instance_type: Some("p5en.48xlarge".to_owned()),
            market: Some(Market::Spot),
            in_flight: if leads { in_flight } else { 0 },
            tokens_per_second: if leads { some(number, 300_000) as f64 / 100.0 } else { 0.0 },
            generating: leads.then_some(in_flight - 3),
            capacity: leads.then_some(64),
            weights_version: Some(PolicyVersion(1)),
            heartbeat: now.minus(Duration::from_millis(some(number, 3_000))),
            ..NodeRecord::new(holder, NodeState::Ready)
        }
    });
    let instance = |number| InstanceView::new(InstanceId(id(number)), InstanceState::InService);
    let leases = (0..nodes)
        .step_by(NODES_PER_REPLICA.into())
        .map(|number| (name(number).parse().expect("valid"), 40 + some(number, 24)));
    let leases: BTreeMap<_, _> = leases.collect();
    let step = tick / 12;
    Reads {
        watched_for: Duration::from_mins(10),
        status: Ok(ShardStatus {
            now,
            ready: 6_000 + some(1, 900),
            leased: leases.values().sum(),
            leased_by_node: leases.into_iter().collect(),
            completed: 130 * tick + some(2, 100),
            sealed_waiting: 60 + some(3, 200),
            ..ShardStatus::default()
        }),
        view: Ok(ControlView {
            now,
            nodes: records.collect(),
            trainer: Some(TrainerRecord {
                phase: TrainerPhase::Train,
                step,
                groups_per_step: 96,
                nodes: None,
                incarnation: None,
                heartbeat: now.minus(Duration::from_millis(some(4, 900))),
            }),
            version: VersionRecord { version: PolicyVersion(step), ..VersionRecord::default() },
            ..ControlView::default()
        }),
        pools: vec![PoolView {
            name: "spot".parse().expect("valid"),
            size: Signal::fresh(PoolSize {
                desired: nodes,
                instances: (0..nodes).map(instance).collect(),
                ..PoolSize::default()
            }),
            activities: Signal::fresh(Activities::default()),
        }],
        service_pools: BTreeMap::new(),
        trainer_pool: None,
        gone: [].into(),
        problems: Vec::new(),
    }
}

fn recommended(action: Action) -> RecordedAction {
    RecordedAction { action, outcome: Outcome::Recommended }
}

fn decide(terms: &SizingTerms, memory: &mut ScaleMemory, tick: u64) -> Record {
    let now = UnixMillis(1_800_000_000_000).plus(TICK * u32::try_from(tick).expect("small"));
    let observation = build(&reads(tick, now), NODES_PER_REPLICA, now);
    let plan = plan_scale(terms, &observation, memory);
    *memory = plan.memory;
    Record {
        answered: Vec::new(),
        is_first: tick == 0,
        role: Role::Rollout,
        mode: "act".to_owned(),
        generation: 1,
        running: plan.running,
        wish: plan.wish,
        desired: plan.desired,
        actions: plan.actions.into_iter().map(recommended).collect(),
        reasons: plan.reasons.iter().map(ToString::to_string).collect(),
        bottleneck: plan.bottleneck.to_string(),
        held: None,
        trainer: None,
        observation,
    }
}

#[tokio::test]
async fn day_of_a_busy_fleet_is_kept_and_is_decided_the_same_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal.jsonl");
    let port = MemoryPort::new(1, ShardSettings::default(), || UnixMillis(1));
    let queue = WorkQueue::new(Arc::new(port));
    let policy = FleetPolicy::parse(POLICY, "day").expect("valid");
    let (terms, mut memory) = (SizingTerms::from(&policy), ScaleMemory::default());
    let mut journal = Journal::new(Some(path.clone()));
    for tick in 0..TICKS {
        let record = decide(&terms, &mut memory, tick);
        journal.record(&record, &json!({}), &queue).await;
    }
    let text = std::fs::read_to_string(&path).expect("written");
    let day = u64::try_from(text.len()).expect("small") * (TICKS_OF_A_DAY / TICKS);
    // A file that begins ends the oldest one.
    let kept = file::FILE_LIMIT_BYTES * u64::from(file::FILES_KEPT - 1);
    assert!(day < kept / 4, "{day} of {kept} bytes");
    let stream = queue.journal(1_000).await.expect("memory");
    let lengths = stream.iter().map(|line| line.line.len()).sum::<usize>();
    let day = u64::try_from(lengths).expect("small") * (TICKS_OF_A_DAY / TICKS);
    assert!(day < STREAM_LIMIT_BYTES, "{day} of {STREAM_LIMIT_BYTES} bytes");

    let of_stream = stream.iter().rev().map(|line| line.line.as_str());
    for lines in [text.lines().collect::<Vec<_>>(), of_stream.collect()] {
        let (mut decoder, mut replay) = (Decoder::default(), Replay::new([terms.clone()]));
        let mut actions = 0;
        for line in lines {
            let record = decoder.decode(line).expect("a record").expect("its base is there");
            let step = replay.step(&record).expect("its group is known");
            assert!(!step.differs, "{:?}\n{}", record.actions, step.plan);
            actions += record.actions.len();
        }
        assert!(actions > 0, "the day is worth a replay");
    }
}
