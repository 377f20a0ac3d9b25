//! What happens, one act after the other. Each ends when everything is as it should be.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use ebbtide_core::ids::ReplicaId;
use ebbtide_harness::until;

use super::agents::{Agents, Seen};
use super::cluster::{Controller, end_moves, furnish, offer_cheaper_nodes};
use super::replica::LONG;
use super::trainer::Trainer;
use super::{CHEAP, GROUP_SIZE, KEPT, NODES_PER_REPLICA, Site, Size, UNITS_PER_REPLICA};

/// Groups that keep so many replicas busy.
const LONG_GROUPS: u32 = KEPT * UNITS_PER_REPLICA / GROUP_SIZE as u32;

/// What was measured meanwhile.
#[derive(Debug, Clone, Copy)]
pub struct Told {
    /// From the first group in the queue to the last replica at work.
    pub grown_in: Duration,
    /// From a cheaper offer to every replica at work again, one of them on a cheaper node.
    pub moved_in: Duration,
    /// From a full buffer to the last surplus replica gone.
    pub shrunk_in: Duration,
    /// From then on to the last empty node gone.
    pub emptied_in: Duration,
    /// All of it.
    pub told_in: Duration,
    /// Of the controller, with every replica at work; none if the kernel does not say.
    pub controller: Option<Footprint>,
}

/// What the controller costs.
#[derive(Debug, Clone, Copy)]
pub struct Footprint {
    pub resident_mib: f64,
    /// Share of one core.
    pub cores: f64,
}

/// The stage with everybody on it.
struct Play<'a> {
    site: &'a Site<'a>,
    size: Size,
    limit: Duration,
    controller: Controller,
    agents: Agents,
    trainer: Trainer,
}

/// Tells the story; no wait in it takes longer than `limit`.
///
/// # Errors
/// The first thing that is not as it should be.
pub async fn tell(site: &Site<'_>, size: Size, limit: Duration) -> anyhow::Result<Told> {
    furnish(site).await?;
    let folder = tempfile::tempdir()?;
    let mut play = Play {
        site,
        size,
        limit,
        trainer: Trainer::begin(site.queue.clone(), limit).await?,
        agents: Agents::start(site, size),
        controller: Controller::start(site, size, folder.path())?,
    };
    let told = play.acts().await;
    if let Err(error) = &told {
        let reasons = play.controller.reasons().await;
        let log = play.controller.program.log();
        bail!("{error:#}\nreasons: {reasons:#?}\nlog of the controller:\n{log}");
    }
    told
}

impl Play<'_> {
    async fn acts(&mut self) -> anyhow::Result<Told> {
        let began_at = Instant::now();
        let grown_in = self.grow().await.context("growth")?;
        let moved_in = self.let_karpenter_move_a_node().await.context("a moved node")?;
        let controller = self.footprint().await;
        self.fill_the_buffer().await.context("work")?;
        let shrunk_in = self.shrink().await.context("less demand")?;
        let emptied_in = self.end().await.context("the end")?;
        let told_in = began_at.elapsed();
        Ok(Told { grown_in, moved_in, shrunk_in, emptied_in, told_in, controller })
    }

    /// From nothing to what the demand asks for, on Spot as far as there is any, on demand for the
    /// rest. In the middle of it the controller is killed.
    async fn grow(&mut self) -> anyhow::Result<Duration> {
        let began_at = Instant::now();
        let (size, all) = (self.size, self.size.replicas());
        self.trainer.enqueue("a-", size.groups_per_step()).await?;
        let half = self.seen("half of the copies", |seen| copies(seen) >= all / 3).await?;
        ensure!(copies(&half) < size.spot, "it must be killed before all are ordered");
        self.controller.replace()?;
        self.seen("every replica at work", |seen| {
            let in_place = (seen.sight.copies_of("spot"), seen.sight.copies_of("on-demand"));
            in_place == (size.spot, size.on_demand) && self.is_busy(seen, all)
        })
        .await?;
        let grown_in = began_at.elapsed();
        let is_told = |reason: &String| reason.starts_with("pool dry is benched");
        until("the zone without capacity on the bench", self.limit, || async {
            self.controller.reasons().await.iter().any(is_told).then_some(())
        })
        .await?;
        Ok(grown_in)
    }

    /// Karpenter finds a cheaper node under a group that works, and moves it there.
    async fn let_karpenter_move_a_node(&mut self) -> anyhow::Result<Duration> {
        let (began_at, all) = (Instant::now(), self.size.replicas());
        offer_cheaper_nodes(self.site).await?;
        self.seen("a group on a cheaper node", |seen| {
            seen.sight
                .groups
                .values()
                .flat_map(|group| &group.members)
                .any(|member| seen.sight.nodes.get(&member.node).is_some_and(|kind| kind == CHEAP))
        })
        .await?;
        end_moves(self.site).await?;
        self.seen("every replica at work again", |seen| self.is_busy(seen, all)).await?;
        Ok(began_at.elapsed())
    }

    /// The buffer gets to its target and stays there while the trainer works.
    async fn fill_the_buffer(&mut self) -> anyhow::Result<()> {
        let groups = self.size.groups_per_step();
        self.agents.tell(|orders| orders.works = true);
        self.trainer.buffer_fills(groups).await?;
        self.step(groups).await?;
        self.trainer.enqueue("b-", groups).await?;
        self.trainer.buffer_fills(groups).await?;
        let seen = self.agents.seen();
        ensure!(copies(&seen) == self.size.replicas(), "the fleet stays: {:?}", seen.sight.copies);
        Ok(())
    }

    /// The buffer gets full, and all but those that are busy go. In the middle of it the controller
    /// is killed.
    async fn shrink(&mut self) -> anyhow::Result<Duration> {
        let kept: BTreeSet<ReplicaId> = {
            let seen = self.agents.seen();
            let on_spot = seen.sight.groups.keys().filter(|id| id.as_str().starts_with("spot-"));
            on_spot.take(KEPT as usize).cloned().collect()
        };
        self.agents.tell(|orders| orders.lessees = Some(kept.clone()));
        let (all, groups) = (self.size.replicas(), self.size.groups_per_step());
        self.trainer.enqueue(LONG, LONG_GROUPS).await?;
        self.seen("two busy replicas", |seen| alone_are_busy(seen, &kept)).await?;
        self.agents.tell(|orders| orders.lessees = None);
        self.trainer.enqueue("c-", groups).await?;
        self.trainer.buffer_fills(2 * groups).await?;

        let began_at = Instant::now();
        let some = self.seen("the first to go", |seen| copies(seen) < all).await?;
        ensure!(copies(&some) > KEPT, "it must be killed before all are gone");
        self.controller.replace()?;
        let are_left = |seen: &Seen| copies(seen) == KEPT && seen.drains == 0;
        let end = self.seen("only so many replicas", are_left).await?;
        let shrunk_in = began_at.elapsed();
        let left: BTreeSet<ReplicaId> = end.sight.groups.keys().cloned().collect();
        ensure!(left == kept, "{kept:?} were busy, {left:?} are left");
        Ok(shrunk_in)
    }

    /// What is left is made, and everything has come once. Karpenter takes the empty nodes, and
    /// nobody remembers them.
    async fn end(&mut self) -> anyhow::Result<Duration> {
        let began_at = Instant::now();
        self.agents.tell(|orders| orders.ends_long = true);
        let groups = self.size.groups_per_step();
        for part in [groups, groups, LONG_GROUPS] {
            self.step(part).await?;
        }
        self.trainer.audit().await?;
        let left = (KEPT * NODES_PER_REPLICA) as usize;
        let end = self.seen("empty nodes to go", |seen| seen.sight.nodes.len() == left).await?;
        let emptied_in = began_at.elapsed();
        ensure!(end.most_copies == self.size.replicas(), "{} copies", end.most_copies);
        let busy = self.controller.metrics("ebbtide_busy_terminations").await?;
        ensure!(!busy.is_empty() && busy.values().all(|count| *count == 0.0), "{busy:?}");
        let nodes: BTreeSet<_> = end.sight.nodes.keys().cloned().collect();
        until("records of nodes that are gone to be forgotten", self.limit, || async {
            let view = self.site.queue.view().await.ok()?;
            let known: BTreeSet<_> = view.nodes.into_iter().map(|record| record.node).collect();
            (known == nodes).then_some(())
        })
        .await?;
        Ok(emptied_in)
    }

    /// One update of the trainer.
    async fn step(&mut self, groups: u32) -> anyhow::Result<()> {
        self.trainer.step(groups).await?;
        let step = self.trainer.step;
        self.agents.tell(|orders| orders.step = step);
        Ok(())
    }

    /// Whether so many replicas run, each with all that it may hold.
    fn is_busy(&self, seen: &Seen, replicas: u32) -> bool {
        let units = (replicas * UNITS_PER_REPLICA) as usize;
        seen.sight.whole() == replicas && seen.units_held() == units && seen.drains == 0
    }

    async fn seen(&self, what: &str, is_so: impl Fn(&Seen) -> bool) -> anyhow::Result<Seen> {
        let found = until(what, self.limit, || async {
            let seen = self.agents.seen();
            (!seen.faults.is_empty() || is_so(&seen)).then_some(seen)
        });
        let seen = found.await.with_context(|| describe(&self.agents.seen()))?;
        ensure!(seen.faults.is_empty(), "{what}: {:#?}", seen.faults);
        Ok(seen)
    }

    /// What the controller costs over some ticks.
    async fn footprint(&self) -> Option<Footprint> {
        let process = self.controller.program.process_id()?;
        let (began_at, before) = (Instant::now(), ebbtide_harness::cpu_time(process).ok()?);
        let is_over = || async { (began_at.elapsed() >= self.size.footprint_of).then_some(()) };
        until("some ticks", self.limit, is_over).await.ok()?;
        let took = ebbtide_harness::cpu_time(process).ok()?.checked_sub(before)?;
        let cores = took.as_secs_f64() / began_at.elapsed().as_secs_f64();
        Some(Footprint { resident_mib: ebbtide_harness::resident_mib(process).ok()?, cores })
    }
}

/// Copies where there is capacity.
fn copies(seen: &Seen) -> u32 {
    seen.sight.copies_of("spot") + seen.sight.copies_of("on-demand")
}

/// Whether these hold all that they may, and nobody else holds anything.
fn alone_are_busy(seen: &Seen, replicas: &BTreeSet<ReplicaId>) -> bool {
    let (each, all) = (UNITS_PER_REPLICA as usize, seen.units_held());
    all == each * replicas.len() && replicas.iter().all(|id| seen.held.get(id) == Some(&each))
}

fn describe(seen: &Seen) -> String {
    format!(
        "copies {:?}, {} groups of which {} are whole, {} nodes, {} units held, {} drains",
        seen.sight.copies,
        seen.sight.groups.len(),
        seen.sight.whole(),
        seen.sight.nodes.len(),
        seen.units_held(),
        seen.drains,
    )
}
