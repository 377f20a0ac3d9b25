//! Writes of a leader that was followed by another, checked in every world.

use std::time::Duration;

use ebbtide_core::ids::{NodeName, ReplicaId};
use ebbtide_core::ledger::Ledger;
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::control::{
    ControlView, DrainReason, DrainRequest, EngineRecord, InstanceIds, LifecycleRecord, NodeNames,
    NodeRecord, NodeState, PurchaseRecord, StragglerRecord, from_fields,
};

use super::worlds::*;

laws![
    1;
    everything_that_a_leader_writes_is_refused_once_another_has_claimed_anything,
    refused_request_is_not_answered_with_what_others_asked_for,
];

fn lifecycle(instance: &str) -> LifecycleRecord {
    LifecycleRecord {
        instance_id: instance.to_owned(),
        group: "rollout-a".to_owned(),
        hook: "drain".to_owned(),
        token: None,
        seen_at: UnixMillis(0),
    }
}

fn purchase(name: &str) -> PurchaseRecord {
    PurchaseRecord {
        purchase: name.to_owned(),
        pool: "spot-a".parse().unwrap(),
        terms: "2 nodes".to_owned(),
        instances: InstanceIds::default(),
        noted_at: UnixMillis(0),
    }
}

fn request(generation: u64) -> DrainRequest {
    DrainRequest {
        replica: "n1".parse().unwrap(),
        request_id: format!("by-{generation}"),
        generation,
        reason: DrainReason::ScaleIn,
        remaining: Duration::from_secs(600),
        lost: NodeNames::default(),
    }
}

/// Case T35 of autoscaling: in the queue.
async fn everything_that_a_leader_writes_is_refused_once_another_has_claimed_anything(
    world: World,
) {
    let queue = &world.queue;
    let (replica, node): (ReplicaId, NodeName) = ("n1".parse().unwrap(), "n1".parse().unwrap());
    queue.put_node(NodeRecord::new(holder("n1"), NodeState::Ready)).await.unwrap();
    let named =
        |share| StragglerRecord { replica: replica.clone(), share, named_at: UnixMillis(0) };
    let ledger = |moment| Ledger::begin(UnixMillis(moment));
    // The leader of generation 4 may, as long as no other has said a word.
    assert!(queue.claim(4, "4 leads").await.unwrap());
    queue.request_drain(request(4)).await.unwrap();
    queue.put_lifecycle(4, lifecycle("i-1")).await.unwrap();
    queue.put_straggler(4, named(0.5)).await.unwrap();
    queue.put_purchase(4, purchase("by-4")).await.unwrap();
    queue.put_ledger(4, ledger(4)).await.unwrap();
    queue.add_journal(4, "by 4".to_owned(), 10).await.unwrap();

    assert!(queue.claim(5, "5 leads").await.unwrap());
    let standing = async || {
        let (view, journal) = (queue.view().await.unwrap(), queue.journal(10).await.unwrap());
        (ControlView { now: UnixMillis(0), ..view }, journal)
    };
    let before = standing().await;
    let refused = [
        queue.remove_node(4, &node).await,
        queue.remove_drain(4, &replica).await,
        queue.put_lifecycle(4, lifecycle("i-2")).await,
        queue.remove_lifecycle(4, "i-1").await,
        queue.put_straggler(4, named(0.25)).await,
        queue.remove_straggler(4, &replica).await,
        queue.put_purchase(4, purchase("late")).await,
        queue.remove_purchase(4, "by-4").await,
        queue.put_ledger(4, ledger(9)).await,
        queue.add_journal(4, "late".to_owned(), 10).await,
        queue.request_drain(request(4)).await.map(drop),
    ];
    for outcome in refused {
        let error = outcome.unwrap_err();
        assert!(error.to_string().contains("a newer leader has taken over"), "{error}");
        assert!(!error.is_retriable());
    }
    assert_eq!(standing().await, before);

    queue.put_engine(engine(&replica)).await.unwrap();
    assert!(queue.remove_node(4, &node).await.is_err());
    assert_eq!(queue.view().await.unwrap().engines.len(), 1, "nor what goes with a node");

    // The new leader may, and operators, who are no leaders.
    for (generation, journal) in [(5, "by 5"), (0, "by hand")] {
        queue.put_ledger(generation, ledger(generation)).await.unwrap();
        queue.add_journal(generation, journal.to_owned(), 10).await.unwrap();
        assert_eq!(queue.view().await.unwrap().ledger, Some(ledger(generation)));
        assert_eq!(queue.journal(1).await.unwrap()[0].line, journal);
    }
    queue.remove_straggler(5, &replica).await.unwrap();
    queue.remove_lifecycle(5, "i-1").await.unwrap();
    queue.remove_purchase(5, "by-4").await.unwrap();
    queue.remove_drain(5, &replica).await.unwrap();
    queue.remove_node(5, &node).await.unwrap();
    let view = queue.view().await.unwrap();
    assert!(view.nodes.is_empty() && view.drains.is_empty() && view.engines.is_empty());
    assert!(view.stragglers.is_empty() && view.lifecycles.is_empty());
    assert!(view.purchases.is_empty());
}

fn engine(replica: &ReplicaId) -> EngineRecord {
    let replica = replica.to_string();
    let fields = [
        ("replica", &*replica),
        ("index", "0"),
        ("address", "http://10.0.0.1:8000"),
        ("kind", "vllm"),
        ("state", "ready"),
        ("heartbeat", "0"),
    ];
    let fields = fields.map(|(name, text)| (name.to_owned(), text.to_owned()));
    from_fields(&fields.into_iter().collect()).unwrap()
}

/// Who was refused must not take the drain of somebody else for its own: a notice would be lost.
async fn refused_request_is_not_answered_with_what_others_asked_for(world: World) {
    let queue = &world.queue;
    assert!(queue.claim(5, "lead").await.unwrap());
    let asked = queue.request_drain(request(5)).await.unwrap();
    let refused = queue.request_drain(request(4)).await.unwrap_err();
    assert!(refused.to_string().contains("a newer leader has taken over"), "{refused}");
    assert_eq!(queue.view().await.unwrap().drains, [asked]);
}
