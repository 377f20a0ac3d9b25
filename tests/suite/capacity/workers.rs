//! Provider `workers` on the real API server, with the real LeaderWorkerSet controller.

use std::collections::BTreeSet;
use std::sync::Arc;

use ebbtide_controller::capacity::workers::WorkersCapacity;
use ebbtide_controller::capacity::{Capacity, CapacityError};
use ebbtide_core::observation::{FailureKind, InstanceId, InstanceState};
use ebbtide_harness::{ControlPlane, LwsController, require, until};
use serde_json::{Value, json};

use super::world::{World, ids, in_service, leader_worker_set, look, pool, size_becomes};
use crate::lane::faulty::Faulty;
use crate::programs::EVENT_LIMIT;

const WORKERS: &str = "provider: workers, workers: {template: ep}";

fn capacity(world: &World) -> Arc<dyn Capacity> {
    Arc::new(WorkersCapacity::new(world.client.clone(), &world.space))
}

/// A template of groups of two pods; each group keeps to one zone, as the chart has it.
fn template(world: &World, replicas: u32) -> Value {
    let mut pod = world.pod();
    pod["spec"]["affinity"]["podAffinity"] = json!({
        "requiredDuringSchedulingIgnoredDuringExecution": [{
            "topologyKey": "ebbtide.dev/role",
            "labelSelector": { "matchLabels": { "leaderworkerset.sigs.k8s.io/name": "ep" } },
            "matchLabelKeys": ["leaderworkerset.sigs.k8s.io/group-key"],
        }],
    });
    leader_worker_set(replicas, &pod)
}

async fn names(world: &World) -> BTreeSet<String> {
    let sets = world.list("leaderworkersets").await;
    sets.iter().map(|set| set["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

fn of_group(instances: &[ebbtide_core::observation::InstanceView], name: &str) -> Vec<InstanceId> {
    let own = instances.iter().filter(|one| one.group.as_deref() == Some(name));
    own.map(|one| one.id.clone()).collect()
}

#[tokio::test]
async fn each_replica_is_a_set_of_its_own_and_only_the_named_one_goes() {
    let cluster = require!(ControlPlane::shared().await);
    require!(LwsController::start(&cluster).await);
    let world = World::new(cluster, "workers", 6).await;
    let (capacity, pool) = (capacity(&world), pool(WORKERS));
    let view = look(&capacity, &pool).await;
    assert_eq!(view.size.why_unknown(), Some("there is no LeaderWorkerSet ep"));
    world.create(&template(&world, 0)).await;
    size_becomes(&capacity, &pool, "nothing", |size| size.desired == 0).await;
    let part = capacity.raise(&pool, 0, 3, 1).await.unwrap_err();
    assert!(part.to_string().contains("nodesPerReplica must be 2"), "{part}");

    // Two leaders at a time make the same copies.
    let (one, other) = tokio::join!(capacity.raise(&pool, 0, 4, 1), capacity.raise(&pool, 0, 4, 1));
    assert!(one.is_ok() || other.is_ok(), "{one:?} {other:?}");
    let again = capacity.raise(&pool, 0, 4, 1).await.unwrap_err();
    assert!(matches!(again, CapacityError::Moved { got: 4, .. }), "a lost reply: {again}");
    let four = in_service(&capacity, &pool, 4).await;
    assert_eq!(names(&world).await, ["ep", "ep-0", "ep-1"].map(str::to_owned).into());
    let pods = world.list("pods").await;
    for pod in &pods {
        assert_eq!(pod["metadata"]["labels"]["ebbtide.dev/engine"], "vllm", "agents find it");
    }

    let first = of_group(&four, "ep-0");
    assert_eq!(first.len(), 2);
    let worker: Vec<InstanceId> =
        first.iter().filter(|id| id.0.starts_with("ep-0-0-1/")).cloned().collect();
    let not_named = capacity.terminate(&pool, &worker).await.unwrap_err();
    assert!(not_named.to_string().contains("ep-0-0 would go with it"), "{not_named}");
    for _ in 0..2 {
        capacity.terminate(&pool, &first).await.unwrap();
    }
    let left = in_service(&capacity, &pool, 2).await;
    assert_eq!(ids(&left), of_group(&four, "ep-1").into_iter().collect());
    until("its set to be gone", EVENT_LIMIT, || async {
        (!names(&world).await.contains("ep-0")).then_some(())
    })
    .await
    .unwrap();
    // Its name is free again.
    capacity.raise(&pool, 2, 4, 1).await.unwrap();
    in_service(&capacity, &pool, 4).await;
    assert!(names(&world).await.contains("ep-0"));

    world.kubectl(&["delete", "leaderworkerset", "ep", "--wait=false"]).await;
    until("all copies to go with their template", EVENT_LIMIT, || async {
        names(&world).await.is_empty().then_some(())
    })
    .await
    .unwrap();
}

/// What a decision costs the API server does not grow with the pool.
#[tokio::test]
async fn calls_are_as_many_as_the_replicas_that_come_or_go() {
    let cluster = require!(ControlPlane::shared().await);
    require!(LwsController::start(&cluster).await);
    let world = World::new(cluster, "workers-calls", 6).await;
    let way = Faulty::start(world.client.clone()).await;
    let capacity: Arc<dyn Capacity> = Arc::new(WorkersCapacity::new(way.client(), &world.space));
    let pool = pool(WORKERS);
    world.create(&template(&world, 0)).await;
    size_becomes(&capacity, &pool, "nothing", |size| size.desired == 0).await;
    let core = format!("/api/v1/namespaces/{}", world.space);
    let sets =
        format!("/apis/leaderworkerset.x-k8s.io/v1/namespaces/{}/leaderworkersets", world.space);
    way.take_asked();
    capacity.raise(&pool, 0, 6, 1).await.unwrap();
    let get = |what: &str| format!("GET {what}");
    let mut expected = vec![get(&format!("{sets}/ep")), get(&sets), get(&sets)];
    expected.extend((0..3).map(|_| format!("POST {sets}")));
    assert_eq!(way.take_asked(), expected);
    let six = in_service(&capacity, &pool, 6).await;
    for count in [1, 2] {
        let going: Vec<Vec<InstanceId>> = (0..count)
            .map(|number| of_group(&six, &format!("ep-{}", number + count - 1)))
            .collect();
        way.take_asked();
        capacity.terminate(&pool, &going.concat()).await.unwrap();
        let asked = way.take_asked();
        let of = |method: &str, start: &str| {
            let line = format!("{method} {start}");
            asked.iter().filter(|it| it.starts_with(&line)).count()
        };
        assert_eq!(of("GET", &format!("{core}/pods/")), count, "{asked:?}");
        assert_eq!(of("GET", &format!("{core}/pods")), 2 * count, "one list of each group");
        assert_eq!(of("GET", &sets), 1 + count, "the template, and each: {asked:?}");
        assert_eq!(of("DELETE", &sets), count, "{asked:?}");
        assert_eq!(asked.len(), 4 * count + 1, "{asked:?}");
    }
    in_service(&capacity, &pool, 0).await;
}

#[tokio::test]
async fn group_that_lacks_a_node_counts_for_nothing_and_the_lack_is_told() {
    let cluster = require!(ControlPlane::shared().await);
    require!(LwsController::start(&cluster).await);
    let world = World::new(cluster, "workers-half", 3).await;
    let capacity = capacity(&world);
    let pool = pool("provider: workers, workers: {template: ep, unschedulableTimeout: 1s}");
    world.create(&template(&world, 0)).await;
    size_becomes(&capacity, &pool, "nothing", |size| size.desired == 0).await;
    capacity.raise(&pool, 0, 4, 1).await.unwrap();
    let is_half = |size: &ebbtide_core::observation::PoolSize| {
        let serves = |state| state == InstanceState::InService;
        size.instances.iter().filter(|one| serves(one.state)).count() == 3
    };
    let size = size_becomes(&capacity, &pool, "a group and a half", is_half).await;
    assert_eq!((size.desired, size.counted_nodes(2)), (4, 2));
    let failure = until("a failed launch", EVENT_LIMIT, || async {
        let view = look(&capacity, &pool).await;
        view.activities.known()?.failures.first().cloned()
    })
    .await
    .unwrap();
    assert_eq!(failure.kind, FailureKind::Capacity, "{}", failure.message);
    world.add_nodes(3..4).await;
    in_service(&capacity, &pool, 4).await;
    assert_eq!(look(&capacity, &pool).await.activities.known().unwrap().failures, []);
}

#[tokio::test]
async fn set_that_runs_groups_of_its_own_is_not_taken_for_a_template() {
    let cluster = require!(ControlPlane::shared().await);
    require!(LwsController::start(&cluster).await);
    let world = World::new(cluster, "workers-own", 0).await;
    let (capacity, pool) = (capacity(&world), pool(WORKERS));
    world.create(&template(&world, 1)).await;
    let view = look(&capacity, &pool).await;
    let why = view.size.why_unknown().unwrap();
    assert!(why.contains("must have replicas: 0, got 1"), "{why}");
    capacity.raise(&pool, 2, 4, 1).await.unwrap_err();
    assert_eq!(names(&world).await.len(), 1);
}
