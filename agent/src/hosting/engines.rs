//! The engines of the node: whether each one may be given work, and under which weights.
//!
//! One slot per engine, each tended on its own, so that a slow engine delays no other. An engine
//! is condemned only by two failed probes or by a fault in service, and is trusted again when a
//! probe is good and its weights are a version that is not lower than before. Health alone is not
//! enough: an engine that refused its work stays in trouble until something shows otherwise.

mod lateness;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ebbtide_core::ids::PolicyVersion;
use ebbtide_queue::client::Backoff;
use tokio::sync::Notify;
use tokio::time::Instant;

use self::lateness::Lateness;
pub(super) use self::lateness::LoadOrder;
use super::admission::{AdmissionControl, EngineHeld};
use super::readings::{EngineFigures, Readings};
use super::startup::Startup;
use crate::engine::{Engine, EngineError, EngineFacts, EngineLoad, Lack};

/// Failed probes in a row that make an engine not ready: one alone was seen to lie.
const PROBE_FAILURES_LIMIT: u32 = 2;

/// Bounds of the pause in which an engine that failed is given nothing.
const HOLD_OFF_MIN: Duration = Duration::from_millis(500);
const HOLD_OFF_MAX: Duration = Duration::from_secs(30);

/// Whether an engine may be given work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Condition {
    /// It has not answered yet; what came instead, if it was asked.
    Starting(Option<String>),
    /// It works, but its weights are no version of the run.
    Loading(String),
    /// It may be given work.
    Ready(PolicyVersion),
    /// It must not be given work; why.
    NotReady(String),
}

/// Why a healthy engine is not ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It takes no work now: over when it has been held off and a probe is good.
    TakesNothing(String),
    /// It lacks an ability: over when a stream brings tokens, or when it goes away, as for a
    /// restart.
    CannotGenerate(String),
    /// It serves another model than the units need: over when it serves others, or when it has been
    /// held off and a probe is good.
    WrongModel(String),
}

/// One engine with its standing.
pub(crate) struct EngineSlot {
    pub(crate) engine: Arc<dyn Engine>,
    /// Its number on the node, from 0.
    pub(crate) index: usize,
    /// How long it may stay paused.
    pause_limit: Duration,
    standing: Mutex<Standing>,
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

#[derive(Debug)]
struct Standing {
    condition: Condition,
    facts: EngineFacts,
    probe_failures: u32,
    /// Weights that it had at most; it must not fall below.
    highest: Option<PolicyVersion>,
    hold_off: Backoff,
    held_until: Option<Instant>,
    trouble: Option<Trouble>,
    /// Since when probes have found it paused.
    paused_since: Option<Instant>,
    lateness: Lateness,
    startup: Startup,
}

/// What a probe changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ProbeNews {
    /// The condition, when it is another one than before.
    pub(crate) condition: Option<Condition>,
    /// The weights, when they have risen since they were first known.
    pub(crate) risen_to: Option<PolicyVersion>,
    /// Kind and version, when it is another one than before.
    pub(crate) name: Option<String>,
    /// Abilities that it lacks, and did not before.
    pub(crate) lacks: Vec<Lack>,
}

impl EngineSlot {
    /// `ceiling`: most units that it works on at a time.
    pub(crate) fn new(
        engine: Arc<dyn Engine>,
        index: usize,
        pause_limit: Duration,
        ceiling: usize,
    ) -> Self {
        let standing = Standing {
            condition: Condition::Starting(None),
            facts: EngineFacts::default(),
            probe_failures: 0,
            highest: None,
            hold_off: Backoff::new(HOLD_OFF_MIN, HOLD_OFF_MAX),
            held_until: None,
            trouble: None,
            paused_since: None,
            lateness: Lateness::default(),
            startup: Startup::default(),
        };
        let gauge =
            Gauge { readings: Readings::default(), admission: AdmissionControl::new(ceiling) };
        let (standing, gauge) = (Mutex::new(standing), Mutex::new(gauge));
        Self { engine, index, pause_limit, standing, load_due: Notify::new(), gauge }
    }

    fn gauge(&self) -> MutexGuard<'_, Gauge> {
        self.gauge.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Units that it may be given now, besides what it has. An engine that refused is tried with
    /// one.
    pub(crate) fn room(&self, held: EngineHeld) -> usize {
        if self.is_in_trouble() {
            return 1_usize.saturating_sub(held.streams.max(held.units));
        }
        self.gauge().admission.room(held)
    }

    /// Streams that it may have.
    pub(crate) fn places(&self, held: EngineHeld) -> usize {
        if self.is_in_trouble() { 1 } else { self.gauge().admission.places(held.begun) }
    }

    /// Units were taken back that had waited in it for too long.
    pub(crate) fn note_withdrawn(&self) {
        self.gauge().admission.note_withdrawn();
    }

    /// Streams that it is known to bear at a time.
    pub(crate) fn capacity(&self) -> usize {
        self.gauge().admission.capacity()
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
        let standing = self.standing();
        let is_refused = standing.is_held_off(now)
            || standing.facts.is_paused
            || standing.lateness.is_told()
            || matches!(standing.trouble, Some(Trouble::WrongModel(_)));
        match standing.condition {
            Condition::Ready(version) if !is_refused => Some(version),
            _ => None,
        }
    }

    /// Whether it refused the work that it was given last.
    pub(crate) fn is_in_trouble(&self) -> bool {
        self.standing().trouble.is_some()
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
        self.standing().paused_since.map(|since| now.saturating_duration_since(since))
    }

    /// A stream brought tokens: whatever was wrong is over, but for the model of other units.
    pub(crate) fn note_success(&self) {
        let mut standing = self.standing();
        standing.hold_off.reset();
        standing.held_until = None;
        standing.end_trouble(|trouble| !matches!(trouble, Trouble::WrongModel(_)));
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
        let mut standing = self.standing();
        standing.hold_off(now);
        if !matches!(standing.trouble, Some(Trouble::WrongModel(_))) {
            standing.trouble = Some(trouble);
        }
    }

    /// It failed in service: not ready until a probe is good again.
    pub(crate) fn condemn(&self, why: &str, now: Instant) {
        let mut standing = self.standing();
        standing.hold_off(now);
        standing.probe_failures = PROBE_FAILURES_LIMIT;
        standing.condition = Condition::NotReady(why.to_owned());
    }

    /// Takes in the answer to a probe.
    pub(crate) fn note_probe(
        &self,
        answer: Result<EngineFacts, EngineError>,
        now: Instant,
    ) -> ProbeNews {
        let mut standing = self.standing();
        let before = standing.told();
        let mut news = ProbeNews::default();
        match answer {
            Ok(facts) => {
                standing.probe_failures = 0;
                news.risen_to = standing.note_weights(&facts);
                standing.note_pause(facts.is_paused, self.pause_limit, now);
                let (is_held_off, serves_others) =
                    (standing.is_held_off(now), standing.facts.models != facts.models);
                standing.end_trouble(|trouble| match trouble {
                    Trouble::TakesNothing(_) => !is_held_off,
                    Trouble::CannotGenerate(_) => false,
                    // Tried again now and then: the units may be the wrong ones, and end.
                    Trouble::WrongModel(_) => serves_others || !is_held_off,
                });
                news.note_facts(&standing.facts, &facts);
                standing.facts = facts;
            }
            // An engine that loads may be deaf to everything else; the load tells when it dies.
            Err(_) if standing.lateness.is_loading() => {}
            Err(error) => standing.note_failure(&error),
        }
        let after = standing.told();
        news.condition = (after != before).then_some(after);
        news
    }
}

impl ProbeNews {
    fn note_facts(&mut self, before: &EngineFacts, now: &EngineFacts) {
        let is_other = now.name != before.name;
        self.name = is_other.then(|| now.name.clone());
        let is_new = |lack: &&Lack| is_other || !before.lacks.contains(lack);
        self.lacks = now.lacks.iter().filter(is_new).copied().collect();
    }
}

impl Standing {
    fn told(&self) -> Condition {
        if let Some(late) = self.lateness.told_over(&self.condition) {
            return late;
        }
        match (&self.condition, &self.trouble) {
            (Condition::Ready(_), Some(trouble)) => Condition::NotReady(trouble.why().to_owned()),
            (condition, _) => condition.clone(),
        }
    }

    fn is_held_off(&self, now: Instant) -> bool {
        self.held_until.is_some_and(|until| until > now)
    }

    fn hold_off(&mut self, now: Instant) {
        // Streams that fail together count once.
        if !self.is_held_off(now) {
            self.held_until = Some(now + self.hold_off.next_pause());
        }
    }

    fn end_trouble(&mut self, is_over: impl Fn(&Trouble) -> bool) {
        self.trouble = self.trouble.take().filter(|trouble| !is_over(trouble));
    }

    fn note_failure(&mut self, error: &EngineError) {
        self.probe_failures = self.probe_failures.saturating_add(1);
        if !matches!(error, EngineError::Silent { .. }) && self.is_given_up() {
            self.startup.note_away();
        }
        if matches!(self.condition, Condition::Starting(_)) {
            self.condition = Condition::Starting(Some(error.problem()));
        } else if self.is_given_up() {
            self.condition = Condition::NotReady(error.problem());
            self.end_trouble(|trouble| matches!(trouble, Trouble::CannotGenerate(_)));
        }
    }

    /// Whether it is taken for away: it has not answered yet, or not for too often.
    fn is_given_up(&self) -> bool {
        let is_starting = matches!(self.condition, Condition::Starting(_));
        is_starting || self.probe_failures >= PROBE_FAILURES_LIMIT
    }

    /// A pause for weights is short; a longer one is somebody's mistake.
    fn note_pause(&mut self, is_paused: bool, limit: Duration, now: Instant) {
        let since = self.paused_since.unwrap_or(now);
        self.paused_since = is_paused.then_some(since);
        if is_paused && now.saturating_duration_since(since) > limit {
            let why = format!(
                "paused for longer than its limit of {} s: resume it once its weights are whole",
                limit.as_secs()
            );
            self.condition = Condition::NotReady(why);
        }
    }

    /// Judges the label; returns the version when it has risen.
    fn note_weights(&mut self, facts: &EngineFacts) -> Option<PolicyVersion> {
        let Some(label) = &facts.weights_label else {
            let why = match facts.lacks.contains(&Lack::DevMode) {
                true => Lack::DevMode.advice(),
                false => "it does not tell its weights",
            };
            self.condition = Condition::NotReady(why.to_owned());
            return None;
        };
        let Some(version) = PolicyVersion::from_weights_label(label) else {
            let why = format!("weights label must be a decimal policy version, got {label:?}");
            self.condition = Condition::Loading(why);
            return None;
        };
        let highest = self.highest.replace(self.highest.map_or(version, |h| h.max(version)));
        if let Some(highest) = highest.filter(|highest| version < *highest) {
            let why = format!("its weights fell from version {highest} to {version}");
            self.condition = Condition::NotReady(why);
            return None;
        }
        self.condition = Condition::Ready(version);
        highest.filter(|highest| version > *highest).map(|_| version)
    }
}

impl Trouble {
    fn why(&self) -> &str {
        match self {
            Self::TakesNothing(why) | Self::CannotGenerate(why) | Self::WrongModel(why) => why,
        }
    }
}

#[cfg(test)]
mod tests;
