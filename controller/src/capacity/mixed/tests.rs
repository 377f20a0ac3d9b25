//! Each provider has its own pools, and no part in what befalls another.

use std::time::Duration;

use ebbtide_core::observation::{InstanceState, InstanceView, PoolSize, Signal};
use ebbtide_core::policy::{Market, Provider, ScaleTarget, ScaledKind, WorkersTemplate};

use super::*;
use crate::capacity::local::{LocalCapacity, LocalPool};

/// A provider that knows one node, or never answers.
struct Played {
    knows: Option<&'static str>,
}

#[async_trait]
impl Capacity for Played {
    async fn observe(&self, pools: &[&Pool]) -> Vec<PoolView> {
        let Some(name) = self.knows else { return std::future::pending().await };
        let view = |pool: &&Pool| PoolView {
            size: Signal::fresh(PoolSize {
                desired: 1,
                instances: vec![InstanceView::new(id(name), InstanceState::InService)],
                ..PoolSize::default()
            }),
            ..PoolView::unread(pool.name.clone(), "not asked")
        };
        pools.iter().map(view).collect()
    }

    async fn find_gone(
        &self,
        _: &[&Pool],
        instances: &[InstanceId],
    ) -> Result<BTreeSet<InstanceId>, CapacityError> {
        let Some(name) = self.knows else { return Err(away()) };
        Ok(instances.iter().filter(|other| **other != id(name)).cloned().collect())
    }

    async fn raise(&self, _: &Pool, _: u32, _: u32, _: u32) -> Result<(), CapacityError> {
        self.knows.map(drop).ok_or_else(away)
    }

    async fn terminate(&self, _: &Pool, _: &[InstanceId]) -> Result<(), CapacityError> {
        self.knows.map(drop).ok_or_else(away)
    }
}

fn away() -> CapacityError {
    CapacityError::Unavailable { what: "it".to_owned(), problem: "away".to_owned() }
}

fn id(name: &str) -> InstanceId {
    InstanceId(name.to_owned())
}

fn pool(name: &str, provider: Provider) -> Pool {
    Pool {
        name: name.parse().expect("valid"),
        provider,
        market: Market::Spot,
        instance_type: None,
        zone: None,
        max_nodes: 8,
        dollars_per_node_hour: None,
        reservation: None,
    }
}

/// Pools `here` (local), `set` (scale) and `groups` (workers), in an order of their own.
fn pools() -> [Pool; 3] {
    let name = || "ep".parse().expect("valid");
    let (namespace, unschedulable_timeout) = (None, Duration::from_mins(5));
    let kind = ScaledKind::StatefulSet;
    let target =
        ScaleTarget { kind, name: name(), namespace: namespace.clone(), unschedulable_timeout };
    let template = WorkersTemplate { template: name(), namespace, unschedulable_timeout };
    [
        pool("set", Provider::Scale(target)),
        pool("here", Provider::Local),
        pool("groups", Provider::Workers(template)),
    ]
}

fn local() -> LocalCapacity {
    let pool = LocalPool {
        name: "here".parse().expect("valid"),
        market: Market::Spot,
        zone: None,
        initial_nodes: 2,
        limit: 8,
    };
    LocalCapacity::new(vec![pool], Duration::ZERO, || ebbtide_core::time::UnixMillis(0))
}

#[tokio::test(start_paused = true)]
async fn provider_that_hangs_or_is_absent_leaves_the_others_their_views() {
    let mixed = MixedCapacity::default()
        .with(ProviderKind::Local, local())
        .with(ProviderKind::Scale, Played { knows: None });
    let pools = pools();
    let views = mixed.observe(&pools.each_ref()).await;
    let names: Vec<&str> = views.iter().map(|view| view.name.as_str()).collect();
    assert_eq!(names, ["set", "here", "groups"], "in the order of preference");
    assert_eq!(views[0].size.why_unknown(), Some("no answer within 17s"));
    assert_eq!(views[1].size.known().map(|size| size.desired), Some(2));
    let why = views[2].size.why_unknown().expect("nobody serves it");
    assert_eq!(why, "pool groups needs provider workers, which this controller runs without");
}

#[tokio::test(start_paused = true)]
async fn writes_go_to_the_provider_of_the_pool_alone() {
    let mixed = MixedCapacity::default()
        .with(ProviderKind::Local, local())
        .with(ProviderKind::Scale, Played { knows: None });
    let [set, here, groups] = pools();
    mixed.raise(&here, 2, 3, 1).await.expect("it has room");
    assert!(mixed.raise(&set, 2, 3, 1).await.expect_err("it is away").is_retriable());
    assert!(!mixed.terminate(&groups, &[]).await.expect_err("nobody serves it").is_retriable());
    let views = mixed.observe(&[&here]).await;
    assert_eq!(views[0].size.known().map(|size| size.desired), Some(3));
}

#[tokio::test(start_paused = true)]
async fn what_one_provider_knows_is_not_gone() {
    let mixed = MixedCapacity::default()
        .with(ProviderKind::Workers, Played { knows: Some("i-groups") })
        .with(ProviderKind::Scale, Played { knows: Some("i-set") });
    let asked = ["i-set", "i-groups", "i-nobody"].map(id);
    let pools = pools();
    let [set, _, groups] = pools.each_ref();
    let gone = mixed.find_gone(&[set, groups], &asked).await.expect("both answer");
    assert_eq!(gone, BTreeSet::from([id("i-nobody")]));
    let mixed = mixed.with(ProviderKind::Scale, Played { knows: None });
    assert!(mixed.find_gone(&[set, groups], &asked).await.is_err(), "nobody can say");
    let gone = mixed.find_gone(&[groups], &asked).await.expect("the other is not in use");
    assert_eq!(gone.len(), 2);
}
