//! One unit in the hands of a custom worker, and the phases that it goes through.

use std::collections::VecDeque;
use std::sync::Arc;

use ebbtide_core::fabric::FabricVerdict;
use ebbtide_core::ids::{FencingToken, Holder, PolicyVersion, UnitId};
use ebbtide_core::sample::{Chunk, Origin};
use ebbtide_core::time::UnixMillis;
use ebbtide_core::work::PromptGroup;
use ebbtide_queue::command::{HandBack, Stage, Then, Waiting};
use ebbtide_queue::reply::Grant;
use tokio::time::Instant;

use super::WorkerName;
use super::writing::NewTokens;
use crate::ledger::SpeedMeter;

/// Transfers that a unit remembers, so that a repeated one is the same to the queue: a worker has
/// one under way, and may repeat a few before it.
const STAMPS_KEPT: usize = 8;

/// One lease.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LeaseKey {
    /// The leased unit.
    pub(crate) unit: UnitId,
    /// Under which it is held.
    pub(crate) fencing_token: FencingToken,
}

/// What a worker is given.
pub(crate) type Grants = Vec<Arc<Grant>>;

/// How far a held unit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its worker works on it. During a drain: until when it may.
    Working { keep_until: Option<Instant> },
    /// Its worker is to send what it has and hand it back, by this time.
    Releasing { why: HandBack, write_by: Instant },
    /// The agent gives it back; its worker has lost it.
    HandingBack(HandBack),
}

/// A leased unit.
#[derive(Debug)]
pub(super) struct HeldUnit {
    pub(super) worker: WorkerName,
    pub(super) stage: Stage,
    pub(super) group: Arc<PromptGroup>,
    pub(super) fencing_token: FencingToken,
    /// What makes its tokens, recorded with them.
    pub(super) engine: String,
    /// Weights that its worker had when it was leased.
    pub(super) version: PolicyVersion,
    /// The run's version when it was leased.
    pub(super) run_version: PolicyVersion,
    /// Tokens that the queue is known to have.
    pub(super) end: u32,
    pub(super) meter: SpeedMeter,
    pub(super) waiting: Waiting,
    /// When its worker last wrote to it or renewed it.
    pub(super) heard_at: Instant,
    /// What was granted, until the worker shows that it has it.
    pub(super) grant: Option<Arc<Grant>>,
    /// Whether the grant was handed out.
    pub(super) is_delivered: bool,
    /// Writes of its worker that the queue has not answered.
    pub(super) writes_under_way: usize,
    /// The last write was to end it; while it is held, that was not answered.
    is_end_sent: bool,
    pub(super) phase: Phase,
    stamps: VecDeque<Stamp>,
}

/// When a transfer arrived first.
#[derive(Debug, Clone, Copy)]
struct Stamp {
    offset: u32,
    end: u32,
    at: UnixMillis,
}

impl HeldUnit {
    pub(super) fn granted(
        grant: Grant,
        worker: WorkerName,
        stage: Stage,
        engine: String,
        versions: (PolicyVersion, PolicyVersion),
        now: Instant,
    ) -> Self {
        Self {
            worker,
            stage,
            group: grant.group.clone(),
            fencing_token: grant.fencing_token,
            engine,
            version: versions.0,
            run_version: versions.1,
            end: grant.partial.last().map_or(0, Chunk::end),
            meter: SpeedMeter::default(),
            waiting: Waiting::Nothing,
            heard_at: now,
            grant: Some(Arc::new(grant)),
            is_delivered: false,
            writes_under_way: 0,
            is_end_sent: false,
            phase: Phase::Working { keep_until: None },
            stamps: VecDeque::new(),
        }
    }

    /// Nothing is being written for it or by the agent.
    pub(super) fn is_at_rest(&self) -> bool {
        self.writes_under_way == 0 && !matches!(self.phase, Phase::HandingBack(_))
    }

    /// Its worker has shown that it has the unit.
    pub(super) fn note_heard(&mut self, now: Instant) {
        self.heard_at = now;
        self.is_delivered = true;
        self.grant = None;
    }

    /// This is being sent. Says whether an end was sent before.
    pub(super) fn note_sent(&mut self, then: &Then) -> bool {
        std::mem::replace(&mut self.is_end_sent, *then != Then::Continue)
    }

    /// The tokens as the queue wants them. Repeated, the same tokens are the same chunk, so that
    /// the queue knows them again.
    pub(super) fn chunk(
        &mut self,
        tokens: NewTokens,
        holder: &Holder,
        fabric: FabricVerdict,
        wall_now: UnixMillis,
    ) -> Chunk {
        let at = self.stamp(tokens.offset, tokens.end(), wall_now);
        Chunk {
            offset: tokens.offset,
            weight_version: tokens.weight_version.unwrap_or(self.version),
            token_ids: tokens.token_ids,
            logprobs: tokens.logprobs,
            origin: Origin {
                holder: holder.clone(),
                fencing_token: self.fencing_token,
                engine: self.engine.clone(),
                fabric,
                started_at: at,
                ended_at: at,
            },
        }
    }

    fn stamp(&mut self, offset: u32, end: u32, wall_now: UnixMillis) -> UnixMillis {
        let known = self.stamps.iter().find(|stamp| (stamp.offset, stamp.end) == (offset, end));
        if let Some(stamp) = known {
            return stamp.at;
        }
        if self.stamps.len() == STAMPS_KEPT {
            self.stamps.pop_front();
        }
        self.stamps.push_back(Stamp { offset, end, at: wall_now });
        wall_now
    }

    /// The queue has the response up to `end`: those tokens are new if they were not known.
    pub(super) fn note_stored(&mut self, end: u32, now: Instant) -> u32 {
        let new = end.saturating_sub(self.end);
        if new > 0 {
            self.end = end;
            self.meter.record(new, now);
            self.waiting = Waiting::Nothing;
        }
        new
    }
}
