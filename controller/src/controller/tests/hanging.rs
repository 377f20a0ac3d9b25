//! A provider that does not answer.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use ebbtide_core::observation::{InstanceId, PoolView};
use ebbtide_core::policy::{Market, Pool};
use ebbtide_queue::client::MemoryPort;
use ebbtide_queue::memory::ShardSettings;
use tokio::sync::Notify;

use super::super::*;
use super::world::{config, outside, paused_clock};
use crate::capacity::CapacityError;
use crate::capacity::local::{LocalCapacity, LocalPool};
use crate::leader::MemoryLease;

/// Two pools that are alike, of which `z1` gives no answer while it hangs.
struct Hanging {
    local: LocalCapacity,
    hangs: AtomicBool,
    /// Waits that long before it answers.
    takes: Duration,
    asked: Mutex<Vec<String>>,
    is_over: Notify,
}

impl Hanging {
    async fn answer(&self, pool: &Pool) {
        self.asked.lock().expect("no panic").push(pool.name.to_string());
        if pool.name.as_str() == "z1" && self.hangs.load(Ordering::Relaxed) {
            self.is_over.notified().await;
        }
        tokio::time::sleep(self.takes).await;
    }

    fn asked(&self, pool: &str) -> usize {
        self.asked.lock().expect("no panic").iter().filter(|name| *name == pool).count()
    }
}

/// What the controller has; tests keep the other end.
struct Shared(Arc<Hanging>);

#[async_trait]
impl Capacity for Shared {
    async fn observe(&self, pools: &[&Pool]) -> Vec<PoolView> {
        self.0.local.observe(pools).await
    }

    async fn find_gone(
        &self,
        pools: &[&Pool],
        instances: &[InstanceId],
    ) -> Result<BTreeSet<InstanceId>, CapacityError> {
        self.0.local.find_gone(pools, instances).await
    }

    async fn raise(&self, pool: &Pool, from: u32, to: u32, gang: u32) -> Result<(), CapacityError> {
        self.0.answer(pool).await;
        self.0.local.raise(pool, from, to, gang).await
    }

    async fn terminate(&self, pool: &Pool, instances: &[InstanceId]) -> Result<(), CapacityError> {
        self.0.answer(pool).await;
        self.0.local.terminate(pool, instances).await
    }
}

fn policy() -> FleetPolicy {
    let text = "apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {name: run}
spec:
  mode: act
  trainer: {groupsPerStep: 2, groupSize: 1}
  rollout:
    minReplicas: 2
    maxReplicas: 4
    pools: [z1, z2]
    tick: 1s
  pools:
    - {name: z1, provider: local, market: spot, maxNodes: 4}
    - {name: z2, provider: local, market: spot, maxNodes: 4}
";
    FleetPolicy::parse(text, "test").expect("valid")
}

/// A controller of these two pools.
fn start(hangs: bool, takes: Duration) -> (Arc<Hanging>, ControllerStatus, CancellationToken) {
    let pool = |name: &str| LocalPool {
        name: name.parse().expect("valid"),
        market: Market::Spot,
        zone: None,
        initial_nodes: 0,
        limit: 4,
    };
    let pools = vec![pool("z1"), pool("z2")];
    let local = LocalCapacity::new(pools, Duration::from_secs(3), paused_clock);
    let hanging = Arc::new(Hanging {
        local: local.clone(),
        hangs: AtomicBool::new(hangs),
        takes,
        asked: Mutex::default(),
        is_over: Notify::new(),
    });
    let memory = MemoryPort::new(1, ShardSettings::default(), paused_clock);
    let queue = QueueSource::Ready(WorkQueue::new(Arc::new(memory)));
    let status = ControllerStatus::default();
    let outside = outside(queue, local, MemoryLease::default(), status.clone());
    let outside = Outside { capacity: Arc::new(Shared(hanging.clone())), ..outside };
    let shutdown = CancellationToken::new();
    let (config, ended) = (config(policy()), shutdown.clone());
    tokio::spawn(async move { run(config, outside, ended).await.expect("ends well") });
    (hanging, status, shutdown)
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let waits = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(300), waits).await.expect(what);
}

/// Case T23 of autoscaling: a call that hangs.
#[tokio::test(start_paused = true)]
async fn call_that_hangs_keeps_neither_the_loop_nor_the_fleet_waiting() {
    let (hanging, status, shutdown) = start(true, Duration::ZERO);
    until("z2 is raised", || hanging.local.nodes().iter().any(|n| n.pool.as_str() == "z2")).await;
    let before = status.snapshot().ticks;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let ticks = status.snapshot().ticks - before;
    assert!((58..=61).contains(&ticks), "one each second: {ticks}");
    assert_eq!(hanging.asked("z1"), 1, "its call ended after 10 s, and it is left out");
    let nodes = hanging.local.nodes();
    let places: Vec<&str> = nodes.iter().map(|node| node.pool.as_str()).collect();
    assert_eq!(places, ["z2", "z2"], "what it did not give comes from elsewhere");
    assert!(status.snapshot().reasons.concat().contains("pool z1 is benched"));
    shutdown.cancel();
}

#[tokio::test(start_paused = true)]
async fn answer_that_comes_after_its_turn_is_taken_note_of_once() {
    let (hanging, status, shutdown) = start(false, Duration::from_millis(3500));
    until("both are raised", || hanging.local.nodes().len() == 2).await;
    until("nothing is left to do", || status.snapshot().actions.is_empty()).await;
    let snapshot = status.snapshot();
    assert_eq!((hanging.asked("z1"), hanging.asked("z2")), (1, 1), "one call at a time");
    assert_eq!(snapshot.scale_decisions, 2, "{snapshot:?}");
    assert!(snapshot.last_decision.as_deref().is_some_and(|text| text.starts_with("raise pool")));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let snapshot = status.snapshot();
    let told = snapshot.reasons.iter().any(|reason| reason.contains("somebody else"));
    assert!(!told && snapshot.actions.is_empty(), "its own size is no stranger's: {snapshot:?}");
    shutdown.cancel();
}
