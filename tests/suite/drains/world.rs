//! Nodes of a run on a real Redis: each a real `ebbtide agent`, with a metadata service and an
//! engine that outlive it, as those of a real node do.

use std::sync::Arc;

use ebbtide_agent::emulator::engine::{EngineConfig, EngineEmulator, ResponseLengths};
use ebbtide_agent::emulator::imds::SpotAction;
use ebbtide_agent::emulator::{ImdsEmulator, InstanceIdentity};
use ebbtide_harness::{Program, Redis, until};
use ebbtide_queue::control::{NodeRecord, NodeState};
use ebbtide_queue::state::{SlotState, UnitSnapshot};
use tempfile::TempDir;

use crate::operator::world::Run;
use crate::programs::*;

/// Units of a run; nodes have room for four.
pub const UNITS: usize = 4;

/// Responses that no node ends by itself within a test: an heir does, at another speed.
fn engine_at(tokens_per_second: f64) -> EngineConfig {
    EngineConfig {
        tokens_per_second,
        lengths: ResponseLengths { mean: 1_500.0, spread: 0.1 },
        weights_label: "1".to_owned(),
        ..EngineConfig::default()
    }
}

fn policy(run: &str) -> String {
    format!(
        "apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {{name: {run}}}
spec:
  queue: {{shards: 2, lease: 5s, renewEvery: 1s}}
  staleness: {{maxLag: 4}}
  trainer: {{groupsPerStep: 1, groupSize: {UNITS}}}
  rollout: {{maxReplicas: 4, pools: [local], concurrencyPerReplica: {UNITS}}}
  pools: [{{name: local, provider: local, market: spot, maxNodes: 4}}]
"
    )
}

/// A run whose only group waits for nodes.
pub struct Fleet {
    pub run: Run,
    policy: String,
    _folder: TempDir,
}

impl Fleet {
    pub async fn begin(redis: &Redis, name: &str) -> Self {
        let run = Run::begin(redis, name).await;
        let folder = tempfile::tempdir().unwrap();
        let policy = policy_file(folder.path(), &policy(name));
        let fleet = Self { run, policy, _folder: folder };
        fleet.give_work().await;
        fleet
    }

    /// What a trainer does at its start.
    pub async fn give_work(&self) {
        publish_version(&self.run.queue, 1).await;
        self.run.queue.enqueue(group(0, UNITS as u16, 2_000)).await.expect("enqueued");
    }

    /// Starts a node that makes so many tokens a second of each response.
    pub fn node(&self, name: &str, tokens_per_second: f64) -> Node {
        let identity = InstanceIdentity::spot(format!("i-{name}"), "us-east-2b");
        let imds = ImdsEmulator::start(identity).unwrap();
        let engine = EngineEmulator::start(engine_at(tokens_per_second)).unwrap();
        let (agent, _) = AgentProgram {
            run: &self.run.name,
            node: name,
            redis: &self.run.url,
            imds: &imds.base_url(),
            engine: &engine.base_url(),
            policy: &self.policy,
            kubeconfig: None,
        }
        .start();
        Node { name: name.to_owned(), agent, imds, engine: Arc::new(engine) }
    }

    /// A node at work on all units.
    pub async fn busy_node(&self, name: &str) -> Node {
        let node = self.node(name, 10.0);
        let what = format!("{name} at work on all units");
        let works = |unit: &UnitSnapshot| unit.holder.is_some() && unit.tokens > 4;
        self.units(&what, &[&node], works).await;
        node
    }

    /// Waits until every unit looks like this.
    pub async fn units(
        &self,
        what: &str,
        nodes: &[&Node],
        is_wanted: impl Fn(&UnitSnapshot) -> bool,
    ) -> Vec<UnitSnapshot> {
        let all = |units: &[UnitSnapshot]| units.len() == UNITS && units.iter().all(&is_wanted);
        let units = units_become(&self.run.queue, what, all).await;
        units.unwrap_or_else(|error| panic!("{error}\n{}", logs(nodes)))
    }

    /// Waits until a node has reported this state.
    pub async fn state(&self, node: &Node, state: NodeState) -> NodeRecord {
        let is_it = |record: &&NodeRecord| record.node.as_str() == node.name;
        let what = format!("{} to be {state:?}", node.name);
        let view = view_becomes(&self.run.queue, &what, |view| {
            view.nodes.iter().find(is_it).is_some_and(|record| record.state == state)
        });
        let view = view.await.unwrap_or_else(|error| panic!("{error}\n{}", logs(&[node])));
        view.nodes.iter().find(is_it).unwrap().clone()
    }

    /// All units are back with their tokens, each handed back so often; none was lost, and nobody
    /// had to wait for a lease.
    pub async fn work_is_back(&self, node: &Node, hand_backs: u16) {
        let is_back = |unit: &UnitSnapshot| unit.state == SlotState::Enqueued;
        for unit in self.units("all units to be back", &[node], is_back).await {
            let counts = (unit.hand_backs, unit.attempts, unit.infra_attempts);
            assert_eq!(counts, (hand_backs, 0, 0), "{unit:?}\n{}", node.agent.log());
            assert!(unit.tokens > 4, "{unit:?}");
        }
    }

    /// An heir, or a node that works again, ends all responses: none differs from one that was
    /// never broken off, and no token that was stored was made twice.
    pub async fn is_finished_by(&self, node: &Node) {
        node.engine.handle().set_tokens_per_second(3_000.0);
        let taken = until("the group to be sealed", EVENT_LIMIT, || async {
            self.run.queue.take("trainer", 1).await.ok()?.pop()
        });
        let taken = taken.await.unwrap_or_else(|error| panic!("{error}\n{}", logs(&[node])));
        for sample in &taken.samples {
            let expected = engine_at(1.0).expected_response(&taken.group, sample.unit.slot);
            assert_eq!(sample.token_ids(), expected, "{}", sample.unit);
            assert_eq!(sample.attempts, 0);
        }
        let status = status(&self.run.queue).await;
        assert_eq!(status.tokens.wasted_total(), 0);
        assert_eq!((status.completed, status.in_system()), (UNITS as u64, 0));
    }
}

fn logs(nodes: &[&Node]) -> String {
    nodes.iter().map(|node| format!("{}:\n{}\n", node.name, node.agent.log())).collect()
}

/// A node whose agent runs, or was killed.
pub struct Node {
    pub name: String,
    pub agent: Program,
    pub imds: ImdsEmulator,
    pub engine: Arc<EngineEmulator>,
}

impl Node {
    /// AWS takes it in so many seconds.
    pub fn announce(&self, seconds: i64) {
        let time = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(seconds);
        self.imds.handle().announce_spot(SpotAction::Terminate, time);
    }

    /// Waits until its agent has said this.
    pub async fn says(&mut self, text: &str) {
        let said = self.agent.logged(text, EVENT_LIMIT).await;
        said.unwrap_or_else(|error| panic!("{error}"));
    }

    /// The agent is killed, and its successor begins at once.
    pub fn replace_agent(&mut self) {
        self.agent.kill();
        self.agent.start_again().expect("starts");
    }
}
