//! How long nodes take to hand their units back.
//!
//! | case | who | before the clock starts | handed back |
//! |---|---|---|---|
//! | one node | one holder, 512 units | 8,000 tokens of each are stored | tails of 1 to 256 |
//! | all in the tail | the same | nothing is stored | all 8,000 tokens |
//! | 125 nodes | 125 clients, 64 units each | as the first, if memory allows | as the first |
//!
//! A node hands all its units back by one call of [`WorkQueue::write`], which makes as few calls of
//! Redis of it as 4 MiB and 1,000 units a call allow. The time ends with the last acknowledgement;
//! calls that got no answer are sent again meanwhile. Of several repetitions the median counts.

use ebbtide_core::ids::Holder;
use ebbtide_core::sample::Chunk;
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::command::{HandBackCause, Then, UnitWrite};
use ebbtide_queue::reply::Grant;
use futures::future::try_join_all;
use tokio::time::Instant;

use super::material::{Material, enqueue, holder, lease, write, write_all};
use super::site::{Run, Site};
use super::sizes::TOKEN_BYTES;
use super::statistics::{Figures, median};

const GROUP_SIZE: usize = 8;
/// Tokens of one append before the clock starts: five seconds of a unit.
const APPEND_TOKENS: usize = 250;
/// Longest tail: what the agent may not have stored yet.
const TAIL_TOKENS: usize = 256;
/// Fewer stored tokens are not worth a measurement.
const FEWEST_STORED_TOKENS: usize = 16;

/// Measures the three cases.
///
/// # Errors
/// Redis gives no answer, or refuses a write.
pub async fn measure(
    site: &Site,
    material: &mut Material,
    say: impl Fn(&str),
) -> anyhow::Result<Figures> {
    let sizes = site.sizes;
    let mut figures = Figures::default();
    say(&format!("hand-back of {} units by one node", sizes.node_units));
    figures.set("handBack512Ms", stored_tokens(site, material).await?);
    say("hand-back with all tokens in the tails");
    figures.set("handBack512AllInTailMs", all_in_tail(site, material).await?);
    let tokens = tokens_with_room(site).await?;
    figures.set("handBack125x64StoredTokens", tokens as f64);
    let shorter = if tokens < sizes.nodes_stored_tokens { " (memory allows no more)" } else { "" };
    say(&format!(
        "hand-back of {} units by each of {} nodes at once, {tokens} tokens of each \
         stored{shorter}",
        sizes.units_a_node, sizes.nodes,
    ));
    figures.set("handBack125x64Ms", many_nodes(site, material, tokens).await?);
    Ok(figures)
}

async fn stored_tokens(site: &Site, material: &mut Material) -> anyhow::Result<Option<f64>> {
    let (sizes, holder) = (site.sizes, holder(0, 0));
    let run = begin(site, material, sizes.node_units).await?;
    let grants = lease(&run.queue, &holder, sizes.node_units).await?;
    store(&run.queue, material, &holder, &grants, sizes.response_tokens).await?;
    let (mut ends, mut grants) = (vec![sizes.response_tokens; grants.len()], grants);
    let mut took = Vec::new();
    for repetition in 0..sizes.hand_backs {
        if repetition > 0 {
            grants = lease(&run.queue, &holder, sizes.node_units).await?;
            ends = grants.iter().map(end_of).collect();
        }
        let writes = with_tails(material, &grants, &ends);
        took.push(time(&run.queue, &holder, writes).await?);
    }
    site.end(run).await?;
    Ok(median(took))
}

async fn all_in_tail(site: &Site, material: &mut Material) -> anyhow::Result<Option<f64>> {
    let (sizes, holder) = (site.sizes, holder(0, 0));
    let mut took = Vec::new();
    for _ in 0..sizes.hand_backs {
        let run = begin(site, material, sizes.node_units).await?;
        let grants = lease(&run.queue, &holder, sizes.node_units).await?;
        let whole = material.chunk(0, sizes.response_tokens);
        let writes = grants.iter().map(|grant| write(grant, vec![whole.clone()], back())).collect();
        took.push(time(&run.queue, &holder, writes).await?);
        site.end(run).await?;
    }
    Ok(median(took))
}

async fn many_nodes(
    site: &Site,
    material: &mut Material,
    tokens: usize,
) -> anyhow::Result<Option<f64>> {
    let sizes = site.sizes;
    let run = begin(site, material, sizes.nodes * sizes.units_a_node).await?;
    let mut nodes = Vec::new();
    for number in 0..sizes.nodes {
        let (queue, holder) = (site.client(&run.id).await?, holder(number, 0));
        let grants = lease(&queue, &holder, sizes.units_a_node).await?;
        store(&queue, material, &holder, &grants, tokens).await?;
        let writes = with_tails(material, &grants, &vec![tokens; grants.len()]);
        nodes.push((queue, holder, writes));
    }
    let began = Instant::now();
    let backs = nodes.iter_mut().map(|(queue, holder, writes)| {
        let writes = std::mem::take(writes);
        write_all(queue, holder, writes)
    });
    try_join_all(backs).await?;
    let took = began.elapsed().as_secs_f64() * 1000.0;
    drop(nodes);
    site.end(run).await?;
    Ok(Some(took))
}

/// How many tokens of each unit of the many nodes can be stored: as many as are wanted, or as fill
/// half of the free memory.
async fn tokens_with_room(site: &Site) -> anyhow::Result<usize> {
    let sizes = site.sizes;
    let Some(server) = &site.server else { return Ok(sizes.nodes_stored_tokens) };
    let Some(free) = server.free_bytes().await? else { return Ok(sizes.nodes_stored_tokens) };
    Ok(tokens_within(free, sizes.nodes * sizes.units_a_node, sizes.nodes_stored_tokens))
}

fn tokens_within(free_bytes: u64, units: usize, wanted: usize) -> usize {
    let room = free_bytes / 2 / (units.max(1) as u64 * TOKEN_BYTES);
    usize::try_from(room).unwrap_or(wanted).clamp(FEWEST_STORED_TOKENS.min(wanted), wanted)
}

async fn begin(site: &Site, material: &Material, units: usize) -> anyhow::Result<Run> {
    let run = site.begin().await?;
    let groups = units.div_ceil(GROUP_SIZE);
    enqueue(&run.queue, material, 0, groups, GROUP_SIZE as u16).await?;
    Ok(run)
}

/// Stores the same `tokens` tokens for each unit.
async fn store(
    queue: &WorkQueue,
    material: &mut Material,
    holder: &Holder,
    grants: &[Grant],
    tokens: usize,
) -> anyhow::Result<()> {
    for from in (0..tokens).step_by(APPEND_TOKENS) {
        let chunk = material.chunk(from as u32, APPEND_TOKENS.min(tokens - from));
        let append = |grant| write(grant, vec![chunk.clone()], Then::Continue);
        write_all(queue, holder, grants.iter().map(append).collect()).await?;
    }
    Ok(())
}

/// Where the stored tokens of a unit end.
fn end_of(grant: &Grant) -> usize {
    grant.partial.last().map_or(0, |chunk| chunk.end() as usize)
}

fn back() -> Then {
    Then::HandBack(HandBackCause::Notice.into())
}

/// Each unit with a tail of random length, from where its stored tokens end.
fn with_tails(material: &mut Material, grants: &[Grant], ends: &[usize]) -> Vec<UnitWrite> {
    let mut tail = |end: usize| -> Chunk {
        let length = material.length(TAIL_TOKENS);
        material.chunk(end as u32, length)
    };
    let units = grants.iter().zip(ends);
    units.map(|(grant, end)| write(grant, vec![tail(*end)], back())).collect()
}

/// Milliseconds until all writes are acknowledged.
async fn time(queue: &WorkQueue, holder: &Holder, writes: Vec<UnitWrite>) -> anyhow::Result<f64> {
    let began = Instant::now();
    write_all(queue, holder, writes).await?;
    Ok(began.elapsed().as_secs_f64() * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_fill_half_of_the_free_memory_at_most() {
        let units = 125 * 64;
        assert_eq!(tokens_within(8 << 30, units, 8_000), 8_000);
        let fewer = tokens_within(576_000_000, units, 8_000);
        assert_eq!(fewer, 4_000, "half of it, at 9 bytes a token");
        assert_eq!(tokens_within(0, units, 8_000), FEWEST_STORED_TOKENS);
        assert_eq!(tokens_within(0, units, 10), 10);
    }
}
