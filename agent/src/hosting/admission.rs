//! How many units an engine may hold, so that the queue, and not the engine, holds the work that
//! waits.
//!
//! The pace is set by the engine's own first tokens: beyond the streams that have *begun*, only a
//! small look-ahead is given to it, so that little waits there, however the engine is set up.
//! Readings of its metrics say how large the look-ahead may be, and lower the cap when its KV cache
//! is short:
//!
//! | last readings | places |
//! |---|---|
//! | none yet, or the engine does not tell | the policy's maximum |
//! | nothing waits, KV cache below 85 % | a quarter more than has begun, at least eight |
//! | some waited at two readings, or KV cache from 85 % on | one more than has begun (and 1/64) |
//! | preemptions, or KV cache from 95 % on | what has begun, below a cap an eighth lower |
//!
//! What had begun when the engine was last found full is given back to it at once after a lull. A
//! unit that waited in a full engine for too long is withdrawn; then there is no look-ahead for a
//! while, longer each time, until one begins. The cap rises again by eighths while nothing waits.
//! A reading that fails changes nothing; when several do, what ends is replaced again. There is
//! always one place, and never more than the policy's maximum.

use crate::engine::EngineLoad;

/// Places of an engine in which nothing has begun: as many as a common group has samples.
const START: usize = 8;

/// Use of the KV cache from which on an engine counts as full, and as overfull. Sequences grow
/// while they run: between the two, 10 % of the cache are left for that.
const KV_FULL: f64 = 0.85;
const KV_OVERFULL: f64 = 0.95;

/// Readings in a row that it takes to call an engine full, or no longer full: sequences that were
/// just given to it wait for a moment, too.
const READINGS_NEEDED: u32 = 2;

/// Failed readings in a row after which an overfull engine is taken for a full one.
const MISSES_LIMIT: u32 = 5;

/// Readings without a look-ahead after a unit was withdrawn, at first and at most: one unit in
/// three minutes shows whether a full engine has room again.
const QUIET_FIRST: u32 = 10;
const QUIET_MAX: u32 = 160;

/// Filled and full readings in a row, while no more begin, that show what an engine bears: at first
/// it may only be busy with prompts.
const READINGS_SETTLED: u32 = 30;

/// What an agent has on one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct EngineHeld {
    /// Open streams, those included that outlive their units.
    pub(crate) streams: usize,
    /// Streams that have brought a token.
    pub(crate) begun: usize,
    /// Units, those included that have ended and are not written yet.
    pub(crate) units: usize,
}

/// How the engine bears its load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pressure {
    /// It has not told.
    Untold,
    /// It takes more.
    Open,
    /// It takes no more than it has.
    Full,
    /// It has too much.
    Overfull,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct AdmissionControl {
    ceiling: usize,
    cap: usize,
    pressure: Pressure,
    /// Readings in a row that speak for another pressure.
    streak: u32,
    misses: u32,
    preemptions: Option<u64>,
    /// Streams that had begun when it was last found full, or that have begun since.
    borne: Option<usize>,
    /// What it was found to bear; the ceiling until then.
    capacity: usize,
    settled: u32,
    /// Readings that are left without a look-ahead, and how many after the next withdrawal.
    quiet_left: u32,
    quiet_next: u32,
}

impl AdmissionControl {
    /// For an engine of which nothing is known yet; `ceiling` is the policy's maximum.
    pub(crate) fn new(ceiling: usize) -> Self {
        let ceiling = ceiling.max(1);
        Self {
            ceiling,
            cap: ceiling,
            pressure: Pressure::Untold,
            streak: 0,
            misses: 0,
            preemptions: None,
            borne: None,
            capacity: ceiling,
            settled: 0,
            quiet_left: 0,
            quiet_next: QUIET_FIRST,
        }
    }

    /// Another maximum from now on: the node has more engines than before, or fewer.
    pub(crate) fn set_ceiling(&mut self, ceiling: usize) {
        let (before, ceiling) = (self.ceiling, ceiling.max(1));
        let follow = |value: usize| if value == before { ceiling } else { value.min(ceiling) };
        (self.cap, self.capacity) = (follow(self.cap), follow(self.capacity));
        self.ceiling = ceiling;
    }

    /// Units that the engine may be given now, besides those that it has.
    pub(crate) fn room(&self, held: EngineHeld) -> usize {
        let places = self.places(held.begun);
        // What has ended frees its place before the queue has heard of it, within this bound.
        places.saturating_sub(held.streams).min((2 * places).saturating_sub(held.units))
    }

    /// Streams that the engine may have, when so many have begun. At least 1, at most the ceiling.
    pub(crate) fn places(&self, begun: usize) -> usize {
        let borne = self.borne.unwrap_or(0);
        let places = match self.pressure {
            Pressure::Untold => self.ceiling,
            Pressure::Open => (begun + (begun / 4).max(2)).max(START).max(borne),
            Pressure::Full if self.quiet_left > 0 => begun.max(borne),
            Pressure::Full => begun.max(borne) + 1 + begun / 64,
            Pressure::Overfull => begun,
        };
        places.min(self.cap).clamp(1, self.ceiling)
    }

    /// Streams that the engine is known to bear at a time: the ceiling until it was found full for
    /// long.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Takes in a reading; `held` is what this agent has there.
    pub(crate) fn note(&mut self, load: &EngineLoad, held: EngineHeld) {
        let (Some(_), Some(waiting)) = (load.running, load.waiting) else { return };
        self.misses = 0;
        self.quiet_left = self.quiet_left.saturating_sub(1);
        let before = std::mem::replace(&mut self.preemptions, load.preemptions);
        let has_preempted = before.zip(load.preemptions).is_some_and(|(was, is)| is > was);
        let kv_cache_use = load.kv_cache_use.unwrap_or(0.0);
        let is_kv_full = kv_cache_use >= KV_FULL;
        self.note_borne(has_preempted || is_kv_full || waiting > 0, held);
        if has_preempted || kv_cache_use >= KV_OVERFULL {
            self.shrink(held.streams);
            self.turn(Pressure::Overfull);
            return;
        }
        self.judge(waiting > 0, is_kv_full, held);
        if self.pressure == Pressure::Open && waiting == 0 && held.streams >= self.cap {
            self.cap = (self.cap + (self.cap / 8).max(1)).min(self.ceiling);
        }
    }

    /// Remembers what it bears: by the pressure until now and by whether this reading is full.
    fn note_borne(&mut self, is_full: bool, held: EngineHeld) {
        let has_grown = self.borne.is_some_and(|borne| held.begun > borne);
        if has_grown {
            self.quiet_next = QUIET_FIRST;
        }
        let was_full = matches!(self.pressure, Pressure::Full | Pressure::Overfull);
        let is_filled = was_full && held.streams >= self.places(held.begun);
        if has_grown || !was_full {
            self.settled = 0;
        } else if is_filled {
            self.settled += 1;
        }
        if is_full {
            self.borne = Some(held.begun);
        } else {
            self.borne = self.borne.map(|borne| borne.max(held.begun));
        }
        if self.settled >= READINGS_SETTLED && is_filled {
            self.capacity = held.begun.clamp(1, self.ceiling);
        }
        self.capacity = self.capacity.max(held.begun.min(self.ceiling));
    }

    /// A reading failed: what is known goes on to count.
    pub(crate) fn note_miss(&mut self) {
        self.misses = self.misses.saturating_add(1);
        if self.misses >= MISSES_LIMIT && self.pressure == Pressure::Overfull {
            self.turn(Pressure::Full);
        }
    }

    /// A unit was taken back that had waited for too long in it.
    pub(crate) fn note_withdrawn(&mut self) {
        if self.pressure == Pressure::Open {
            self.turn(Pressure::Full);
        }
        self.quiet_left = self.quiet_next;
        self.quiet_next = (2 * self.quiet_next).min(QUIET_MAX);
    }

    fn judge(&mut self, has_waiting: bool, is_kv_full: bool, held: EngineHeld) {
        let is_full = has_waiting || is_kv_full;
        // One that was not given what it may have shows nothing about its limit.
        let is_filled = self.quiet_left == 0 && held.streams >= self.places(held.begun);
        let takes_more = !is_full && is_filled;
        match self.pressure {
            Pressure::Untold if is_full => self.turn(Pressure::Full),
            Pressure::Untold => self.turn(Pressure::Open),
            Pressure::Overfull => self.turn(Pressure::Full),
            Pressure::Open if is_kv_full => self.turn(Pressure::Full),
            Pressure::Open => self.turn_after_streak(has_waiting, Pressure::Full),
            Pressure::Full => self.turn_after_streak(takes_more, Pressure::Open),
        }
    }

    fn turn(&mut self, pressure: Pressure) {
        self.pressure = pressure;
        self.streak = 0;
    }

    fn turn_after_streak(&mut self, speaks_for_it: bool, pressure: Pressure) {
        self.streak = if speaks_for_it { self.streak + 1 } else { 0 };
        if self.streak >= READINGS_NEEDED {
            self.turn(pressure);
        }
    }

    /// An eighth less than there is; not again before that much has ended.
    fn shrink(&mut self, streams: usize) {
        if streams > 0 && streams <= self.cap {
            self.cap = (streams - (streams / 8).max(1)).max(1);
        }
    }
}

#[cfg(test)]
mod tests;
