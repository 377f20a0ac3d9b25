//! An EP group of 8 nodes, of which one at random is noticed.
//!
//! The time begins with the noticing agent's write, at the moment that Redis itself notes in the
//! drain, and ends when the gate of the last member is closed. Both are read from clocks of one
//! machine. The first node's engine works on 64 units; all polling is the default one.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use ebbtide_agent::AgentHandle;
use ebbtide_core::ids::ReplicaId;
use ebbtide_harness::{Figures, Redis, percentile_ms};
use ebbtide_queue::client::WorkQueue;
use futures::future::try_join_all;
use rand::RngExt;

use super::arguments::Sizes;
use super::node::{Node, STORED_TOKENS, Streams, UNITS};
use super::seed;

const MEMBERS: usize = 8;
const RUN: &str = "group";
const REPLICA: &str = "ep-0";

/// See the module.
///
/// # Errors
/// A part does not start, or a unit was not handed back whole.
pub async fn measure(sizes: &Sizes, figures: &mut Figures) -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let queue = seed::queue(&redis, RUN).await?;
    seed::units(&queue, UNITS, STORED_TOKENS).await?;
    let replica: ReplicaId = REPLICA.parse()?;
    let mut members = Vec::new();
    for number in 0..MEMBERS {
        let leads = number == 0;
        let client = seed::queue(&redis, RUN).await?;
        let streams = leads.then_some(Streams::LONG_TAILS);
        let replica = replica.clone();
        members.push(Node::start(
            &format!("member-{number}"),
            RUN,
            client,
            streams,
            |config, _| {
                let mut config = config.with_replica(replica);
                config.leads_replica = leads;
                config
            },
        )?);
    }
    let mut took = Vec::new();
    for _ in 0..sizes.group_notices {
        members[0].is_busy().await?;
        try_join_all(members.iter().map(|one| one.wait_until("open", AgentHandle::is_gate_open)))
            .await?;
        let noticed = &members[rand::rng().random_range(0..MEMBERS)];
        noticed.notice();
        let closed = members.iter().map(async |one| -> anyhow::Result<Duration> {
            one.wait_until("closed", |agent| !agent.is_gate_open()).await?;
            Ok(SystemTime::now().duration_since(UNIX_EPOCH)?)
        });
        let closed = try_join_all(closed).await?.into_iter().max().unwrap_or_default();
        took.push(closed.saturating_sub(written_at(&queue, &replica).await?));
        members[0].wait_until("empty", |agent| agent.held() == 0).await?;
        let units = queue.scan().await?;
        ensure!(units.iter().all(|unit| !unit.state.is_leased()), "a unit is still leased");
        noticed.reopen().await?;
    }
    figures.set("groupStopP50Ms", percentile_ms(&took, 50));
    figures.set("groupStopP99Ms", percentile_ms(&took, 99));
    Ok(())
}

/// When the drain was asked for, on the clock of Redis.
async fn written_at(queue: &WorkQueue, replica: &ReplicaId) -> anyhow::Result<Duration> {
    let view = queue.view().await?;
    let drain = view.drains.iter().find(|drain| drain.replica == *replica);
    let drain = drain.context("the group has no drain")?;
    ensure!(drain.state.closes_gate(), "the drain of the group is over: {:?}", drain.state);
    Ok(Duration::from_millis(drain.requested_at.0))
}
