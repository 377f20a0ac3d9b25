//! Calls of operators and of those who watch: what stands, what has failed, what does not hold.

use ebbtide_core::ids::{FencingToken, GroupId, NodeName, UnitId};
use ebbtide_core::work::PromptGroup;

use super::training::write_reply;
use super::{Gathered, Hint, QueueError, SCAN_PAGES_LIMIT, WorkQueue};
use crate::command::{AuditPart, Command, Stage};
use crate::reply::{Failure, Reply, WriteReply};
use crate::state::{Finding, GroupTrace, UnitSnapshot};
use crate::status::ShardStatus;

impl WorkQueue {
    /// Counters and depths of every shard that answers.
    pub async fn status(&self) -> Gathered<ShardStatus> {
        let calls = (0..self.shard_count()).map(|shard| async move {
            self.shard_status(shard).await.map_err(|error| (shard, error))
        });
        let mut gathered = Gathered { answers: Vec::new(), missing: Vec::new() };
        for answer in futures::future::join_all(calls).await {
            match answer {
                Ok(status) => gathered.answers.push(status),
                Err(missing) => gathered.missing.push(missing),
            }
        }
        gathered
    }

    /// Counters and depths of one shard.
    ///
    /// # Errors
    /// The shard gave no answer.
    pub async fn shard_status(&self, shard: u16) -> Result<ShardStatus, QueueError> {
        match self.port.call(shard, Command::Status).await? {
            Reply::Status(status) => Ok(*status),
            other => Err(QueueError::unexpected("a status", &other)),
        }
    }

    /// Units leased to holders of a node, expired leases that nobody reaped yet included; cheap in
    /// a run of any size.
    ///
    /// # Errors
    /// A shard gave no answer: a sum that lacks it would be too small.
    pub async fn held_by(&self, node: &NodeName) -> Result<u64, QueueError> {
        let calls = (0..self.shard_count())
            .map(|shard| self.count_of(shard, Command::Held { node: node.clone() }));
        Ok(futures::future::try_join_all(calls).await?.into_iter().sum())
    }

    /// The raw state of every unit, for audits; consistent only while nothing else writes.
    ///
    /// # Errors
    /// A shard gave no answer.
    pub async fn scan(&self) -> Result<Vec<UnitSnapshot>, QueueError> {
        let mut units = Vec::new();
        for shard in 0..self.shard_count() {
            units.extend(self.scan_shard(shard).await?);
        }
        Ok(units)
    }

    /// The raw state of every unit of one shard; consistent only while nothing else writes.
    ///
    /// # Errors
    /// The shard gave no answer.
    pub async fn scan_shard(&self, shard: u16) -> Result<Vec<UnitSnapshot>, QueueError> {
        let (mut units, mut cursor) = (Vec::new(), 0);
        for _ in 0..SCAN_PAGES_LIMIT {
            match self.port.call(shard, Command::Scan { cursor }).await? {
                Reply::Page(page) => {
                    units.extend(page.units);
                    cursor = page.cursor;
                }
                other => return Err(QueueError::unexpected("a page of units", &other)),
            }
            if cursor == 0 {
                break;
            }
        }
        Ok(units)
    }

    /// The records of failed groups on one shard after `after`, oldest first.
    ///
    /// # Errors
    /// The shard gave no answer.
    pub async fn failures(
        &self,
        shard: u16,
        after: &str,
        limit: usize,
    ) -> Result<Vec<Failure>, QueueError> {
        let command = Command::Failures { after: after.to_owned(), limit };
        match self.port.call(shard, command).await? {
            Reply::Failures(records) => Ok(records),
            other => Err(QueueError::unexpected("failure records", &other)),
        }
    }

    /// The units at the head of each shard's ready queue, in the order in which they would be
    /// leased there.
    ///
    /// # Errors
    /// A shard gave no answer.
    pub async fn peek(&self, stage: Stage, limit: usize) -> Result<Vec<UnitSnapshot>, QueueError> {
        let mut units = Vec::new();
        for shard in 0..self.shard_count() {
            match self.port.call(shard, Command::Peek { stage, limit }).await? {
                Reply::Units(found) => units.extend(found),
                other => return Err(QueueError::unexpected("units", &other)),
            }
        }
        Ok(units)
    }

    /// Everything that is known of a group.
    ///
    /// # Errors
    /// Its shard gave no answer.
    pub async fn trace(&self, group: &GroupId) -> Result<GroupTrace, QueueError> {
        let command = Command::Trace { group: group.clone() };
        match self.port.call(self.shard_of(group), command).await? {
            Reply::Trace(trace) => Ok(*trace),
            other => Err(QueueError::unexpected("a trace", &other)),
        }
    }

    /// Takes a leased unit from the holder that has it now, and makes it ready again.
    ///
    /// # Errors
    /// Its shard gave no answer; repeating the call takes the unit from whoever has it then.
    pub async fn requeue(&self, unit: &UnitId) -> Result<WriteReply, QueueError> {
        let trace = self.trace(&unit.group).await?;
        let found = trace.units.iter().find(|found| found.unit.unit == *unit);
        let fencing_token = found.map_or(FencingToken(0), |found| found.unit.fencing_token);
        let command = Command::Requeue { unit: unit.clone(), fencing_token };
        let reply = write_reply(self.port.call(self.shard_of(&unit.group), command).await?)?;
        self.port.wake(Hint::Work).await;
        Ok(reply)
    }

    /// Enqueues a failed group again and deletes the record of its failure.
    ///
    /// # Errors
    /// Its shard gave no answer (repeating the call is harmless), or the record has no group.
    pub async fn retry(&self, failure: &Failure) -> Result<WriteReply, QueueError> {
        let Some(spec) = &failure.spec else {
            let problem = format!("the record of group {} has lost its prompt", failure.group);
            return Err(QueueError::Protocol { problem });
        };
        let command = Command::Retry {
            record_id: failure.record_id.clone(),
            group: Box::new(PromptGroup::clone(spec)),
        };
        let reply = write_reply(self.port.call(self.shard_of(&failure.group), command).await?)?;
        self.port.wake(Hint::Work).await;
        Ok(reply)
    }

    /// Deletes the record of a failure; answers whether it was there.
    ///
    /// # Errors
    /// Its shard gave no answer; repeating the call is harmless.
    pub async fn drop_failure(&self, failure: &Failure) -> Result<bool, QueueError> {
        let command = Command::DropFailure { record_id: failure.record_id.clone() };
        Ok(self.count_of(self.shard_of(&failure.group), command).await? > 0)
    }

    /// Recomputes everything that must hold within each shard from its raw keys, and mends what
    /// does not when `repair` says so. Only while nothing else writes is every finding a fault.
    ///
    /// # Errors
    /// A shard gave no answer.
    pub async fn audit(&self, repair: bool) -> Result<Vec<Finding>, QueueError> {
        let mut findings = Vec::new();
        for shard in 0..self.shard_count() {
            for part in AuditPart::ALL {
                findings.extend(self.audit_part(shard, part, repair).await?);
            }
        }
        Ok(findings)
    }

    /// As [`WorkQueue::audit`], of one part of one shard.
    ///
    /// # Errors
    /// The shard gave no answer.
    pub async fn audit_part(
        &self,
        shard: u16,
        part: AuditPart,
        repair: bool,
    ) -> Result<Vec<Finding>, QueueError> {
        let (mut findings, mut cursor) = (Vec::new(), 0);
        for _ in 0..SCAN_PAGES_LIMIT {
            match self.port.call(shard, Command::Audit { part, cursor, repair }).await? {
                Reply::Findings(next, found) => {
                    cursor = next;
                    findings.extend(found);
                }
                other => return Err(QueueError::unexpected("findings", &other)),
            }
            if cursor == 0 {
                break;
            }
        }
        Ok(findings)
    }
}
