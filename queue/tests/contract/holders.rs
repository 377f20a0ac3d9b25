//! How many units the holders of a node have.

use std::time::Duration;

use ebbtide_core::ids::{Holder, NodeName};
use ebbtide_harness::EVENT_LIMIT;
use ebbtide_queue::command::Then;

use super::worlds::*;

laws![2; units_of_a_node_are_counted_whoever_holds_them_on_it];

async fn units_of_a_node_are_counted_whoever_holds_them_on_it(world: World) {
    let holder = |text: &str| -> Holder { text.parse().unwrap() };
    let (agent, worker) = (holder("n1/boot-1/agent-1"), holder("n1/boot-1/worker-1"));
    let (n1, n10): (NodeName, NodeName) = ("n1".parse().unwrap(), "n10".parse().unwrap());
    let held = async |node: &NodeName| world.queue.held_by(node).await.unwrap();
    assert_eq!(held(&n1).await, 0, "a node that nobody knows");
    // Over both shards.
    for name in ["g0", "g1", "g2", "g3", "g4", "g5"] {
        world.enqueue(&group(name, 1)).await;
    }
    let of_agent = world.lease(&agent, 2, LONG).await;
    let of_other = world.lease(&holder("n10/boot-1/agent-1"), 1, LONG).await;
    // The last one, as a LEASE reaps.
    let of_worker = world.lease(&worker, 3, Duration::from_millis(1)).await;
    assert_eq!((held(&n1).await, held(&n10).await), (5, 1), "names that begin alike");
    world.write_as(&agent, &of_agent[0], vec![tokens(0, 1, 0)], Then::Continue).await;
    assert_eq!(held(&n1).await, 5, "tokens change nothing");
    world.hand_back(&agent, &of_agent[0], vec![]).await;
    world.complete(&agent, &of_agent[1], vec![tokens(0, 1, 0)]).await;
    assert_eq!(held(&n1).await, 3, "leases that ran out count until they are reaped");
    let reaped = async {
        let mut reaped = 0;
        while reaped < of_worker.len() as u64 {
            reaped += world.queue.reap(10).await.unwrap();
        }
    };
    tokio::time::timeout(EVENT_LIMIT, reaped).await.expect("they ran out");
    assert_eq!((held(&n1).await, held(&n10).await), (0, of_other.len() as u64));
    assert_eq!(world.queue.audit(false).await.unwrap(), []);
}
