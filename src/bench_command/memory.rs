//! Bytes of waiting units and of stored tokens, as Redis counts its memory.
//!
//! Waiting: the growth of `used_memory` by units with a prompt of 1 KiB each group, divided by the
//! units, once in groups of one and once in groups of 8. A token: the growth by appends of 64
//! tokens to leased units, 64 to each, divided by the tokens: random ids below 151,000, of which
//! most take three bytes, and log-probabilities of four. Before each reading Redis has freed what
//! was deleted. Where Redis cannot be asked for its memory, the figures are unknown.

use ebbtide_core::ids::Holder;
use ebbtide_queue::command::Then;

use super::material::{Material, enqueue, holder, lease, write, write_all};
use super::server::Server;
use super::site::Site;
use super::statistics::Figures;

/// Tokens of an append, and appends to a unit.
const APPEND_TOKENS: usize = 64;
const APPENDS: usize = 64;
const GROUP_SIZE: usize = 8;
/// Units that one holder has: as many as one call may name.
const UNITS_A_HOLDER: usize = 1_000;

/// Measures both.
///
/// # Errors
/// Redis gives no answer, or has too little memory.
pub async fn measure(
    site: &Site,
    material: &mut Material,
    say: impl Fn(&str),
) -> anyhow::Result<Figures> {
    let mut figures = Figures::default();
    let Some(server) = &site.server else {
        say("memory: this Redis cannot be asked for it");
        for key in ["bytesPerWaitingUnit", "bytesPerPartialToken"] {
            figures.set(key, None);
        }
        return Ok(figures);
    };
    for size in [1, GROUP_SIZE] {
        say(&format!("memory: {} waiting units in groups of {size}", site.sizes.weighed_units));
        let bytes = waiting_unit(site, server, material, size).await?;
        figures.set(format!("bytesPerWaitingUnitGroupsOf{size}"), bytes);
    }
    // The larger one: each unit with a prompt of its own.
    figures.set("bytesPerWaitingUnit", figures.value("bytesPerWaitingUnitGroupsOf1"));
    say(&format!("memory: {} units with tokens", site.sizes.weighed_partials));
    figures.set("bytesPerPartialToken", partial_token(site, server, material).await?);
    Ok(figures)
}

async fn waiting_unit(
    site: &Site,
    server: &Server,
    material: &Material,
    size: usize,
) -> anyhow::Result<f64> {
    let run = site.begin().await?;
    let before = server.used_bytes().await?;
    let groups = site.sizes.weighed_units / size;
    enqueue(&run.queue, material, 0, groups, size as u16).await?;
    let grown = server.used_bytes().await? as f64 - before as f64;
    site.end(run).await?;
    Ok(grown / (groups * size) as f64)
}

async fn partial_token(
    site: &Site,
    server: &Server,
    material: &mut Material,
) -> anyhow::Result<f64> {
    let run = site.begin().await?;
    let units = site.sizes.weighed_partials;
    let groups = units.div_ceil(GROUP_SIZE);
    enqueue(&run.queue, material, 0, groups, GROUP_SIZE as u16).await?;
    let holder: Holder = holder(0, 0);
    let grants = lease(&run.queue, &holder, units.min(UNITS_A_HOLDER)).await?;
    let before = server.used_bytes().await?;
    for append in 0..APPENDS {
        let writes = grants.iter().map(|grant| {
            let chunk = material.chunk((append * APPEND_TOKENS) as u32, APPEND_TOKENS);
            write(grant, vec![chunk], Then::Continue)
        });
        let writes = writes.collect();
        write_all(&run.queue, &holder, writes).await?;
    }
    let grown = server.used_bytes().await? as f64 - before as f64;
    site.end(run).await?;
    Ok(grown / (grants.len() * APPENDS * APPEND_TOKENS) as f64)
}
