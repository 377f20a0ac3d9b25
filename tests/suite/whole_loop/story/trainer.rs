//! The trainer: groups in, samples out. Each group comes once, whole, with its only right tokens.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, ensure};
use ebbtide_core::ids::{GroupId, PolicyVersion};
use ebbtide_core::work::{PromptGroup, Sampling};
use ebbtide_harness::until;
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::control::VersionRecord;
use ebbtide_queue::reply::{TakenGroup, WriteReply};
use ebbtide_queue::status::ShardStatus;

use super::GROUP_SIZE;
use super::replica::{TOKENS, token_at};

const CONSUMER: &str = "trainer";

/// See the module.
pub struct Trainer {
    queue: WorkQueue,
    limit: Duration,
    enqueued: BTreeSet<GroupId>,
    delivered: BTreeSet<GroupId>,
    /// Updates so far.
    pub step: u64,
}

impl Trainer {
    /// Publishes the first version.
    ///
    /// # Errors
    /// The queue did not answer.
    pub async fn begin(queue: WorkQueue, limit: Duration) -> anyhow::Result<Self> {
        let (enqueued, delivered) = (BTreeSet::new(), BTreeSet::new());
        let mut trainer = Self { queue, limit, enqueued, delivered, step: 0 };
        trainer.publish().await?;
        Ok(trainer)
    }

    async fn publish(&mut self) -> anyhow::Result<()> {
        self.step += 1;
        let version = PolicyVersion(self.step);
        self.queue.set_version(VersionRecord { version, ..VersionRecord::default() }).await?;
        Ok(())
    }

    /// Enqueues so many groups whose names begin like this.
    ///
    /// # Errors
    /// The queue did not take one.
    pub async fn enqueue(&mut self, prefix: &str, groups: u32) -> anyhow::Result<()> {
        for _ in 0..groups {
            let id: GroupId = format!("{prefix}{}", self.enqueued.len()).parse()?;
            let mut group = PromptGroup::new(id.clone(), GROUP_SIZE, vec![1, 2, 3]);
            group.sampling = Sampling { max_tokens: TOKENS, seed: Some(7), ..Sampling::default() };
            group.max_lag = 8;
            let reply = self.queue.enqueue(group).await?;
            ensure!(reply == WriteReply::Ok, "group {id} was answered {reply:?}");
            self.enqueued.insert(id);
        }
        Ok(())
    }

    /// Waits until so many groups are sealed.
    ///
    /// # Errors
    /// They are not in time.
    pub async fn buffer_fills(&self, groups: u32) -> anyhow::Result<()> {
        let what = format!("{groups} groups in the buffer");
        until(&what, self.limit, || async {
            let status = self.queue.status().await.complete().ok()?;
            (ShardStatus::sum(status).sealed_waiting == u64::from(groups)).then_some(())
        })
        .await?;
        Ok(())
    }

    /// One update: takes so many groups, acknowledges them, and publishes the next version.
    ///
    /// # Errors
    /// They do not come in time, or not as they should.
    pub async fn step(&mut self, groups: u32) -> anyhow::Result<()> {
        self.buffer_fills_at_least(groups).await?;
        let taken = self.queue.take(CONSUMER, groups as usize).await?;
        ensure!(taken.len() == groups as usize, "took {} groups of {groups}", taken.len());
        let mut ids = Vec::new();
        for group in &taken {
            self.check(group).with_context(|| format!("group {}", group.group.group_id))?;
            ids.push(group.group.group_id.clone());
        }
        let acknowledged = self.queue.acknowledge(CONSUMER, &ids).await?;
        ensure!(acknowledged == u64::from(groups), "{acknowledged} of {groups} acknowledged");
        self.publish().await
    }

    async fn buffer_fills_at_least(&self, groups: u32) -> anyhow::Result<()> {
        let what = format!("{groups} groups for a step");
        until(&what, self.limit, || async {
            let status = self.queue.status().await.complete().ok()?;
            (ShardStatus::sum(status).sealed_waiting >= u64::from(groups)).then_some(())
        })
        .await?;
        Ok(())
    }

    fn check(&mut self, taken: &TakenGroup) -> anyhow::Result<()> {
        let id = &taken.group.group_id;
        ensure!(self.enqueued.contains(id), "nobody has enqueued it");
        ensure!(self.delivered.insert(id.clone()), "it comes a second time");
        ensure!(taken.samples.len() == usize::from(GROUP_SIZE), "it lacks samples");
        for sample in &taken.samples {
            let right: Vec<i32> = (0..TOKENS).map(|at| token_at(&sample.unit, at)).collect();
            ensure!(sample.token_ids() == right, "{} has {:?}", sample.unit, sample.token_ids());
            let lost = (sample.attempts, sample.infra_attempts);
            ensure!(lost == (0, 0), "{} was lost on its way: {lost:?}", sample.unit);
        }
        Ok(())
    }

    /// Everything that was enqueued has come, and nothing is left.
    ///
    /// # Errors
    /// What is not so.
    pub async fn audit(&self) -> anyhow::Result<()> {
        let missing: Vec<_> = self.enqueued.difference(&self.delivered).collect();
        ensure!(missing.is_empty(), "never came: {missing:?}");
        let status = ShardStatus::sum(self.queue.status().await.complete()?);
        let slots = (self.enqueued.len() * usize::from(GROUP_SIZE)) as u64;
        let ends = (status.enqueued, status.completed, status.in_system());
        ensure!(ends == (slots, slots, 0), "{slots} slots: {status:?}");
        let lost = (status.dead, status.expired, status.cancelled, status.lease_expiries);
        ensure!(lost == (0, 0, 0, 0), "{status:?}");
        ensure!(status.tokens.wasted_total() == 0, "{:?}", status.tokens);
        let findings = self.queue.audit(false).await?;
        ensure!(findings.is_empty(), "{findings:?}");
        Ok(())
    }
}
