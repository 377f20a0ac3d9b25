//! One pass: the observation from decoded records, and the plan. No I/O, one thread.
//!
//! The passes follow one another as in a run: the trainer finishes an update every ten seconds, the
//! buffer is low for a while and full for a while, so that some passes raise pools, others name
//! replicas to drain, and most change nothing. Memory is handed from pass to pass. The clock is
//! this thread's, which has a core for itself.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::ensure;
use ebbtide_controller::observe::{Reads, build};
use ebbtide_core::scale::{ScaleMemory, SizingTerms, plan_scale};
use ebbtide_core::time::UnixMillis;
use ebbtide_harness::{Figures, percentile_ms};

use super::fleet::{Fleet, GROUP_SIZE, NODES_PER_REPLICA, TICK};

/// Sizes of the table with their keys.
const SIZES: [(u32, &str); 5] = [
    (100, "pass100NodesMs"),
    (300, "pass300NodesMs"),
    (1_000, "pass1kNodesMs"),
    (3_000, "pass3kNodesMs"),
    (10_000, "pass10kNodesMs"),
];
const PASSES: u64 = 600;
/// Passes before counting begins.
const WARM_UP: usize = 20;
/// Passes that one update of the trainer takes.
const PASSES_PER_STEP: u64 = 10;
/// Passes after which the buffer changes from low to full and back.
const MOOD: u64 = 100;

/// See the module.
///
/// # Errors
/// The fleet's policy is wrong, or nothing was ever decided.
pub fn measure(quick: bool, figures: &mut Figures) -> anyhow::Result<()> {
    let passes = if quick { PASSES / 10 } else { PASSES };
    let mut medians = Vec::new();
    for (nodes, key) in SIZES {
        let took = passes_over(Fleet { nodes }, passes)?;
        let median = percentile_ms(&took, 50);
        figures.set(key, median);
        medians.push((f64::from(nodes), median));
        if nodes == 10_000 {
            figures.set("pass10kNodesMaxMs", percentile_ms(&took, 100));
        }
    }
    let [.., one, _, ten] = medians[..] else { anyhow::bail!("too few sizes") };
    let cost = (ten.1 / one.1).ln();
    figures.set("growthExponent", cost / (ten.0 / one.0).ln());
    let work = |nodes: f64| nodes * nodes.ln();
    figures.set("nLogNExponent", cost / (work(ten.0) / work(one.0)).ln());
    Ok(())
}

fn passes_over(fleet: Fleet, passes: u64) -> anyhow::Result<Vec<Duration>> {
    let policy = fleet.policy("act")?;
    let terms = SizingTerms::from(&policy);
    let nodes_per_replica = u16::try_from(NODES_PER_REPLICA)?;
    let groups = u64::from(fleet.groups_per_step());
    let mut memory = ScaleMemory::default();
    let (mut took, mut actions) = (Vec::new(), 0);
    for pass in 0..passes {
        let now = UnixMillis(1_800_000_000_000).plus(TICK * u32::try_from(pass)?);
        let step = pass / PASSES_PER_STEP;
        let mut status = fleet.status(now);
        status.completed = pass * groups * u64::from(GROUP_SIZE) / PASSES_PER_STEP;
        status.ready = 4 * groups * u64::from(GROUP_SIZE);
        status.sealed_waiting =
            if (pass / MOOD).is_multiple_of(2) { groups / 8 } else { 3 * groups };
        let reads = Reads {
            watched_for: Duration::from_mins(10),
            status: Ok(status),
            view: Ok(fleet.view(now, step)),
            pools: fleet.pool_views(),
            service_pools: BTreeMap::new(),
            trainer_pool: None,
            gone: [].into(),
            problems: Vec::new(),
        };
        let began_at = Instant::now();
        let observation = build(&reads, nodes_per_replica, now);
        let plan = plan_scale(&terms, &observation, &memory);
        took.push(began_at.elapsed());
        actions += plan.actions.len();
        memory = plan.memory;
    }
    ensure!(actions > 0, "nothing was decided about {} nodes", fleet.nodes);
    Ok(took.split_off(WARM_UP))
}
