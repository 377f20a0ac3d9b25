//! The name of the store and what was bought in it, checked in every world.

use ebbtide_core::observation::InstanceId;
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::control::{InstanceIds, PurchaseRecord};
use futures::future::join_all;

use super::worlds::*;

laws![
    1;
    store_gets_one_name_however_many_give_it_one,
    purchase_is_on_record_until_it_is_taken_off,
];

fn purchase(name: &str, pool: &str, instances: &[&str]) -> PurchaseRecord {
    let instances = instances.iter().map(|id| InstanceId((*id).to_owned()));
    PurchaseRecord {
        purchase: name.to_owned(),
        pool: pool.parse().unwrap(),
        terms: "rollout $Default p5en.48xlarge us-east-1a spot, 2 nodes".to_owned(),
        instances: InstanceIds(instances.collect()),
        noted_at: UnixMillis(0),
    }
}

async fn store_gets_one_name_however_many_give_it_one(world: World) {
    let queue = &world.queue;
    assert_eq!(queue.purchases().await.unwrap().store, None, "nobody has asked for it");
    let names: Vec<String> = (0..8).map(|number| format!("name-{number}")).collect();
    let given = join_all(names.iter().map(|name| queue.name_store(name))).await;
    let given: Vec<String> = given.into_iter().map(Result::unwrap).collect();
    assert!(given.iter().all(|name| *name == given[0] && names.contains(name)), "{given:?}");
    let book = queue.purchases().await.unwrap();
    let store = book.store.unwrap();
    assert_eq!(store.name, given[0]);
    assert!(store.named_at > UnixMillis(0) && store.named_at <= book.now, "{store:?}");
    assert_eq!(queue.name_store("late").await.unwrap(), given[0]);
    assert_eq!(queue.view().await.unwrap().store, Some(store), "nor is it named anew");
}

async fn purchase_is_on_record_until_it_is_taken_off(world: World) {
    let queue = &world.queue;
    for record in [purchase("a", "spot-a", &[]), purchase("b", "spot-b", &["i-2", "i-1"])] {
        queue.put_purchase(1, record).await.unwrap();
    }
    let standing = async || {
        let book = queue.purchases().await.unwrap();
        assert_eq!(queue.view().await.unwrap().into_purchases().purchases, book.purchases);
        assert!(book.purchases.iter().all(|record| record.noted_at <= book.now));
        let mut records = book.purchases;
        records.sort_by(|a, b| a.purchase.cmp(&b.purchase));
        records
    };
    let unstamped = |record: &PurchaseRecord| {
        assert!(record.noted_at > UnixMillis(0), "{record:?}");
        PurchaseRecord { noted_at: UnixMillis(0), ..record.clone() }
    };
    let found: Vec<PurchaseRecord> = standing().await.iter().map(unstamped).collect();
    let (a, b) = (purchase("a", "spot-a", &[]), purchase("b", "spot-b", &["i-1", "i-2"]));
    assert_eq!(found, [a, b]);
    // It is answered, in part shown, and forgotten.
    for instances in [&["i-3", "i-4"][..], &["i-4"]] {
        let answered = purchase("a", "spot-a", instances);
        queue.put_purchase(1, answered.clone()).await.unwrap();
        assert_eq!(unstamped(&standing().await[0]), answered);
    }
    for _ in 0..2 {
        queue.remove_purchase(1, "a").await.unwrap();
        assert_eq!(standing().await.len(), 1);
    }
}
