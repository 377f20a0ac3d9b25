//! Decides, tick by tick, which stream gets which tokens: a synchronous state machine that knows
//! neither HTTP nor clocks. Wire shapes are made from its [`Emission`]s elsewhere.
//!
//! Invariants: at most `max_running` sequences run, the others wait first come first served; every
//! sequence ends with one [`Emission::End`] or [`Emission::Failed`], or in silence when the node
//! is lost, hangs, or breaks its streams off. `tokens_generated` counts every token once, at the
//! moment it is made.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::config::EngineConfig;
use super::counts::EngineCounts;
use super::first_tokens::FirstTokens;
use super::response::Handwriting;
use super::sequence::{Emission, Finish, GenerateCall, Sequence};
use crate::engine::EngineKind;

/// Emissions of one call. Unbounded by type, but a sequence has at most `context_length` tokens
/// and so at most that many emissions.
pub(super) type Emissions = UnboundedReceiver<Emission>;

/// Which sequences an abort is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Selection {
    All,
    /// The whole id as on the wire, prefix included.
    Ids(Vec<String>),
    /// One that is known, and all that begin with it.
    Prefix(String),
}

/// Ways to pause, as the engine's control route has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseMode {
    /// Running and waiting streams end as aborted.
    Abort,
    /// Running streams finish first; the others are held.
    Wait,
    /// Everything is held where it is.
    Keep,
    /// Everything is held, and running streams go back to those that wait. SGLang alone has it.
    Retract,
}

/// Whether sequences may start and go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    Open,
    /// Running ones go on to their end, none starts; then the gate is frozen.
    Finishing,
    Frozen,
}

/// See the module.
pub(super) struct Scheduler {
    kind: EngineKind,
    hand: Handwriting,
    context_length: u32,
    max_running: usize,
    chunk_tokens_max: usize,
    slowdown_per_stream: f64,
    tokens_per_second: f64,
    label: Arc<str>,
    running: Vec<Sequence>,
    waiting: VecDeque<Sequence>,
    gate: Gate,
    is_core_dead: bool,
    /// A load that failed has left no weights.
    is_hollow: bool,
    is_hung: bool,
    is_draining: bool,
    ignores_aborts: bool,
    totals: EngineCounts,
    first_tokens: FirstTokens,
}

impl Scheduler {
    pub(super) fn new(config: &EngineConfig) -> Self {
        Self {
            kind: config.kind,
            hand: Handwriting::of(config),
            context_length: config.context_length,
            max_running: config.max_running,
            chunk_tokens_max: config.chunk_tokens_max,
            slowdown_per_stream: config.slowdown_per_stream,
            tokens_per_second: config.tokens_per_second,
            label: config.weights_label.as_str().into(),
            running: Vec::new(),
            waiting: VecDeque::new(),
            gate: Gate::Open,
            is_core_dead: false,
            is_hollow: false,
            is_hung: false,
            is_draining: false,
            ignores_aborts: false,
            totals: EngineCounts::default(),
            first_tokens: FirstTokens::default(),
        }
    }

    /// Takes a call whose limits were checked. None: the engine core is dead.
    pub(super) fn submit(&mut self, call: GenerateCall) -> Option<Emissions> {
        if self.is_core_dead {
            return None;
        }
        let (outbox, emissions) = unbounded_channel();
        self.totals.requests += 1;
        if self.is_draining && self.kind == EngineKind::Vllm {
            send_end(&outbox, Finish::Abort);
            return Some(emissions);
        }
        self.totals.prompt_tokens += call.prompt.len() as u64;
        self.waiting.push_back(Sequence::new(call, self.hand, self.context_length, outbox));
        if !self.is_hung {
            self.admit();
        }
        Some(emissions)
    }

    /// Makes the tokens of `elapsed` for every running stream.
    pub(super) fn tick(&mut self, elapsed: Duration) {
        self.forget_disconnected();
        if self.is_hung || self.is_core_dead {
            return;
        }
        self.running.iter_mut().chain(&mut self.waiting).for_each(|it| it.wait(elapsed));
        self.end_aborted_waiting();
        self.admit();
        if self.lacks_weights() {
            return;
        }
        let due = match self.gate {
            Gate::Open | Gate::Finishing => self.speed() * elapsed.as_secs_f64(),
            Gate::Frozen => 0.0,
        };
        let (label, chunk) = (self.label.clone(), self.chunk_tokens_max);
        let (totals, first_tokens) = (&mut self.totals, &mut self.first_tokens);
        self.running.retain_mut(|sequence| {
            let waited = sequence.waited();
            let made = sequence.advance(due, &label, chunk);
            totals.tokens_generated += made.tokens;
            if let Some(waited) = waited.filter(|_| made.tokens > 0) {
                first_tokens.note(waited);
            }
            if let Some(finish) = made.finish {
                totals.count_end(finish);
            }
            made.finish.is_none()
        });
        if self.gate == Gate::Finishing && self.running.is_empty() {
            self.gate = Gate::Frozen;
        }
        // A place that became free is filled at once, not a tick later.
        self.admit();
    }

    /// Ends the selected sequences with their next tick; those already due a token get it.
    /// Returns what the engine replies: the ids given, known or not, or all live sequences.
    pub(super) fn abort(&mut self, selection: &Selection) -> usize {
        let count = match selection {
            Selection::All => self.running.len() + self.waiting.len(),
            Selection::Ids(ids) => ids.len(),
            Selection::Prefix(_) => 1,
        };
        self.totals.abort_ids += count as u64;
        if !self.ignores_aborts {
            self.mark_aborted(selection);
        }
        count
    }

    fn mark_aborted(&mut self, selection: &Selection) {
        if let Selection::Prefix(id) = selection
            && !self.is_live(id)
        {
            return;
        }
        for sequence in self.running.iter_mut().chain(&mut self.waiting) {
            let is_selected = match selection {
                Selection::All => true,
                Selection::Ids(ids) => ids.contains(&sequence.request_id),
                Selection::Prefix(id) => sequence.request_id.starts_with(id),
            };
            sequence.is_aborted |= is_selected;
        }
    }

    /// Whether a call of this id runs or waits.
    pub(super) fn is_live(&self, id: &str) -> bool {
        self.running.iter().chain(&self.waiting).any(|sequence| sequence.request_id == id)
    }

    /// Closes the gate; [`Scheduler::is_frozen`] tells when the pause is complete.
    pub(super) fn pause(&mut self, mode: PauseMode) {
        if mode == PauseMode::Abort {
            self.totals.paused_aborts += (self.running.len() + self.waiting.len()) as u64;
            self.mark_aborted(&Selection::All);
        }
        if mode == PauseMode::Retract {
            let retracted = self.running.drain(..).rev();
            retracted.for_each(|sequence| self.waiting.push_front(sequence));
        }
        let finishes_first = mode == PauseMode::Wait && !self.running.is_empty();
        self.gate = if finishes_first { Gate::Finishing } else { Gate::Frozen };
    }

    pub(super) fn resume(&mut self) {
        self.gate = Gate::Open;
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.gate == Gate::Frozen
    }

    pub(super) fn is_paused(&self) -> bool {
        self.gate != Gate::Open
    }

    pub(super) fn label(&self) -> Arc<str> {
        self.label.clone()
    }

    pub(super) fn set_label(&mut self, label: &str) {
        self.label = label.into();
    }

    /// A sequence is to run and there are no weights: the core will not survive it.
    pub(super) fn lacks_weights(&self) -> bool {
        self.is_hollow && self.gate == Gate::Open && !self.running.is_empty()
    }

    pub(super) fn set_hollow(&mut self, is_hollow: bool) {
        self.is_hollow = is_hollow;
    }

    pub(super) fn count_weight_load(&mut self) {
        self.totals.weight_loads += 1;
    }

    pub(super) fn set_tokens_per_second(&mut self, tokens_per_second: f64) {
        self.tokens_per_second = tokens_per_second.max(0.0);
    }

    pub(super) fn set_hung(&mut self, is_hung: bool) {
        self.is_hung = is_hung;
    }

    pub(super) fn is_hung(&self) -> bool {
        self.is_hung
    }

    /// Aborts are counted and answered, and do nothing.
    pub(super) fn set_ignores_aborts(&mut self, ignores_aborts: bool) {
        self.ignores_aborts = ignores_aborts;
    }

    /// From now on new calls end as aborted, without a token; SGLang takes them until it is gone.
    pub(super) fn drain(&mut self) {
        self.is_draining = true;
    }

    pub(super) fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// Ends every sequence with the error of a dead core and accepts none any more.
    pub(super) fn kill_core(&mut self) {
        self.is_core_dead = true;
        for sequence in self.running.drain(..).chain(self.waiting.drain(..)) {
            sequence.send(Emission::Failed);
        }
    }

    /// Ends every sequence with an error, and goes on taking others.
    pub(super) fn fail_streams(&mut self) {
        self.kill_core();
        self.is_core_dead = false;
    }

    /// Drops every sequence without a last word, and goes on taking others.
    pub(super) fn break_streams(&mut self) {
        self.running.clear();
        self.waiting.clear();
    }

    /// The core is gone without a word: streams stay open and get nothing any more.
    pub(super) fn lose_core(&mut self) {
        self.is_core_dead = true;
    }

    /// The node is lost: no token is made any more and nobody is told.
    pub(super) fn lose(&mut self) {
        self.is_core_dead = true;
        self.running.clear();
        self.waiting.clear();
    }

    pub(super) fn is_core_dead(&self) -> bool {
        self.is_core_dead
    }

    /// How long calls waited for their first token.
    pub(super) fn first_tokens(&self) -> FirstTokens {
        self.first_tokens.clone()
    }

    /// The state as numbers.
    pub(super) fn counts(&mut self) -> EngineCounts {
        self.forget_disconnected();
        let capacity = self.max_running as f64 * f64::from(self.context_length);
        let held: u64 = self.running.iter().map(Sequence::tokens_held).sum();
        EngineCounts {
            running: self.running.len(),
            waiting: self.waiting.len(),
            is_paused: self.is_paused(),
            is_frozen: self.is_frozen(),
            kv_cache_usage: held as f64 / capacity,
            tokens_held: held,
            ..self.totals
        }
    }

    /// Tokens per second of all streams together.
    pub(super) fn throughput(&self) -> f64 {
        let is_idle = self.is_hung || self.is_frozen();
        if is_idle { 0.0 } else { self.speed() * self.running.len() as f64 }
    }

    /// Speed of each stream now, in tokens per second.
    fn speed(&self) -> f64 {
        let others = self.running.len().saturating_sub(1) as f64;
        self.tokens_per_second / (1.0 + self.slowdown_per_stream * others)
    }

    fn admit(&mut self) {
        while self.gate == Gate::Open && self.running.len() < self.max_running {
            let Some(sequence) = self.waiting.pop_front() else { return };
            self.running.push(sequence);
        }
    }

    fn end_aborted_waiting(&mut self) {
        self.waiting.retain_mut(|sequence| {
            if sequence.is_aborted {
                sequence.end(Vec::new(), Finish::AbortInQueue);
            }
            !sequence.is_aborted
        });
    }

    /// A client that hung up frees its place.
    fn forget_disconnected(&mut self) {
        self.running.retain(|sequence| !sequence.is_disconnected());
        self.waiting.retain(|sequence| !sequence.is_disconnected());
    }
}

fn send_end(outbox: &UnboundedSender<Emission>, finish: Finish) {
    // The receiver is held by the caller and so is there.
    let _ = outbox.send(Emission::End { tokens: Vec::new(), finish, spans: Vec::new() });
}

#[cfg(test)]
mod tests;
