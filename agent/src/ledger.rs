//! What this agent holds: leased units, their tokens, open engine streams, and the counts.
//!
//! A synchronous state machine behind one lock ([`Desk`]): stream tasks report tokens and ends,
//! the writer takes what is to be written and settles the answers, the drain says which units
//! leave. Invariants: a unit is written by the writer alone; what ends a unit is written once and
//! repeated until it is answered; a token received is stored, waits in a tail, or is counted as
//! dropped.

mod counts;
mod desk;
mod speed;
mod tail;
mod unit;
mod versions;
mod writing;

use std::collections::BTreeMap;

use ebbtide_core::drain::{InFlightUnit, ResponseLengths};
use ebbtide_core::ids::{FencingToken, UnitId};
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::command::{HandBack, HandBackCause, Then};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use counts::AgentCounts;
pub(crate) use desk::Desk;
pub(crate) use speed::{SpeedMeter, slow_rate};
pub(crate) use unit::{Admission, AdmissionTerms, StreamJob};
pub(crate) use writing::Settled;

use crate::engine::{RequestId, WeightSpan};
use crate::hosting::EngineHeld;
use unit::{HeldUnit, Phase};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    units: BTreeMap<UnitId, HeldUnit>,
    streams: BTreeMap<RequestId, OpenStream>,
    lengths: ResponseLengths,
    counts: AgentCounts,
    last_hand_back: Option<Instant>,
    /// The agent has ended: what still arrives is nobody's.
    is_closed: bool,
}

/// A stream that the engine has not ended yet. It may outlive its unit.
#[derive(Debug)]
struct OpenStream {
    unit: UnitId,
    engine: usize,
    opened_at: Instant,
    /// It has brought a token.
    has_begun: bool,
    /// When its end was asked for first.
    end_asked_at: Option<Instant>,
    cut: CancellationToken,
}

/// What became of tokens that a stream reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// Taken in.
    Kept,
    /// Kept, and so many wait that they should be stored soon.
    Plenty,
    /// The unit is no longer held here: the stream may as well end.
    Unwanted,
}

/// How a stream ended, as far as its unit is concerned.
#[derive(Debug)]
pub(crate) struct StreamResult {
    /// What becomes of the unit, unless it is leaving already.
    pub(crate) then: Then,
    /// The engine's own account of the weights.
    pub(crate) spans: Vec<WeightSpan>,
}

/// A unit that leaves, in the order in which it is to be handed back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leave {
    /// Why.
    pub(crate) why: HandBack,
    /// When it is handed back even if its stream has not ended.
    pub(crate) write_by: Instant,
}

impl Ledger {
    /// Tokens of a stream.
    pub(crate) fn receive(
        &mut self,
        request: &RequestId,
        ids: &[i32],
        logprobs: &[f32],
        plenty: usize,
        clocks: (Instant, UnixMillis),
    ) -> Received {
        if self.is_closed {
            return Received::Unwanted;
        }
        let (now, wall_now) = clocks;
        self.counts.tokens_received += ids.len() as u64;
        if let Some(stream) = self.streams.get_mut(request) {
            stream.has_begun = true;
        }
        let Some(unit) = self.unit_of(request) else {
            self.counts.tokens_dropped += ids.len() as u64;
            return Received::Unwanted;
        };
        if !unit.tail.push(ids, logprobs, wall_now) {
            // Their stream is on its way to its end, which says how far the others are good.
            self.counts.tokens_dropped += ids.len() as u64;
            return Received::Kept;
        }
        unit.meter.record(u32::try_from(ids.len()).unwrap_or(u32::MAX), now);
        if unit.tail.fresh_tokens() >= plenty { Received::Plenty } else { Received::Kept }
    }

    /// The agent has ended: nothing changes any more.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
    }

    /// A stream has ended. A unit that was leaving goes back, unless it is finished after all. Says
    /// whether tokens were thrown away that no version of the weights made: then nothing is
    /// finished.
    pub(crate) fn end_stream(&mut self, request: &RequestId, result: StreamResult) -> bool {
        if self.is_closed {
            return false;
        }
        let (mut dropped, mut is_cut) = (0, false);
        if let Some(unit) = self.unit_of(request) {
            dropped = unit.tail.correct(&result.spans, unit.base);
            is_cut = unit.tail.is_cut();
            unit.phase = match (&unit.phase, result.then) {
                (_, Then::Complete(finish)) if !is_cut => Phase::Ended(Then::Complete(finish)),
                (Phase::Leaving(leave), _) => Phase::Ended(Then::HandBack(leave.why)),
                (_, Then::Complete(_)) => {
                    Phase::Ended(Then::HandBack(HandBackCause::Engine.into()))
                }
                (_, then) => Phase::Ended(then),
            };
        }
        self.counts.tokens_dropped += dropped;
        self.streams.remove(request);
        is_cut
    }

    /// Why the unit of a stream leaves, if it does.
    pub(crate) fn leaving_why(&self, request: &RequestId) -> Option<HandBack> {
        let stream = self.streams.get(request)?;
        let unit = self.units.get(&stream.unit).filter(|unit| unit.request == *request);
        match unit.map(|unit| &unit.phase) {
            Some(Phase::Leaving(leave)) => Some(leave.why),
            // Nobody wants it any more; its end says nothing about the engine.
            _ => stream.end_asked_at.map(|_| HandBackCause::Engine.into()),
        }
    }

    /// Lets units leave, in this order: their streams are to end, then they are handed back.
    /// Units that have ended or leave already are passed over. Returns how many leave now.
    pub(crate) fn leave<'a>(
        &mut self,
        units: impl Iterator<Item = &'a UnitId>,
        leave: Leave,
        now: Instant,
    ) -> usize {
        let mut leaving = 0;
        for (rank, id) in units.enumerate() {
            let Some(unit) = self.units.get_mut(id) else { continue };
            if !matches!(unit.phase, Phase::Streaming) {
                continue;
            }
            unit.phase = Phase::Leaving(leave);
            unit.rank = rank;
            leaving += 1;
            let request = unit.request.clone();
            self.ask_end(&request, now);
        }
        leaving
    }

    /// Lets every unit leave that is not ending already.
    pub(crate) fn leave_all(&mut self, leave: Leave, now: Instant) -> usize {
        let units: Vec<UnitId> = self.units.keys().cloned().collect();
        self.leave(units.iter(), leave, now)
    }

    /// Lets every unit of an engine leave that is not ending already.
    pub(crate) fn leave_engine(&mut self, engine: usize, leave: Leave, now: Instant) -> usize {
        let units = self.units.iter().filter(|(_, unit)| unit.engine == engine);
        let units: Vec<UnitId> = units.map(|(id, _)| id.clone()).collect();
        self.leave(units.iter(), leave, now)
    }

    /// The queue says that the lease under `token` is lost. What is being written is left to its
    /// answer, and a newer lease of the same unit is not meant.
    pub(crate) fn lose(&mut self, id: &UnitId, token: FencingToken, now: Instant) -> bool {
        let is_meant = |unit: &HeldUnit| {
            unit.fencing_token == token
                && matches!(unit.phase, Phase::Streaming | Phase::Leaving(_))
        };
        let is_streaming = self.units.get(id).is_some_and(is_meant);
        if is_streaming {
            self.counts.units_lost += 1;
            self.forget(id, now);
        }
        is_streaming
    }

    /// Drops a unit with what is not stored of it, and ends its stream.
    fn forget(&mut self, id: &UnitId, now: Instant) {
        let Some(mut unit) = self.units.remove(id) else { return };
        self.counts.tokens_dropped += unit.tail.clear();
        self.ask_end(&unit.request, now);
    }

    fn ask_end(&mut self, request: &RequestId, now: Instant) {
        if let Some(stream) = self.streams.get_mut(request) {
            stream.end_asked_at.get_or_insert(now);
        }
    }

    /// Streams of an engine that are to end; those asked before `cut_before` are cut off.
    pub(crate) fn streams_to_end(&self, engine: usize, cut_before: Instant) -> Vec<RequestId> {
        let asked = self.streams.iter().filter(|(_, stream)| stream.engine == engine);
        asked
            .filter_map(|(request, stream)| Some((request, stream, stream.end_asked_at?)))
            .map(|(request, stream, asked_at)| {
                if asked_at < cut_before {
                    stream.cut.cancel();
                }
                request.clone()
            })
            .collect()
    }

    /// What an engine has of this agent.
    pub(crate) fn held_on(&self, engine: usize) -> EngineHeld {
        let units = self.units.values().filter(|unit| unit.engine == engine).count();
        let streams = || self.streams.values().filter(|stream| stream.engine == engine);
        let begun = streams().filter(|stream| stream.has_begun).count();
        EngineHeld { streams: streams().count(), begun, units }
    }

    /// Units that an engine has not begun, of streams opened before `opened_before`; the youngest
    /// first, which an engine begins last.
    pub(crate) fn unbegun(&self, engine: usize, opened_before: Instant) -> Vec<UnitId> {
        let is_meant = |stream: &&OpenStream| {
            stream.engine == engine
                && !stream.has_begun
                && stream.end_asked_at.is_none()
                && stream.opened_at < opened_before
        };
        let mut streams: Vec<&OpenStream> = self.streams.values().filter(is_meant).collect();
        streams.sort_by_key(|stream| std::cmp::Reverse(stream.opened_at));
        streams.into_iter().map(|stream| stream.unit.clone()).collect()
    }

    /// Units held, whatever their phase.
    pub(crate) fn held(&self) -> usize {
        self.units.len()
    }

    /// No unit is on its way out.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.units.values().all(|unit| matches!(unit.phase, Phase::Streaming))
    }

    /// Nothing is held and no stream is open.
    pub(crate) fn is_empty(&self) -> bool {
        self.units.is_empty() && self.streams.is_empty()
    }

    /// Units that are being worked on, as a drain plan wants them.
    pub(crate) fn in_flight(&self, now: Instant) -> Vec<InFlightUnit> {
        let streaming =
            || self.units.iter().filter(|(_, unit)| matches!(unit.phase, Phase::Streaming));
        let mut pooled: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        for (_, unit) in streaming() {
            pooled.entry(unit.engine).or_default().extend(unit.meter.rates(now));
        }
        streaming()
            .map(|(id, unit)| {
                let own: Vec<f64> = unit.meter.rates(now).collect();
                let pooled = pooled.get(&unit.engine).map_or(&[][..], Vec::as_slice);
                InFlightUnit {
                    unit: id.clone(),
                    tokens: unit.tail.end(),
                    max_tokens: unit.group.sampling.max_tokens,
                    slow_tokens_per_second: speed::slow_rate(&own, pooled),
                }
            })
            .collect()
    }

    /// Whether an engine's unit is held under this token.
    pub(crate) fn holds(&self, id: &UnitId, token: FencingToken) -> bool {
        self.units.get(id).is_some_and(|unit| unit.fencing_token == token)
    }

    /// Notes the length of a response that finished on this node by other means than its engines.
    pub(crate) fn note_length(&mut self, length: u32) {
        self.lengths.record(length);
    }

    /// Lengths of the responses that finished here.
    pub(crate) fn lengths(&self) -> &ResponseLengths {
        &self.lengths
    }

    /// What happened so far.
    pub(crate) fn counts(&self) -> AgentCounts {
        AgentCounts { tokens_waiting: self.waiting_tokens(), ..self.counts.clone() }
    }

    /// When a unit was last handed back.
    pub(crate) fn last_hand_back(&self) -> Option<Instant> {
        self.last_hand_back
    }

    /// Tokens received, neither stored nor dropped.
    pub(crate) fn waiting_tokens(&self) -> u64 {
        let gone = self.counts.tokens_stored + self.counts.tokens_dropped;
        self.counts.tokens_received.saturating_sub(gone)
    }

    /// The unit that a stream works for; none when it has ended or is held no longer.
    fn unit_of(&mut self, request: &RequestId) -> Option<&mut HeldUnit> {
        let id = &self.streams.get(request)?.unit;
        let is_worked_on = |unit: &&mut HeldUnit| {
            unit.request == *request && !matches!(unit.phase, Phase::Ended(_))
        };
        self.units.get_mut(id).filter(is_worked_on)
    }
}

#[cfg(test)]
mod tests;
