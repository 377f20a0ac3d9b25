//! From a notice of two minutes to the last of 64 units handed back, at the default polling.
//!
//! 8,000 tokens of each unit are stored before the node gets it, none can finish in time, and up
//! to 256 tokens of each are not stored yet when the notice comes, at a random moment. The clock
//! begins when the metadata service shows the notice, the polling share ends with the first request
//! that sees it, and the rest ends when the queue has acknowledged the last hand-back. The units of
//! a node come back to it, so each has a run of its own.

use std::time::Duration;

use anyhow::ensure;
use ebbtide_agent::{AgentConfig, Outside};
use ebbtide_harness::{Figures, Redis, percentile_ms};
use ebbtide_queue::client::WorkQueue;
use futures::future::try_join_all;
use rand::RngExt;

use super::arguments::Sizes;
use super::node::{HandBack, Node, STORED_TOKENS, Streams, UNITS};
use super::seed;

/// See the module.
///
/// # Errors
/// A part does not start, or a unit was not handed back whole.
pub async fn measure(sizes: &Sizes, figures: &mut Figures) -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let nodes = (0..sizes.nodes).map(async |number| {
        let run = format!("hand-back-{number}");
        notices(&redis, &run, sizes.notices_a_node, |config, _| config).await
    });
    let hand_backs = try_join_all(nodes).await?.concat();
    let of = |part: fn(&HandBack) -> Duration| -> Vec<Duration> {
        hand_backs.iter().map(part).collect()
    };
    let (done, read) = (of(|one| one.done), of(|one| one.read));
    let rest = of(|one| one.done.saturating_sub(one.read));
    figures.set("noticeToHandedBackP50Ms", percentile_ms(&done, 50));
    figures.set("noticeToHandedBackP99Ms", percentile_ms(&done, 99));
    figures.set("noticeToDetectionP50Ms", percentile_ms(&read, 50));
    figures.set("noticeToDetectionP99Ms", percentile_ms(&read, 99));
    figures.set("detectionToHandedBackP50Ms", percentile_ms(&rest, 50));
    figures.set("detectionToHandedBackP99Ms", percentile_ms(&rest, 99));
    let tails: u64 = hand_backs.iter().map(|one| one.tail_tokens).sum();
    figures.set("tailTokensMean", tails as f64 / (hand_backs.len() * UNITS) as f64);
    let late: u64 = hand_backs.iter().map(|one| one.late_tokens).sum();
    figures.set("lateTokens", late as f64);
    figures.set("noticesMeasured", hand_backs.len() as f64);
    Ok(())
}

/// Notices of one node with a run of its own, each at a random moment of the work.
///
/// # Errors
/// A part does not start, or a unit was not handed back whole.
pub async fn notices(
    redis: &Redis,
    run: &str,
    count: usize,
    change: impl FnOnce(AgentConfig, &mut Outside) -> AgentConfig,
) -> anyhow::Result<Vec<HandBack>> {
    let queue = seed::queue(redis, run).await?;
    seed::units(&queue, UNITS, STORED_TOKENS).await?;
    let streams = Streams::LONG_TAILS;
    let client = seed::queue(redis, run).await?;
    let node = Node::start(&format!("node-{run}"), run, client, Some(streams), change)?;
    let mut hand_backs = Vec::new();
    for _ in 0..count {
        node.is_busy().await?;
        // Past the first append, then anywhere between two of them.
        let wait = streams.append_every.mul_f64(1.0 + rand::rng().random_range(0.0..1.0));
        tokio::time::sleep(wait).await;
        let hand_back = node.hand_back().await?;
        ensure!(hand_back.lost_units == 0, "{} leases were lost", hand_back.lost_units);
        hand_backs.push(hand_back);
        check(&queue).await?;
        node.reopen().await?;
    }
    Ok(hand_backs)
}

/// All units wait for another node, with everything that they had.
async fn check(queue: &WorkQueue) -> anyhow::Result<()> {
    let units = queue.scan().await?;
    ensure!(units.len() == UNITS, "{} units are left of {UNITS}", units.len());
    let is_back = units.iter().all(|unit| !unit.state.is_leased() && unit.tokens >= STORED_TOKENS);
    ensure!(is_back, "a unit is still leased, or has lost tokens");
    Ok(())
}
