//! Nodes come, are noticed, stopped and killed, again and again; every response is still whole.

use std::collections::BTreeMap;

use ebbtide_core::ids::UnitId;
use ebbtide_core::sample::Sample;

use crate::world::{Node, NodePlan, Place, World, every_engine, group};

/// Groups of four samples each, of different lengths.
const GROUPS: u32 = 24;

/// What happens to the oldest node, in this order.
#[derive(Clone, Copy)]
enum Fate {
    Noticed,
    Killed,
    Stopped,
    Restarted,
    EngineDies,
}

/// Nodes have engines of all kinds, in turn: each continues what the others began.
fn node_of(world: &World, name: String, number: usize) -> NodePlan<'_> {
    let engines = every_engine();
    world.node(&name).with_engine(engines[number % engines.len()])
}

async fn enqueue_all(world: &World) {
    world.enqueue((0..GROUPS).map(|n| group(&format!("g{n:02}"), 4, 80 + 17 * n))).await;
}

fn by_unit(samples: Vec<Sample>) -> BTreeMap<UnitId, Vec<i32>> {
    samples.into_iter().map(|sample| (sample.unit.clone(), sample.token_ids())).collect()
}

/// Lets it happen to `node`, and gives the node that runs instead.
async fn meet_fate(
    world: &World,
    node: Node,
    fate: Fate,
    round: usize,
    gone: &mut Vec<Place>,
) -> Node {
    let name = node.name.to_string();
    let next = node_of(world, format!("r{round}"), round);
    let is_empty = |agent: &ebbtide_agent::AgentHandle| agent.held() == 0;
    match fate {
        Fate::Noticed => {
            node.announce(1);
            node.wait_until(|agent| !agent.is_gate_open()).await;
            node.wait_until(is_empty).await;
            gone.push(node.kill().await);
        }
        Fate::Killed => drop(node.kill().await),
        Fate::Stopped => gone.push(node.stop().await.1),
        Fate::Restarted => return world.node(&name).start_at(node.kill().await),
        Fate::EngineDies => {
            node.place.engine.handle().fail_core();
            node.wait_until(is_empty).await;
            gone.push(node.kill().await);
        }
    }
    next.start()
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_happens_to_nodes_every_response_equals_the_unbroken_one() {
    let samples = 4 * GROUPS as usize;
    let calm = World::new();
    enqueue_all(&calm).await;
    let _nodes: Vec<Node> = (0..3).map(|n| calm.node(&format!("c{n}")).start()).collect();
    let expected = by_unit(calm.take_samples(samples).await);

    let world = World::new();
    enqueue_all(&world).await;
    let mut nodes: Vec<Node> =
        (0..3).map(|n| node_of(&world, format!("n{n}"), n).start()).collect();
    let fates = [Fate::Noticed, Fate::Killed, Fate::Stopped, Fate::Restarted, Fate::EngineDies];
    let mut gone: Vec<Place> = Vec::new();
    for (round, fate) in fates.iter().cycle().take(10).enumerate() {
        let node = nodes.remove(0);
        let stored = node.agent.counts().tokens_stored;
        node.wait_until(|agent| agent.counts().tokens_stored > stored + 60 || agent.held() == 0)
            .await;
        let next = meet_fate(&world, node, *fate, round, &mut gone).await;
        nodes.push(next);
    }
    let got = by_unit(world.take_samples(samples).await);
    assert_eq!(got.len(), samples);
    for (unit, tokens) in &expected {
        assert_eq!(&got[unit], tokens, "{unit}");
    }
    let status = world.status().await;
    assert_eq!((status.completed, status.dead, status.expired), (samples as u64, 0, 0));
    assert_eq!(status.tokens.generated, status.tokens.accepted, "no stored token was wasted");
}
