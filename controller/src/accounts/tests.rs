//! Laws of who keeps the ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ebbtide_core::observation::{PoolSize, PoolView, Signal};
use ebbtide_core::policy::FleetPolicy;
use ebbtide_core::scale::{ScaleMemory, plan_scale};
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::client::MemoryPort;
use ebbtide_queue::memory::ShardSettings;

use super::*;
use crate::observe;

const POLICY: &str = "
apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {name: run}
spec:
  trainer: {groupsPerStep: 2, groupSize: 1}
  rollout: {minReplicas: 2, maxReplicas: 4, pools: [spot]}
  pools:
    - {name: spot, provider: local, market: spot, maxNodes: 8, dollarsPerNodeHour: 3600}
";

struct Scene {
    queue: WorkQueue,
    terms: SizingTerms,
    now: UnixMillis,
}

impl Scene {
    fn new() -> Self {
        let policy = FleetPolicy::parse(POLICY, "p").expect("valid");
        let port = MemoryPort::new(1, ShardSettings::default(), || UnixMillis(1));
        Self {
            queue: WorkQueue::new(Arc::new(port)),
            terms: SizingTerms::from(&policy),
            now: UnixMillis(1_000_000),
        }
    }

    /// A tick of five seconds, for one that leads or does not.
    async fn tick(&mut self, accounts: &mut Accounts, leads: bool) {
        let view = self.queue.view().await.map_err(|error| error.to_string());
        self.tick_with(accounts, leads, view).await;
    }

    async fn tick_with(
        &mut self,
        accounts: &mut Accounts,
        leads: bool,
        view: Result<ebbtide_queue::control::ControlView, String>,
    ) {
        self.now = self.now.plus(Duration::from_secs(5));
        let reads = Reads {
            watched_for: Duration::ZERO,
            status: Err("not asked".to_owned()),
            view,
            pools: vec![PoolView {
                name: "spot".parse().expect("a name"),
                size: Signal::fresh(PoolSize::default()),
                activities: Signal::unknown("not asked"),
            }],
            service_pools: BTreeMap::new(),
            trainer_pool: None,
            gone: BTreeSet::new(),
            problems: Vec::new(),
        };
        let seen = observe::build(&reads, 1, self.now);
        let generation = leads.then_some(1);
        let plan = plan_scale(&self.terms, &seen, &ScaleMemory::default());
        accounts.keep(&reads, (&self.terms, &[]), &seen, &plan, (&self.queue, generation)).await;
    }

    async fn kept(&self) -> Option<Ledger> {
        self.queue.view().await.expect("memory").ledger
    }
}

#[tokio::test(start_paused = true)]
async fn next_leader_goes_on_where_the_last_one_ended() {
    let mut scene = Scene::new();
    let (mut first, mut second) = (Accounts::default(), Accounts::default());
    scene.tick(&mut first, true).await;
    let begun = scene.kept().await.expect("it is written at once");
    scene.tick(&mut second, false).await;
    assert_eq!(second.ledger(), Some(&begun), "the other one shows it");
    for _ in 0..3 {
        scene.tick(&mut first, true).await;
    }
    assert_eq!(scene.kept().await, Some(begun), "not at each tick");
    tokio::time::advance(WRITE_EVERY).await;
    scene.tick(&mut first, true).await;
    let left = scene.kept().await.expect("written");
    assert!(left.counted_to > begun.counted_to);

    scene.tick(&mut second, true).await;
    let taken_over = scene.kept().await.expect("written");
    assert_eq!(taken_over.began_at, begun.began_at);
    assert_eq!(taken_over.counted_to, scene.now);
    let seconds = taken_over.counted_to.since(taken_over.began_at).as_secs_f64();
    let of_a_node = taken_over.spot_node_dollars;
    assert!((of_a_node - seconds).abs() < 1e-6, "a dollar a second, each once: {taken_over:?}");
}

#[tokio::test(start_paused = true)]
async fn ledger_that_cannot_be_read_is_not_begun_anew() {
    let mut scene = Scene::new();
    scene.tick(&mut Accounts::default(), true).await;
    let begun = scene.kept().await;
    let mut next = Accounts::default();
    scene.tick_with(&mut next, true, Err("no answer".to_owned())).await;
    assert_eq!((next.ledger(), scene.kept().await), (None, begun));
    scene.tick(&mut next, true).await;
    assert_eq!(scene.kept().await.map(|ledger| ledger.began_at), begun.map(|b| b.began_at));
}

#[tokio::test(start_paused = true)]
async fn ledger_of_a_leader_that_was_followed_by_another_is_refused() {
    let mut scene = Scene::new();
    let mut outdated = Accounts::default();
    scene.tick(&mut outdated, true).await;
    let kept = scene.kept().await;
    assert!(kept.is_some());
    assert!(scene.queue.claim(2, "lead").await.expect("memory"));
    tokio::time::advance(WRITE_EVERY).await;
    scene.tick(&mut outdated, true).await;
    assert_eq!(scene.kept().await, kept);
}
