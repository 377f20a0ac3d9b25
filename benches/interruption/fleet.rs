//! 125 nodes of one run, with 64 units each, noticed at the same moment.
//!
//! The streams are slow, so that it is not this machine's cores that limit: in reality each node
//! has its own. 1,000 tokens of each unit are stored before, because a new stream begins with a
//! request that holds them. Each node's time counts alone, from its notice until the queue has
//! acknowledged the last of its units.

use anyhow::{bail, ensure};
use ebbtide_harness::{Figures, Redis, percentile_ms};
use futures::future::try_join_all;

use super::arguments::Sizes;
use super::node::{Node, Streams, UNITS};
use super::seed;

const NODES: usize = 125;
const RUN: &str = "fleet";
const STORED_TOKENS: u32 = 1_000;

/// Looks at the fleet until all of it works.
const LOOKS: usize = 20;

/// See the module.
///
/// # Errors
/// A part does not start, or a unit was not handed back whole.
pub async fn measure(sizes: &Sizes, figures: &mut Figures) -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let queue = seed::queue(&redis, RUN).await?;
    println!("fleet: {} units of {STORED_TOKENS} tokens are put into the queue", NODES * UNITS);
    seed::units(&queue, NODES * UNITS, STORED_TOKENS).await?;
    let mut nodes = Vec::new();
    for number in 0..NODES {
        let client = seed::queue(&redis, RUN).await?;
        let name = format!("node-{number}");
        nodes.push(Node::start(&name, RUN, client, Some(Streams::SLOW), |config, _| config)?);
    }
    let (mut took, mut late, mut lost) = (Vec::new(), 0, 0);
    for notice in 1..=sizes.fleet_notices {
        all_work(&nodes).await?;
        println!("fleet: all work; notice {notice} of {}", sizes.fleet_notices);
        let hand_backs = try_join_all(nodes.iter().map(Node::hand_back)).await?;
        took.extend(hand_backs.iter().map(|one| one.done));
        late += hand_backs.iter().map(|one| one.late_tokens).sum::<u64>();
        lost += hand_backs.iter().map(|one| one.lost_units).sum::<u64>();
        let units = queue.scan().await?;
        let back = units.iter().filter(|unit| !unit.state.is_leased()).count();
        ensure!(back == NODES * UNITS, "{back} units are back of {}", NODES * UNITS);
        try_join_all(nodes.iter().map(Node::reopen)).await?;
    }
    figures.set("fleet125NoticeToHandedBackP50Ms", percentile_ms(&took, 50));
    figures.set("fleet125NoticeToHandedBackP99Ms", percentile_ms(&took, 99));
    figures.set("fleet125LateTokens", late as f64);
    figures.set("fleet125LostLeases", lost as f64);
    Ok(())
}

/// Waits until all nodes work on all their units at the same moment: while thousands of streams
/// begin on this one machine, a node may lose leases that it had.
async fn all_work(nodes: &[Node]) -> anyhow::Result<()> {
    for _ in 0..LOOKS {
        try_join_all(nodes.iter().map(Node::is_busy)).await?;
        if nodes.iter().all(|node| node.agent.held() == UNITS) {
            return Ok(());
        }
    }
    bail!("some node lost its leases at each of {LOOKS} looks")
}
