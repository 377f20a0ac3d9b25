//! The engines of the node: whether each one may be given work, and under which weights.
//!
//! One slot per engine, each tended on its own, so that a slow engine delays no other. An engine
//! is condemned only by two failed probes or by a fault in service, and is trusted again when a
//! probe is good and its weights are a version that is not lower than before.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ebbtide_core::ids::PolicyVersion;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::engine::{Engine, EngineError, EngineFacts};

/// Failed probes in a row that make an engine not ready: one alone was seen to lie.
const PROBE_FAILURES_LIMIT: u32 = 2;

/// Bounds of the pause in which an engine that failed is given nothing.
const HOLD_OFF_MIN: Duration = Duration::from_millis(500);
const HOLD_OFF_MAX: Duration = Duration::from_secs(30);

/// Whether an engine may be given work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Condition {
    /// It has not answered yet.
    Starting,
    /// It works, but its weights are no version of the run.
    Loading(String),
    /// It may be given work.
    Ready(PolicyVersion),
    /// It must not be given work; why.
    NotReady(String),
}

/// One engine with its standing.
pub(crate) struct EngineSlot {
    pub(crate) engine: Arc<dyn Engine>,
    /// Its number on the node, from 0.
    pub(crate) index: usize,
    standing: Mutex<Standing>,
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
}

/// What a probe changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ProbeNews {
    /// The condition, when it is another one than before.
    pub(crate) condition: Option<Condition>,
    /// The weights, when they have risen since they were first known.
    pub(crate) risen_to: Option<PolicyVersion>,
}

impl EngineSlot {
    pub(crate) fn new(engine: Arc<dyn Engine>, index: usize) -> Self {
        let standing = Standing {
            condition: Condition::Starting,
            facts: EngineFacts::default(),
            probe_failures: 0,
            highest: None,
            hold_off: Backoff::new(HOLD_OFF_MIN, HOLD_OFF_MAX),
            held_until: None,
        };
        Self { engine, index, standing: Mutex::new(standing) }
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its weights, when it may be given work at `now`.
    pub(crate) fn admits(&self, now: Instant) -> Option<PolicyVersion> {
        let standing = self.standing();
        let is_held = standing.held_until.is_some_and(|until| until > now);
        match standing.condition {
            Condition::Ready(version) if !is_held && !standing.facts.is_paused => Some(version),
            _ => None,
        }
    }

    /// What it last said about itself.
    pub(crate) fn facts(&self) -> EngineFacts {
        self.standing().facts.clone()
    }

    pub(crate) fn condition(&self) -> Condition {
        self.standing().condition.clone()
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.standing().facts.is_paused
    }

    /// A stream brought tokens: whatever was wrong is over.
    pub(crate) fn note_success(&self) {
        let mut standing = self.standing();
        standing.hold_off.reset();
        standing.held_until = None;
    }

    /// It takes no work: nothing is given to it for a while, which grows with each time.
    pub(crate) fn hold_off(&self, now: Instant) {
        let mut standing = self.standing();
        // Streams that fail together count once.
        if standing.held_until.is_none_or(|until| until <= now) {
            let pause = standing.hold_off.next_pause();
            standing.held_until = Some(now + pause);
        }
    }

    /// It failed in service: not ready until a probe is good again.
    pub(crate) fn condemn(&self, why: &str, now: Instant) {
        self.hold_off(now);
        let mut standing = self.standing();
        standing.probe_failures = PROBE_FAILURES_LIMIT;
        standing.condition = Condition::NotReady(why.to_owned());
    }

    /// Takes in the answer to a probe.
    pub(crate) fn note_probe(&self, answer: Result<EngineFacts, EngineError>) -> ProbeNews {
        let mut standing = self.standing();
        let before = standing.condition.clone();
        let mut news = ProbeNews::default();
        match answer {
            Ok(facts) => {
                standing.probe_failures = 0;
                news.risen_to = standing.note_weights(&facts);
                standing.facts = facts;
            }
            Err(error) => {
                standing.probe_failures = standing.probe_failures.saturating_add(1);
                let is_first_answer_due = before == Condition::Starting;
                if standing.probe_failures >= PROBE_FAILURES_LIMIT && !is_first_answer_due {
                    standing.condition = Condition::NotReady(error.to_string());
                }
            }
        }
        news.condition = (standing.condition != before).then(|| standing.condition.clone());
        news
    }
}

impl Standing {
    /// Judges the label; returns the version when it has risen.
    fn note_weights(&mut self, facts: &EngineFacts) -> Option<PolicyVersion> {
        let Some(label) = &facts.weights_label else {
            let why = "it does not tell its weights: start vLLM with VLLM_SERVER_DEV_MODE=1";
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

#[cfg(test)]
mod tests {
    use async_trait::async_trait;

    use super::*;
    use crate::engine::{GenerateCall, RequestId, TokenStream};

    struct NoEngine;

    #[async_trait]
    impl Engine for NoEngine {
        async fn probe(&self) -> Result<EngineFacts, EngineError> {
            Err(away())
        }
        async fn generate(&self, _: GenerateCall) -> Result<TokenStream, EngineError> {
            Err(away())
        }
        async fn abort(&self, _: &[RequestId]) -> Result<(), EngineError> {
            Err(away())
        }
        fn address(&self) -> &str {
            "http://nowhere"
        }
        fn kind(&self) -> &'static str {
            "none"
        }
    }

    fn away() -> EngineError {
        EngineError::Unreachable { address: String::new(), problem: "refused".to_owned() }
    }

    fn slot() -> EngineSlot {
        EngineSlot::new(Arc::new(NoEngine), 0)
    }

    fn facts(label: &str) -> Result<EngineFacts, EngineError> {
        Ok(EngineFacts { weights_label: Some(label.to_owned()), ..EngineFacts::default() })
    }

    #[tokio::test]
    async fn only_a_decimal_label_admits_work() {
        let slot = slot();
        assert_eq!(slot.admits(Instant::now()), None);
        slot.note_probe(facts("default"));
        assert!(matches!(slot.condition(), Condition::Loading(_)));
        assert_eq!(slot.admits(Instant::now()), None);
        slot.note_probe(facts("7"));
        assert_eq!(slot.admits(Instant::now()), Some(PolicyVersion(7)));
    }

    #[tokio::test]
    async fn one_failed_probe_condemns_nothing_and_two_do() {
        let slot = slot();
        slot.note_probe(facts("7"));
        slot.note_probe(Err(away()));
        assert!(slot.admits(Instant::now()).is_some());
        slot.note_probe(Err(away()));
        assert!(slot.admits(Instant::now()).is_none());
        slot.note_probe(facts("7"));
        assert!(slot.admits(Instant::now()).is_some());
    }

    #[tokio::test]
    async fn weights_that_fall_are_not_accepted() {
        let slot = slot();
        slot.note_probe(facts("7"));
        assert_eq!(slot.note_probe(facts("8")).risen_to, Some(PolicyVersion(8)));
        slot.note_probe(facts("6"));
        assert!(matches!(slot.condition(), Condition::NotReady(why) if why.contains("fell")));
        slot.note_probe(facts("8"));
        assert_eq!(slot.condition(), Condition::Ready(PolicyVersion(8)));
    }

    #[tokio::test]
    async fn failing_engine_is_held_off_longer_each_time_until_it_works() {
        let slot = slot();
        slot.note_probe(facts("7"));
        let now = Instant::now();
        slot.hold_off(now);
        slot.hold_off(now);
        assert!(slot.admits(now).is_none());
        let later = now + HOLD_OFF_MIN;
        assert!(slot.admits(later).is_some(), "streams that fail together count once");
        slot.condemn("it died", later);
        slot.note_probe(facts("7"));
        assert!(slot.admits(later).is_none(), "a good probe alone does not end the pause");
        slot.note_success();
        assert!(slot.admits(later).is_some());
    }
}
