//! Writes of workers and hand-backs of the agent: what is sent, and what the answers mean.

use ebbtide_core::fabric::FabricVerdict;
use ebbtide_core::ids::{Holder, PolicyVersion};
use ebbtide_core::sample::{Chunk, FinishReason};
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::client::QueueError;
use ebbtide_queue::command::{HandBack, Then, UnitWrite};
use ebbtide_queue::reply::WriteReply;
use tokio::time::Instant;

use super::unit::{HeldUnit, LeaseKey, Phase};
use super::{WorkerName, Workers};
use crate::ledger::Settled;

/// Tokens that a worker sends.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NewTokens {
    /// Index of the first one within the response.
    pub(crate) offset: u32,
    /// The weights that made them; those of the lease when it does not say.
    pub(crate) weight_version: Option<PolicyVersion>,
    pub(crate) token_ids: Vec<i32>,
    pub(crate) logprobs: Vec<f32>,
}

impl NewTokens {
    /// One past the last one.
    pub(crate) fn end(&self) -> u32 {
        self.offset.saturating_add(u32::try_from(self.token_ids.len()).unwrap_or(u32::MAX))
    }
}

/// A write as a worker asks for it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WorkerWrite {
    pub(crate) key: LeaseKey,
    pub(crate) tokens: Option<NewTokens>,
    pub(crate) then: Then,
}

/// How writes are recorded.
#[derive(Debug, Clone)]
pub(crate) struct WriteTerms {
    pub(crate) holder: Holder,
    pub(crate) fabric: FabricVerdict,
    /// The node's wall clock.
    pub(crate) wall_now: UnixMillis,
    /// Why hand-backs happen while a drain is under way.
    pub(crate) drain_why: Option<HandBack>,
}

/// What was sent for one unit, to be settled by its answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sent {
    key: LeaseKey,
    /// Whose unit it was; none when the agent gives it back.
    worker: Option<WorkerName>,
    /// Whether the unit was held here.
    is_held: bool,
    /// One past the last token that was sent.
    end: Option<u32>,
    then: Then,
    /// An end of the unit was sent before, and not answered.
    is_repeated: bool,
}

/// What a worker is told of one write or renewal.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) reply: Result<WriteReply, QueueError>,
    /// When the unit has to be handed back, if it has to.
    pub(crate) release_by: Option<Instant>,
}

impl Answer {
    pub(super) fn fenced() -> Self {
        Self { reply: Ok(WriteReply::Fenced), release_by: None }
    }
}

/// What a batch of answers means together.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) settled: Settled,
    /// Lengths of finished responses.
    pub(super) lengths: Vec<u32>,
    /// Tokens that turned out to be stored.
    pub(super) tokens: u64,
}

impl Outcome {
    /// Whether a unit is no longer held.
    pub(super) fn has_ends(&self) -> bool {
        let settled = &self.settled;
        settled.completed + settled.lost + settled.handed_back.len() + settled.faults.len() > 0
    }
}

impl Workers {
    /// Begins a write. `None` when the unit is another's, or goes back already: then the answer
    /// is FENCED without asking. One that is not held at all is left to the queue to judge.
    pub(super) fn begin_write(
        &mut self,
        worker: &WorkerName,
        write: WorkerWrite,
        terms: &WriteTerms,
        now: Instant,
    ) -> Option<(UnitWrite, Sent)> {
        let WorkerWrite { key, tokens, mut then } = write;
        let is_anothers = |unit: &&HeldUnit| {
            unit.fencing_token == key.fencing_token
                && (unit.worker != *worker || matches!(unit.phase, Phase::HandingBack(_)))
        };
        if self.units.get(&key.unit).filter(is_anothers).is_some() {
            return None;
        }
        let end = tokens.as_ref().map(NewTokens::end);
        let held = self.own_unit(worker, &key);
        let (is_held, mut is_repeated) = (held.is_some(), false);
        let chunk = match held {
            Some(unit) => {
                unit.note_heard(now);
                unit.writes_under_way += 1;
                is_repeated = unit.note_sent(&then);
                if let Then::HandBack(given) = &mut then {
                    *given = match unit.phase {
                        Phase::Releasing { why, .. } => why,
                        _ => terms.drain_why.unwrap_or(*given),
                    };
                }
                tokens.map(|new| unit.chunk(new, &terms.holder, terms.fabric, terms.wall_now))
            }
            None => tokens.map(|new| nobodys_chunk(new, &key, terms)),
        };
        let write = UnitWrite {
            unit: key.unit.clone(),
            fencing_token: key.fencing_token,
            tail: chunk.into_iter().collect(),
            then: then.clone(),
        };
        let worker = Some(worker.clone());
        Some((write, Sent { key, worker, is_held, end, then, is_repeated }))
    }

    /// What the agent has to hand back.
    pub(super) fn hand_backs(&mut self) -> Vec<(UnitWrite, Sent)> {
        let leaving = self.units.iter_mut().filter_map(|(id, unit)| match unit.phase {
            Phase::HandingBack(why) if unit.writes_under_way == 0 => Some((id, unit, why)),
            _ => None,
        });
        let hand_back = leaving.map(|(id, held, why)| {
            let (unit, fencing_token) = (id.clone(), held.fencing_token);
            let key = LeaseKey { unit: unit.clone(), fencing_token };
            let then = Then::HandBack(why);
            let is_repeated = held.note_sent(&then);
            let (worker, is_held, end) = (None, true, None);
            let sent = Sent { key, worker, is_held, end, then: then.clone(), is_repeated };
            (UnitWrite { unit, fencing_token, tail: Vec::new(), then }, sent)
        });
        hand_back.collect()
    }

    /// Takes in the answers. Those to a lease that is held no longer change nothing.
    pub(super) fn settle(
        &mut self,
        sent: Vec<Sent>,
        replies: Vec<Result<WriteReply, QueueError>>,
        now: Instant,
    ) -> (Vec<Answer>, Outcome) {
        let mut outcome = Outcome::default();
        let mut answers = Vec::with_capacity(sent.len());
        for (sent, reply) in sent.into_iter().zip(replies) {
            let key = sent.key.clone();
            self.settle_one(sent, &reply, &mut outcome, now);
            let unit = self.units.get(&key.unit).filter(|u| u.fencing_token == key.fencing_token);
            let release_by = unit.and_then(|unit| match unit.phase {
                Phase::Releasing { write_by, .. } => Some(write_by),
                _ => None,
            });
            answers.push(Answer { reply, release_by });
        }
        (answers, outcome)
    }

    fn settle_one(
        &mut self,
        sent: Sent,
        reply: &Result<WriteReply, QueueError>,
        outcome: &mut Outcome,
        now: Instant,
    ) {
        let unit = self.units.get_mut(&sent.key.unit);
        let unit = unit.filter(|unit| {
            sent.is_held
                && unit.fencing_token == sent.key.fencing_token
                && sent.worker.as_ref().is_none_or(|worker| unit.worker == *worker)
        });
        let Some(unit) = unit else { return };
        if sent.worker.is_some() {
            unit.writes_under_way = unit.writes_under_way.saturating_sub(1);
        }
        match reply {
            Ok(WriteReply::Ok) => {
                self.note_stored(&sent, outcome, now);
                self.settle_done(sent, outcome, now);
            }
            Ok(WriteReply::AlreadyDone) if sent.then != Then::Continue => {
                // Unless this is the answer that got lost, others have ended the unit, without
                // these tokens: the reaper, or a sibling that failed the group.
                if sent.is_repeated {
                    self.note_stored(&sent, outcome, now);
                } else {
                    self.note_dropped(&sent);
                }
                self.settle_done(sent, outcome, now);
            }
            Ok(WriteReply::AlreadyDone | WriteReply::Fenced | WriteReply::Unknown) => {
                outcome.settled.lost += 1;
                self.drop_lost(&sent.key.unit);
            }
            Ok(WriteReply::Offset(stored)) => {
                let new = unit.note_stored(*stored, now);
                self.count_tokens(new, outcome);
            }
            // The worker's own affair: nothing has changed.
            Ok(WriteReply::BadVersion | WriteReply::WrongStage) => {}
            Ok(WriteReply::Busy) => {
                outcome.settled.retry.get_or_insert("memory is short".to_owned());
            }
            Err(error) => {
                outcome.settled.retry.get_or_insert(error.to_string());
            }
        }
    }

    fn note_stored(&mut self, sent: &Sent, outcome: &mut Outcome, now: Instant) {
        let (Some(unit), Some(end)) = (self.units.get_mut(&sent.key.unit), sent.end) else {
            return;
        };
        let new = unit.note_stored(end, now);
        self.count_tokens(new, outcome);
    }

    fn note_dropped(&mut self, sent: &Sent) {
        let (Some(unit), Some(end)) = (self.units.get(&sent.key.unit), sent.end) else { return };
        let new = u64::from(end.saturating_sub(unit.end));
        self.counts.tokens_received += new;
        self.counts.tokens_dropped += new;
    }

    fn settle_done(&mut self, sent: Sent, outcome: &mut Outcome, now: Instant) {
        let Some(unit) = self.units.get(&sent.key.unit) else { return };
        let length = sent.end.unwrap_or_default().max(unit.end);
        let limit = unit.group.sampling.max_tokens;
        let settled = &mut outcome.settled;
        match sent.then {
            Then::Continue => return,
            Then::Complete(finish) => {
                self.counts.units_completed += 1;
                settled.completed += 1;
                // A length finish before the limit says nothing about lengths.
                if finish.reason != FinishReason::Length || length >= limit {
                    outcome.lengths.push(length);
                }
            }
            Then::Score(_) => {
                self.counts.units_completed += 1;
                settled.completed += 1;
            }
            Then::HandBack(HandBack { cause, .. }) => {
                *self.counts.units_handed_back.entry(cause).or_default() += 1;
                self.counts.tokens_handed_back += u64::from(length);
                self.last_hand_back = Some(now);
                settled.handed_back.push(cause);
            }
            Then::Fault(problem) => {
                self.counts.units_faulted += 1;
                settled.faults.push((sent.key.unit.clone(), problem));
            }
        }
        self.units.remove(&sent.key.unit);
    }

    fn count_tokens(&mut self, new: u32, outcome: &mut Outcome) {
        outcome.tokens += u64::from(new);
        self.counts.tokens_received += u64::from(new);
        self.counts.tokens_stored += u64::from(new);
    }
}

/// Tokens for a unit that is not held here; the queue refuses them, and says why.
fn nobodys_chunk(tokens: NewTokens, key: &LeaseKey, terms: &WriteTerms) -> Chunk {
    let origin = ebbtide_core::sample::Origin {
        holder: terms.holder.clone(),
        fencing_token: key.fencing_token,
        engine: String::new(),
        fabric: terms.fabric,
        started_at: terms.wall_now,
        ended_at: terms.wall_now,
    };
    Chunk {
        offset: tokens.offset,
        weight_version: tokens.weight_version.unwrap_or_default(),
        token_ids: tokens.token_ids,
        logprobs: tokens.logprobs,
        origin,
    }
}
