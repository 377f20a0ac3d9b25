//! The writer's side of the ledger: what is to be written now, and what the answers mean.

use ebbtide_core::ids::{FencingToken, UnitId};
use ebbtide_core::sample::FinishReason;
use ebbtide_core::work::ResumePolicy;
use ebbtide_queue::client::QueueError;
use ebbtide_queue::command::{HandBack, HandBackCause, Renewal, Then, UnitWrite, Waiting};
use ebbtide_queue::reply::WriteReply;
use tokio::time::Instant;

use super::Ledger;
use super::unit::{HeldUnit, Phase};

/// What was sent for one unit, to be settled by its answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SentWrite {
    unit: UnitId,
    fencing_token: FencingToken,
    chunks: usize,
    then: Then,
    /// The end of the unit was sent before, and not answered.
    is_repeated: bool,
}

/// What the answers to a batch of writes mean together.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    /// The first reason to try again later.
    pub(crate) retry: Option<String>,
    /// Units that turned out to be held by somebody else, or to be gone.
    pub(crate) lost: usize,
    /// Finished samples that were stored.
    pub(crate) completed: usize,
    /// Units given back for each cause.
    pub(crate) handed_back: Vec<HandBackCause>,
    /// Units given back with tokens that the queue drops, as newer weights are out.
    pub(crate) restarted: u64,
    /// Faults that were told, for the log.
    pub(crate) faults: Vec<(UnitId, String)>,
}

impl Ledger {
    /// What is to be written: ends always, in the order in which units leave; new tokens when
    /// `is_due` or when a unit has at least `plenty` of them.
    pub(crate) fn collect(
        &mut self,
        is_due: bool,
        plenty: usize,
        now: Instant,
    ) -> (Vec<UnitWrite>, Vec<SentWrite>) {
        let mut batch: Vec<(usize, UnitWrite, SentWrite)> = Vec::new();
        for (id, unit) in &mut self.units {
            let (rank, then) = match &unit.phase {
                Phase::Ended(then @ Then::Complete(_)) => (COMPLETIONS_RANK, then.clone()),
                Phase::Ended(then) => (unit.rank, then.clone()),
                Phase::Leaving(leave) if leave.write_by <= now => {
                    self.counts.tokens_dropped += unit.tail.drop_doubted();
                    (unit.rank, Then::HandBack(leave.why))
                }
                _ if unit.tail.is_empty() || unit.tail.is_doubted() => continue,
                _ if is_due || unit.tail.fresh_tokens() >= plenty => (APPENDS_RANK, Then::Continue),
                _ => continue,
            };
            let tail = unit.tail.send().to_vec();
            let fencing_token = unit.fencing_token;
            let (chunks, ends) = (tail.len(), then != Then::Continue);
            let is_repeated = std::mem::replace(&mut unit.is_end_sent, ends);
            let sent = SentWrite {
                unit: id.clone(),
                fencing_token,
                chunks,
                then: then.clone(),
                is_repeated,
            };
            let write = UnitWrite { unit: id.clone(), fencing_token, tail, then };
            batch.push((rank, write, sent));
        }
        batch.sort_by_key(|(rank, ..)| *rank);
        batch.into_iter().map(|(_, write, sent)| (write, sent)).unzip()
    }

    /// When the next unit has to be handed back although its stream has not ended.
    pub(crate) fn next_write_by(&self) -> Option<Instant> {
        let leaving = self.units.values().filter_map(|unit| match &unit.phase {
            Phase::Leaving(leave) => Some(leave.write_by),
            _ => None,
        });
        leaving.min()
    }

    /// Takes in the answers to what was collected. Those to a lease that is held no longer say
    /// nothing, least of all about a newer lease of the same unit.
    pub(crate) fn settle(
        &mut self,
        sent: Vec<SentWrite>,
        replies: Vec<Result<WriteReply, QueueError>>,
        now: Instant,
    ) -> Settled {
        let mut settled = Settled::default();
        for (sent, reply) in sent.into_iter().zip(replies) {
            let held = self.units.get(&sent.unit).map(|unit| unit.fencing_token);
            if held != Some(sent.fencing_token) {
                continue;
            }
            match reply {
                Ok(WriteReply::Ok) => {
                    self.note_stored(&sent);
                    self.settle_done(sent, &mut settled, now);
                }
                Ok(WriteReply::AlreadyDone) if sent.then != Then::Continue => {
                    // Unless this is the answer that got lost, others have ended the unit, without
                    // these tokens: the reaper, or a sibling that failed the group.
                    if sent.is_repeated {
                        self.note_stored(&sent);
                    }
                    self.settle_done(sent, &mut settled, now);
                }
                // A unit that waits for its score, or is being scored, is no longer this agent's.
                Ok(
                    WriteReply::AlreadyDone
                    | WriteReply::Fenced
                    | WriteReply::Unknown
                    | WriteReply::WrongStage,
                ) => {
                    settled.lost += 1;
                    self.counts.units_lost += 1;
                    self.forget(&sent.unit, now);
                }
                Ok(WriteReply::Offset(stored)) => self.realign(&sent.unit, stored, now),
                Ok(WriteReply::BadVersion) => {
                    self.give_up_tail(&sent.unit, HandBackCause::Weights, now);
                }
                Ok(WriteReply::Busy) => {
                    settled.retry.get_or_insert("memory is short".to_owned());
                }
                Err(error) => {
                    settled.retry.get_or_insert(error.to_string());
                }
            }
        }
        settled
    }

    fn note_stored(&mut self, sent: &SentWrite) {
        let unit = self.units.get_mut(&sent.unit);
        self.counts.tokens_stored += unit.map_or(0, |unit| unit.tail.stored(sent.chunks));
    }

    fn settle_done(&mut self, sent: SentWrite, settled: &mut Settled, now: Instant) {
        let Some(unit) = self.units.get_mut(&sent.unit) else { return };
        match sent.then {
            // An agent generates; scores come from elsewhere.
            Then::Continue | Then::Score(_) => return,
            Then::Complete(finish) => {
                self.counts.units_completed += 1;
                settled.completed += 1;
                if finish.reason != FinishReason::Length || is_at_limit(unit) {
                    let length = unit.tail.end();
                    self.lengths.record(length);
                }
            }
            Then::HandBack(HandBack { cause, .. }) => {
                self.last_hand_back = Some(now);
                self.counts.tokens_handed_back += u64::from(unit.tail.end());
                *self.counts.units_handed_back.entry(cause).or_default() += 1;
                settled.handed_back.push(cause);
                let restarts = cause == HandBackCause::Weights
                    && unit.group.resume_policy == ResumePolicy::RestartIfNewer
                    && unit.tail.end() > 0;
                settled.restarted += u64::from(restarts);
            }
            Then::Fault(problem) => {
                self.counts.units_faulted += 1;
                settled.faults.push((sent.unit.clone(), problem));
            }
        }
        self.forget(&sent.unit, now);
    }

    /// The queue's tokens end elsewhere: goes on from there if these do, else gives the unit back
    /// as the queue has it.
    fn realign(&mut self, id: &UnitId, stored: u32, now: Instant) {
        let Some(unit) = self.units.get_mut(id) else { return };
        match unit.tail.realign(stored) {
            Some(tokens) => self.counts.tokens_stored += tokens,
            None => self.give_up_tail(id, HandBackCause::Engine, now),
        }
    }

    /// Throws away what the queue refuses; the unit goes back with what is stored.
    fn give_up_tail(&mut self, id: &UnitId, cause: HandBackCause, now: Instant) {
        let Some(unit) = self.units.get_mut(id) else { return };
        self.counts.tokens_dropped += unit.tail.clear();
        unit.phase = Phase::Ended(Then::HandBack(cause.into()));
        let request = unit.request.clone();
        self.ask_end(&request, now);
    }

    /// One renewal for every lease held.
    pub(crate) fn renewals(
        &self,
        ttl: std::time::Duration,
        is_paused: impl Fn(usize) -> bool,
    ) -> Vec<Renewal> {
        let renewal = |(id, unit): (&UnitId, &HeldUnit)| Renewal {
            unit: id.clone(),
            fencing_token: unit.fencing_token,
            ttl,
            waiting: if is_paused(unit.engine) { Waiting::EnginePause } else { Waiting::Nothing },
        };
        self.units.iter().map(renewal).collect()
    }
}

/// Ends that leave come first, in their order, then completions, then appends.
const COMPLETIONS_RANK: usize = usize::MAX - 1;
const APPENDS_RANK: usize = usize::MAX;

/// Whether a length finish is the unit's own limit, not that of the engine's context.
fn is_at_limit(unit: &HeldUnit) -> bool {
    unit.tail.end() >= unit.group.sampling.max_tokens
}
