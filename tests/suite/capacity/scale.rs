//! Provider `scale` on the real API server, with the real controllers of what is scaled.

use std::sync::Arc;

use ebbtide_controller::capacity::scale::ScaleCapacity;
use ebbtide_controller::capacity::{Capacity, CapacityError};
use ebbtide_core::observation::{FailureKind, InstanceId};
use ebbtide_harness::{ControlPlane, LwsController, require, until};
use serde_json::{Value, json};

use super::world::{World, ids, in_service, leader_worker_set, look, pool, size_becomes};
use crate::lane::faulty::Faulty;
use crate::programs::EVENT_LIMIT;

fn capacity(world: &World) -> Arc<dyn Capacity> {
    Arc::new(ScaleCapacity::new(world.client.clone(), &world.space))
}

fn workload(world: &World, kind: &str, replicas: u32) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": { "name": "ep" },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": "ep" } },
            "template": world.pod(),
        },
    })
}

fn stateful_set(world: &World, replicas: u32) -> Value {
    let mut set = workload(world, "StatefulSet", replicas);
    set["spec"]["podManagementPolicy"] = json!("Parallel");
    set["spec"]["serviceName"] = json!("ep");
    set
}

const STATEFUL_SET: &str = "provider: scale, scale: {kind: StatefulSet, name: ep}";

#[tokio::test]
async fn stateful_set_is_raised_by_number_and_lowered_from_its_highest_ordinal() {
    let world = World::new(require!(ControlPlane::shared().await), "scale-set", 4).await;
    let (capacity, pool) = (capacity(&world), pool(STATEFUL_SET));
    let why = look(&capacity, &pool).await;
    assert_eq!(why.size.why_unknown(), Some("there is no StatefulSet ep"));
    world.create(&stateful_set(&world, 1)).await;
    in_service(&capacity, &pool, 1).await;
    capacity.raise(&pool, 1, 3, 1).await.unwrap();
    let three = in_service(&capacity, &pool, 3).await;
    assert!(three.iter().all(|one| one.node.is_some()), "{three:?}");
    let again = capacity.raise(&pool, 1, 3, 1).await.unwrap_err();
    assert!(matches!(again, CapacityError::Moved { got: 3, .. }), "a lost reply: {again}");

    let out_of_turn = capacity.terminate(&pool, &[three[1].id.clone()]).await.unwrap_err();
    assert!(out_of_turn.to_string().contains("ep-2 would go first"), "{out_of_turn}");
    assert_eq!(world.get("statefulset", "ep").await["spec"]["replicas"], 3);
    for _ in 0..2 {
        capacity.terminate(&pool, &[three[2].id.clone()]).await.unwrap();
        assert_eq!(ids(&in_service(&capacity, &pool, 2).await), ids(&three[..2]));
    }
    assert_eq!(world.get("statefulset", "ep").await["spec"]["replicas"], 2, "once");
}

/// However many go, and however many there are.
#[tokio::test]
async fn pods_are_listed_once_for_all_that_go_together() {
    let world = World::new(require!(ControlPlane::shared().await), "scale-calls", 5).await;
    let way = Faulty::start(world.client.clone()).await;
    let capacity: Arc<dyn Capacity> = Arc::new(ScaleCapacity::new(way.client(), &world.space));
    let pool = pool(STATEFUL_SET);
    world.create(&stateful_set(&world, 5)).await;
    let five = in_service(&capacity, &pool, 5).await;
    way.take_asked();
    let last: Vec<InstanceId> = five[2..].iter().map(|one| one.id.clone()).collect();
    capacity.terminate(&pool, &last).await.unwrap();
    let (pods, set) = (
        format!("/api/v1/namespaces/{}/pods", world.space),
        format!("/apis/apps/v1/namespaces/{}/statefulsets/ep", world.space),
    );
    let expected = [
        format!("GET {set}/scale"),
        format!("GET {set}"),
        format!("GET {pods}"),
        format!("PUT {set}/scale"),
    ];
    assert_eq!(way.take_asked(), expected);
    in_service(&capacity, &pool, 2).await;
}

#[tokio::test]
async fn groups_are_raised_and_lowered_whole() {
    let cluster = require!(ControlPlane::shared().await);
    require!(LwsController::start(&cluster).await);
    let world = World::new(cluster, "scale-groups", 6).await;
    let (capacity, pool) =
        (capacity(&world), pool("provider: scale, scale: {kind: LeaderWorkerSet, name: ep}"));
    world.create(&leader_worker_set(1, &world.pod())).await;
    in_service(&capacity, &pool, 2).await;
    let part = capacity.raise(&pool, 2, 5, 1).await.unwrap_err();
    assert!(part.to_string().contains("nodesPerReplica must be 2") && !part.is_retriable());
    capacity.raise(&pool, 2, 6, 1).await.unwrap();
    let six = in_service(&capacity, &pool, 6).await;
    let group = |index: &str| {
        let own = six.iter().filter(|one| one.group.as_deref() == Some(index));
        own.map(|one| one.id.clone()).collect::<Vec<InstanceId>>()
    };
    capacity.terminate(&pool, &group("1")).await.unwrap_err();
    let last = group("2");
    capacity.terminate(&pool, &last[..1]).await.unwrap_err();
    capacity.terminate(&pool, &last).await.unwrap();
    let four = ids(&in_service(&capacity, &pool, 4).await);
    assert!(last.iter().all(|id| !four.contains(id)) && four.is_subset(&ids(&six)));
}

#[tokio::test]
async fn deployment_loses_exactly_the_pod_that_was_named() {
    let world = World::new(require!(ControlPlane::shared().await), "scale-deploy", 4).await;
    let (capacity, pool) =
        (capacity(&world), pool("provider: scale, scale: {kind: Deployment, name: ep}"));
    world.create(&workload(&world, "Deployment", 4)).await;
    let mut left = in_service(&capacity, &pool, 4).await;
    until("all to be ready", EVENT_LIMIT, || async {
        let ready = world.get("deployment", "ep").await["status"]["readyReplicas"].clone();
        (ready == 4).then_some(())
    })
    .await
    .unwrap();
    for place in [1, 2] {
        let victim = left.remove(place).id;
        capacity.terminate(&pool, &[victim]).await.unwrap();
        let now = in_service(&capacity, &pool, left.len()).await;
        assert_eq!(ids(&now), ids(&left));
    }
}

#[tokio::test]
async fn somebody_else_who_scales_is_seen_and_not_overwritten() {
    let world = World::new(require!(ControlPlane::shared().await), "scale-others", 3).await;
    let (capacity, pool) = (capacity(&world), pool(STATEFUL_SET));
    world.create(&stateful_set(&world, 1)).await;
    in_service(&capacity, &pool, 1).await;
    world.kubectl(&["scale", "statefulset", "ep", "--replicas=2"]).await;
    let moved = capacity.raise(&pool, 1, 3, 1).await.unwrap_err();
    assert!(matches!(moved, CapacityError::Moved { got: 2, .. }) && moved.is_retriable());
    in_service(&capacity, &pool, 2).await;
    // Two leaders at a time: one of them wins, and the other one's number does not count.
    let (one, other) = tokio::join!(capacity.raise(&pool, 2, 3, 1), capacity.raise(&pool, 2, 4, 1));
    assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
    let expected = if one.is_ok() { 3 } else { 4 };
    assert_eq!(world.get("statefulset", "ep").await["spec"]["replicas"], expected);
}

#[tokio::test]
async fn pods_that_no_node_can_take_are_missing_capacity_and_go_before_a_drained_one() {
    let world = World::new(require!(ControlPlane::shared().await), "scale-short", 2).await;
    let provider = STATEFUL_SET.replace("name: ep", "name: ep, unschedulableTimeout: 1s");
    let (capacity, pool) = (capacity(&world), pool(&provider));
    // One after the other: the third waits for a node, and the fourth is not made.
    let mut set = stateful_set(&world, 4);
    set["spec"]["podManagementPolicy"] = json!("OrderedReady");
    world.create(&set).await;
    let two = in_service(&capacity, &pool, 2).await;
    let failure = until("a failed launch", EVENT_LIMIT, || async {
        let view = look(&capacity, &pool).await;
        view.activities.known()?.failures.first().cloned()
    })
    .await
    .unwrap();
    assert_eq!(failure.kind, FailureKind::Capacity);
    assert!(failure.message.contains("nodes are available"), "{}", failure.message);
    let size = size_becomes(&capacity, &pool, "four are wanted", |_| true).await;
    assert_eq!(size.desired, 4);

    // Those that wait go one by one, and then the one that was named, whichever has a node.
    let victim = two.iter().min_by_key(|one| one.removal_rank).unwrap().id.clone();
    let lower = async || {
        capacity.terminate(&pool, std::slice::from_ref(&victim)).await.unwrap();
        world.get("statefulset", "ep").await["spec"]["replicas"].as_u64().unwrap()
    };
    let mut sizes = vec![lower().await];
    while sizes.last().is_some_and(|size| *size > 0) && sizes.len() < 4 {
        let before = *sizes.last().unwrap();
        let now = lower().await;
        if now == before {
            break;
        }
        sizes.push(now);
    }
    assert_eq!(sizes, [3, 2, 1]);
    let left = in_service(&capacity, &pool, 1).await;
    assert!(left.iter().all(|one| one.id != victim));
}

#[tokio::test]
async fn instance_is_gone_when_the_cluster_has_no_node_of_it() {
    let world = World::new(require!(ControlPlane::shared().await), "scale-gone", 1).await;
    let (capacity, pool) = (capacity(&world), pool(STATEFUL_SET));
    let id = |number: u32| InstanceId(format!("i-{}-{number}", world.space));
    let gone = capacity.find_gone(&[&pool], &[id(0), id(1)]).await.unwrap();
    assert_eq!(gone.into_iter().collect::<Vec<_>>(), [id(1)]);
}
