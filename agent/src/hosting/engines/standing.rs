//! How one engine stands, from its answers to probes and from what became of its work.
//!
//! An engine is condemned only by two failed probes or by a fault in service, and is trusted again
//! when a probe is good and its weights are a version that is not lower than before. Health alone
//! is not enough: an engine that refused its work stays in trouble until something shows otherwise.

use std::time::Duration;

use ebbtide_core::ids::PolicyVersion;
use ebbtide_queue::client::Backoff;
use tokio::time::Instant;

use super::lateness::Lateness;
use super::wedge::Wedge;
use crate::engine::{EngineError, EngineFacts, Lack};
use crate::hosting::startup::Startup;

/// Failed probes in a row that make an engine not ready: one alone was seen to lie.
pub(super) const PROBE_FAILURES_LIMIT: u32 = 2;

/// Bounds of the pause in which an engine that failed is given nothing.
pub(super) const HOLD_OFF_MIN: Duration = Duration::from_millis(500);
pub(super) const HOLD_OFF_MAX: Duration = Duration::from_secs(30);

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

/// What a probe changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ProbeNews {
    /// The condition, when it is another one than before.
    pub(crate) condition: Option<Condition>,
    /// The weights, when they have risen since they were first known.
    pub(crate) risen_to: Option<PolicyVersion>,
    /// Its weights are no version that it may work under: what it makes is nobody's.
    pub(crate) has_no_version: bool,
    /// Kind and version, when it is another one than before.
    pub(crate) name: Option<String>,
    /// Abilities that it lacks, and did not before.
    pub(crate) lacks: Vec<Lack>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Standing {
    condition: Condition,
    pub(super) facts: EngineFacts,
    probe_failures: u32,
    /// Its last probe was not answered in time, although it was reached.
    is_silent: bool,
    /// Weights that it had at most; it must not fall below.
    pub(super) highest: Option<PolicyVersion>,
    hold_off: Backoff,
    held_until: Option<Instant>,
    trouble: Option<Trouble>,
    /// Since when probes have found it paused.
    paused_since: Option<Instant>,
    pub(super) lateness: Lateness,
    pub(super) wedge: Wedge,
    pub(super) startup: Startup,
}

impl Default for Standing {
    fn default() -> Self {
        Self {
            condition: Condition::Starting(None),
            facts: EngineFacts::default(),
            probe_failures: 0,
            is_silent: false,
            highest: None,
            hold_off: Backoff::new(HOLD_OFF_MIN, HOLD_OFF_MAX),
            held_until: None,
            trouble: None,
            paused_since: None,
            lateness: Lateness::default(),
            wedge: Wedge::default(),
            startup: Startup::default(),
        }
    }
}

impl Standing {
    /// Its weights, when it may be given work at `now`. One that lacks an ability is, now and
    /// then, as only a stream can show that it was mended.
    pub(super) fn admits(&self, now: Instant) -> Option<PolicyVersion> {
        let is_refused = self.is_held_off(now)
            || self.facts.is_paused
            || self.lateness.is_told()
            || matches!(self.trouble, Some(Trouble::WrongModel(_)));
        match self.condition {
            Condition::Ready(version) if !is_refused => Some(version),
            _ => None,
        }
    }

    /// Whether it refused the work that it was given last.
    pub(super) fn is_in_trouble(&self) -> bool {
        self.trouble.is_some()
    }

    /// How it stands, as others are told.
    pub(super) fn told(&self) -> Condition {
        if let Some(late) = self.lateness.told_over(&self.condition) {
            return late;
        }
        match (&self.condition, &self.trouble) {
            (Condition::Ready(_), Some(trouble)) => Condition::NotReady(trouble.why().to_owned()),
            (condition, _) => condition.clone(),
        }
    }

    /// How long it has been paused, if it is.
    pub(super) fn paused_for(&self, now: Instant) -> Option<Duration> {
        self.paused_since.map(|since| now.saturating_duration_since(since))
    }

    /// A stream brought tokens: whatever was wrong is over, but for the model of other units.
    pub(super) fn note_success(&mut self) {
        self.hold_off.reset();
        self.held_until = None;
        self.end_trouble(|trouble| !matches!(trouble, Trouble::WrongModel(_)));
    }

    /// It takes no work: nothing is given to it for a while, which grows with each time.
    pub(super) fn note_trouble(&mut self, trouble: Trouble, now: Instant) {
        self.hold_off(now);
        if !matches!(self.trouble, Some(Trouble::WrongModel(_))) {
            self.trouble = Some(trouble);
        }
    }

    /// It failed in service: not ready until a probe is good again. `was_on_trial`: no stream has
    /// brought a token since the time before.
    pub(super) fn condemn(&mut self, why: &str, was_on_trial: bool, now: Instant) {
        self.hold_off(now);
        self.wedge.note_failed(was_on_trial, now);
        self.probe_failures = PROBE_FAILURES_LIMIT;
        self.condition = Condition::NotReady(why.to_owned());
    }

    /// Takes in the answer to a probe; `pause_limit` is how long it may stay paused.
    pub(super) fn note_probe(
        &mut self,
        answer: Result<EngineFacts, EngineError>,
        pause_limit: Duration,
        now: Instant,
    ) -> ProbeNews {
        let before = self.told();
        let mut news = ProbeNews::default();
        self.is_silent = matches!(answer, Err(EngineError::Silent { .. }));
        match answer {
            Ok(facts) => {
                self.probe_failures = 0;
                self.wedge.note_answer();
                self.note_weights(&facts, &mut news);
                self.note_pause(facts.is_paused, pause_limit, now);
                let (is_held_off, serves_others) =
                    (self.is_held_off(now), self.facts.models != facts.models);
                self.end_trouble(|trouble| match trouble {
                    Trouble::TakesNothing(_) => !is_held_off,
                    Trouble::CannotGenerate(_) => false,
                    // Tried again now and then: the units may be the wrong ones, and end.
                    Trouble::WrongModel(_) => serves_others || !is_held_off,
                });
                news.note_facts(&self.facts, &facts);
                self.facts = facts;
            }
            // An engine that loads may be deaf to everything else; the load tells when it dies.
            Err(_) if self.lateness.is_loading() => {}
            Err(error) => self.note_failure(&error, now),
        }
        let after = self.told();
        news.condition = (after != before).then_some(after);
        news
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

    pub(super) fn has_never_answered(&self) -> bool {
        matches!(self.condition, Condition::Starting(_))
    }

    fn note_failure(&mut self, error: &EngineError, now: Instant) {
        self.probe_failures = self.probe_failures.saturating_add(1);
        let is_starting = self.has_never_answered();
        let is_given_up = is_starting || self.is_away();
        if !self.is_silent && is_given_up {
            self.startup.note_away();
        }
        if self.is_away() {
            self.wedge.note_away(now);
        }
        if is_starting {
            self.condition = Condition::Starting(Some(error.problem()));
        } else if is_given_up {
            self.condition = Condition::NotReady(error.problem());
            self.end_trouble(|trouble| matches!(trouble, Trouble::CannotGenerate(_)));
        }
    }

    /// Whether it is there and answers no probe: it is busy, or it hangs, as a whole.
    pub(super) fn is_deaf(&self) -> bool {
        self.is_silent && self.is_away()
    }

    /// Whether it has not answered for so often that it is taken for away.
    pub(super) fn is_away(&self) -> bool {
        self.probe_failures >= PROBE_FAILURES_LIMIT
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

    /// Judges the label.
    fn note_weights(&mut self, facts: &EngineFacts, news: &mut ProbeNews) {
        let judged = self.judge_label(facts);
        news.has_no_version = judged.is_err();
        self.condition = match judged {
            Ok(version) => {
                let before = self.highest.replace(version);
                news.risen_to = before.filter(|before| version > *before).map(|_| version);
                Condition::Ready(version)
            }
            Err(condition) => condition,
        };
    }

    fn judge_label(&self, facts: &EngineFacts) -> Result<PolicyVersion, Condition> {
        let Some(label) = &facts.weights_label else {
            let why = match facts.lacks.contains(&Lack::DevMode) {
                true => Lack::DevMode.advice(),
                false => "it does not tell its weights",
            };
            return Err(Condition::NotReady(why.to_owned()));
        };
        let Some(version) = PolicyVersion::from_weights_label(label) else {
            let why = format!("weights label must be a decimal policy version, got {label:?}");
            return Err(Condition::Loading(why));
        };
        if let Some(highest) = self.highest.filter(|highest| version < *highest) {
            let why = format!("its weights fell from version {highest} to {version}");
            return Err(Condition::NotReady(why));
        }
        Ok(version)
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

impl Trouble {
    fn why(&self) -> &str {
        match self {
            Self::TakesNothing(why) | Self::CannotGenerate(why) | Self::WrongModel(why) => why,
        }
    }
}
