//! Providers of pods on an API server that is slow, throttles, loses answers, or is away.

use std::sync::Arc;
use std::time::Duration;

use ebbtide_controller::capacity::mixed::MixedCapacity;
use ebbtide_controller::capacity::scale::ScaleCapacity;
use ebbtide_controller::capacity::workers::WorkersCapacity;
use ebbtide_controller::capacity::{Capacity, CapacityError};
use ebbtide_core::policy::ProviderKind;
use ebbtide_harness::{ControlPlane, LwsController, require};
use serde_json::json;

use super::world::{World, in_service, look, pool};
use crate::lane::faulty::{Fault, Faulty};

const SCALE: &str = "provider: scale, scale: {kind: StatefulSet, name: ep}";

#[tokio::test]
async fn trouble_with_the_api_server_makes_a_size_unknown_and_writes_nothing_twice() {
    let world = World::new(require!(ControlPlane::shared().await), "trouble-set", 3).await;
    world
        .create(&json!({
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": { "name": "ep" },
            "spec": {
                "replicas": 1,
                "serviceName": "ep",
                "selector": { "matchLabels": { "app": "ep" } },
                "template": world.pod(),
            },
        }))
        .await;
    let way = Faulty::start(world.client.clone()).await;
    let capacity: Arc<dyn Capacity> = Arc::new(ScaleCapacity::new(way.client(), &world.space));
    let pool = pool(SCALE);
    in_service(&capacity, &pool, 1).await;
    for fault in [Fault::Throttles, Fault::LosesAnswers] {
        way.set(fault);
        let view = look(&capacity, &pool).await;
        assert!(view.size.known().is_none() && view.activities.known().is_none(), "{view:?}");
        let error = capacity.raise(&pool, 1, 2, 1).await.unwrap_err();
        assert!(error.is_retriable(), "{error}");
    }
    way.set(Fault::Slow(Duration::from_millis(300)));
    capacity.raise(&pool, 1, 2, 1).await.unwrap();
    way.set(Fault::Away);
    let began_at = tokio::time::Instant::now();
    assert!(look(&capacity, &pool).await.size.known().is_none());
    assert!(began_at.elapsed() < Duration::from_secs(15), "{:?}", began_at.elapsed());
    way.set(Fault::None);
    in_service(&capacity, &pool, 2).await;
    assert_eq!(world.get("statefulset", "ep").await["spec"]["replicas"], 2);
}

#[tokio::test]
async fn copy_whose_making_was_not_answered_is_found_and_not_made_again() {
    let cluster = require!(ControlPlane::shared().await);
    require!(LwsController::start(&cluster).await);
    let world = World::new(cluster, "trouble-groups", 4).await;
    world
        .create(&json!({
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": { "name": "ep" },
            "spec": {
                "replicas": 0,
                "leaderWorkerTemplate": { "size": 2, "workerTemplate": world.pod() },
            },
        }))
        .await;
    let way = Faulty::start(world.client.clone()).await;
    let faulty = WorkersCapacity::new(way.client(), &world.space);
    let well = WorkersCapacity::new(world.client.clone(), &world.space);
    let groups = pool("provider: workers, workers: {template: ep}");
    // The reads are answered, and the answer to the creation is lost.
    way.set_for_writes(Fault::LosesAnswers);
    assert!(faulty.raise(&groups, 0, 2, 2).await.unwrap_err().is_retriable());
    let moved = well.raise(&groups, 0, 2, 2).await.unwrap_err();
    assert!(matches!(moved, CapacityError::Moved { got: 2, .. }), "{moved}");
    assert_eq!(world.list("leaderworkersets").await.len(), 2, "the template and one copy");

    // Pools of a provider that is away leave those of others their sizes.
    way.set(Fault::Away);
    let mixed = MixedCapacity::default()
        .with(ProviderKind::Scale, ScaleCapacity::new(way.client(), &world.space))
        .with(ProviderKind::Workers, well);
    let sets = pool(SCALE);
    let groups = ebbtide_core::policy::Pool { name: "groups".parse().unwrap(), ..groups };
    let views = mixed.observe(&[&sets, &groups]).await;
    assert!(views[0].size.known().is_none());
    assert_eq!(views[1].size.known().map(|size| size.desired), Some(2));
}
