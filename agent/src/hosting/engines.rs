//! The engines of the node: whether each one may be given work, and under which weights.
//!
//! One slot per engine, each tended on its own, so that a slow engine delays no other. How it
//! stands is judged in `standing.rs`, what becomes of old weights in `lateness.rs`, and how much
//! it bears in `admission.rs`.

mod lateness;
mod standing;
mod wedge;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ebbtide_core::ids::PolicyVersion;
use tokio::sync::Notify;
use tokio::time::Instant;

pub(super) use self::lateness::LoadOrder;
use self::standing::Standing;
pub(crate) use self::standing::{Condition, ProbeNews, Trouble};
use super::admission::{AdmissionControl, EngineHeld};
use super::readings::{EngineFigures, Readings};
use super::startup::Startup;
use crate::engine::{Engine, EngineError, EngineFacts, EngineLoad};

/// One engine with its standing.
pub(crate) struct EngineSlot {
    pub(crate) engine: Arc<dyn Engine>,
    /// Its number on the node, from 0.
    pub(crate) index: usize,
    /// How long it may stay paused.
    pause_limit: Duration,
    standing: Mutex<Standing>,
    /// It failed in service, and no stream of it has brought a token since.
    is_on_trial: AtomicBool,
    /// Its pod is about to be deleted, or is on its way out by this agent's doing.
    is_given_up: AtomicBool,
    /// A load was decided on.
    load_due: Notify,
    gauge: Mutex<Gauge>,
}

/// What is known of its load.
#[derive(Debug)]
struct Gauge {
    readings: Readings,
    admission: AdmissionControl,
}

impl EngineSlot {
    /// `ceiling`: most units that it works on at a time.
    pub(crate) fn new(
        engine: Arc<dyn Engine>,
        index: usize,
        pause_limit: Duration,
        ceiling: usize,
    ) -> Self {
        let gauge =
            Gauge { readings: Readings::default(), admission: AdmissionControl::new(ceiling) };
        Self {
            engine,
            index,
            pause_limit,
            standing: Mutex::default(),
            is_on_trial: AtomicBool::new(false),
            is_given_up: AtomicBool::new(false),
            load_due: Notify::new(),
            gauge: Mutex::new(gauge),
        }
    }

    fn gauge(&self) -> MutexGuard<'_, Gauge> {
        self.gauge.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is tried with one unit alone: it refused what it was given last, or it failed.
    fn is_tried(&self) -> bool {
        self.is_in_trouble() || self.is_on_trial()
    }

    fn is_on_trial(&self) -> bool {
        self.is_on_trial.load(Ordering::Relaxed)
    }

    /// Gives it nothing more, or lets it have work again.
    pub(crate) fn give_up(&self, is_given_up: bool) {
        self.is_given_up.store(is_given_up, Ordering::Relaxed);
    }

    /// Whether it may not be given what was leased for it: it is to load weights, or was given up.
    pub(crate) fn takes_nothing_more(&self) -> bool {
        self.is_given_up.load(Ordering::Relaxed) || self.is_to_load()
    }

    /// Units that it may be given now, besides what it has.
    pub(crate) fn room(&self, held: EngineHeld) -> usize {
        if self.is_tried() {
            return 1_usize.saturating_sub(held.streams.max(held.units));
        }
        self.gauge().admission.room(held)
    }

    /// Streams that it may have.
    pub(crate) fn places(&self, held: EngineHeld) -> usize {
        if self.is_tried() { 1 } else { self.gauge().admission.places(held.begun) }
    }

    /// Units were taken back that had waited in it for too long.
    pub(crate) fn note_withdrawn(&self) {
        self.gauge().admission.note_withdrawn();
    }

    /// Streams that it is known to bear at a time.
    pub(crate) fn capacity(&self) -> usize {
        self.gauge().admission.capacity()
    }

    /// Most units that it works on at a time, from now on.
    pub(super) fn set_ceiling(&self, ceiling: usize) {
        self.gauge().admission.set_ceiling(ceiling);
    }

    /// How it does, as far as it tells.
    pub(crate) fn figures(&self, now: Instant) -> EngineFigures {
        self.gauge().readings.figures(now)
    }

    /// Takes in a reading of its metrics; `held` is what it has of this agent. A paused engine
    /// reads as an empty one.
    pub(crate) fn note_load(
        &self,
        answer: Result<EngineLoad, EngineError>,
        held: EngineHeld,
        now: Instant,
    ) {
        let is_paused = self.is_paused();
        let mut gauge = self.gauge();
        match answer {
            Ok(_) if is_paused => {}
            Ok(load) => {
                gauge.readings.note(load, now);
                gauge.admission.note(&load, held);
            }
            Err(_) => gauge.admission.note_miss(),
        }
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its weights, when it may be given work at `now`. One that lacks an ability is, now and
    /// then, as only a stream can show that it was mended.
    pub(crate) fn admits(&self, now: Instant) -> Option<PolicyVersion> {
        self.standing().admits(now).filter(|_| !self.is_given_up.load(Ordering::Relaxed))
    }

    /// Whether it refused the work that it was given last.
    pub(crate) fn is_in_trouble(&self) -> bool {
        self.standing().is_in_trouble()
    }

    /// What it last said about itself.
    pub(crate) fn facts(&self) -> EngineFacts {
        self.standing().facts.clone()
    }

    /// How it stands, as others are told.
    pub(crate) fn condition(&self) -> Condition {
        self.standing().told()
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.standing().facts.is_paused
    }

    /// How long it has been paused, if it is.
    pub(crate) fn paused_for(&self, now: Instant) -> Option<Duration> {
        self.standing().paused_for(now)
    }

    /// Whether it is there and answers no probe: it is busy, or it hangs, as a whole.
    pub(crate) fn is_deaf(&self) -> bool {
        self.standing().is_deaf()
    }

    /// A stream brought tokens, its first or others.
    pub(crate) fn note_tokens(&self) {
        // Looked at before it is written: this is for every token.
        if self.is_on_trial.load(Ordering::Relaxed) {
            self.is_on_trial.store(false, Ordering::Relaxed);
        }
    }

    /// A stream brought its first tokens: whatever was wrong is over, but for the model of other
    /// units.
    pub(crate) fn note_success(&self) {
        self.standing().note_success();
    }

    /// How its start went so far; changed where the node's wall clock is at hand.
    pub(crate) fn note_startup<T>(&self, note: impl FnOnce(&mut Startup, bool) -> T) -> T {
        let mut standing = self.standing();
        let is_ready = matches!(standing.told(), Condition::Ready(_));
        let is_taken = is_ready && !standing.lateness.is_late();
        note(&mut standing.startup, is_taken)
    }

    /// It takes no work: nothing is given to it for a while, which grows with each time.
    pub(crate) fn hold_off(&self, trouble: Trouble, now: Instant) {
        self.standing().note_trouble(trouble, now);
    }

    /// It failed in service: not ready until a probe is good again, and then on trial.
    pub(crate) fn condemn(&self, why: &str, now: Instant) {
        let was_on_trial = self.is_on_trial.swap(true, Ordering::Relaxed);
        self.standing().condemn(why, was_on_trial, now);
    }

    /// Takes in the answer to a probe.
    pub(crate) fn note_probe(
        &self,
        answer: Result<EngineFacts, EngineError>,
        now: Instant,
    ) -> ProbeNews {
        self.standing().note_probe(answer, self.pause_limit, now)
    }
}

#[cfg(test)]
mod tests;
