//! Laws of an engine's standing: what makes it ready, and what ends its troubles.

use async_trait::async_trait;

use super::standing::{HOLD_OFF_MAX, HOLD_OFF_MIN};
use super::*;
use crate::engine::{GenerateCall, Lack, RequestId, TokenStream};

const PAUSE_LIMIT: Duration = Duration::from_secs(10);

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

pub(super) fn away() -> EngineError {
    EngineError::Unreachable { address: String::new(), problem: "refused".to_owned() }
}

pub(super) fn slot() -> EngineSlot {
    EngineSlot::new(Arc::new(NoEngine), 0, PAUSE_LIMIT, 8)
}

pub(super) fn facts(label: &str) -> Result<EngineFacts, EngineError> {
    Ok(EngineFacts { weights_label: Some(label.to_owned()), ..EngineFacts::default() })
}

pub(super) fn probe(slot: &EngineSlot, answer: Result<EngineFacts, EngineError>) -> ProbeNews {
    slot.note_probe(answer, Instant::now())
}

fn takes_nothing() -> Trouble {
    Trouble::TakesNothing("it aborts".to_owned())
}

fn serving(model: &str) -> Result<EngineFacts, EngineError> {
    facts("7").map(|facts| EngineFacts { models: vec![model.to_owned()], ..facts })
}

pub(super) fn paused() -> Result<EngineFacts, EngineError> {
    facts("7").map(|facts| EngineFacts { is_paused: true, ..facts })
}

#[tokio::test]
async fn engine_that_never_answered_says_why_once() {
    let slot = slot();
    assert_eq!(slot.condition(), Condition::Starting(None));
    let first = probe(&slot, Err(away()));
    let why = Condition::Starting(Some("not reachable: refused".to_owned()));
    assert_eq!(first.condition, Some(why.clone()));
    assert_eq!(probe(&slot, Err(away())).condition, None);
    assert_eq!(slot.condition(), why);
}

#[tokio::test]
async fn engine_that_stays_paused_is_not_ready_until_it_goes_on() {
    let slot = slot();
    let begun = Instant::now();
    slot.note_probe(paused(), begun);
    assert_eq!(slot.condition(), Condition::Ready(PolicyVersion(7)));
    slot.condemn("a stream gave up", begun + PAUSE_LIMIT);
    let later = begun + PAUSE_LIMIT + Duration::from_secs(1);
    slot.note_probe(paused(), later);
    let is_paused = |why: &str| why.contains("paused") && why.contains("10 s");
    assert!(matches!(slot.condition(), Condition::NotReady(why) if is_paused(&why)));
    assert_eq!(slot.note_probe(paused(), later).condition, None, "it is told once");
    slot.note_probe(facts("7"), later);
    assert_eq!(slot.condition(), Condition::Ready(PolicyVersion(7)));
    assert_eq!(slot.paused_for(later), None);
}

#[tokio::test]
async fn engine_that_cannot_generate_is_tried_and_not_ready_until_a_stream_shows_otherwise() {
    let slot = slot();
    probe(&slot, facts("7"));
    let now = Instant::now();
    slot.hold_off(Trouble::CannotGenerate("--enable-scale-out".to_owned()), now);
    let later = now + HOLD_OFF_MIN;
    slot.note_probe(facts("7"), later);
    assert!(matches!(slot.condition(), Condition::NotReady(why) if why.contains("scale-out")));
    assert!(slot.admits(later).is_some() && slot.is_in_trouble(), "it is tried");
    slot.note_success();
    assert_eq!(slot.condition(), Condition::Ready(PolicyVersion(7)));
}

#[tokio::test]
async fn engine_that_cannot_generate_may_be_mended_by_a_restart() {
    let slot = slot();
    probe(&slot, facts("7"));
    slot.hold_off(Trouble::CannotGenerate("403".to_owned()), Instant::now());
    probe(&slot, Err(away()));
    assert!(slot.is_in_trouble(), "one failed probe is no restart");
    probe(&slot, Err(away()));
    probe(&slot, facts("7"));
    assert_eq!(slot.condition(), Condition::Ready(PolicyVersion(7)));
}

#[tokio::test]
async fn engine_that_takes_nothing_is_not_ready_while_it_is_held_off() {
    let slot = slot();
    let now = Instant::now();
    slot.note_probe(facts("7"), now);
    slot.hold_off(takes_nothing(), now);
    slot.note_probe(facts("7"), now);
    assert!(matches!(slot.condition(), Condition::NotReady(_)));
    slot.note_probe(facts("7"), now + HOLD_OFF_MIN);
    assert_eq!(slot.condition(), Condition::Ready(PolicyVersion(7)));
}

#[tokio::test]
async fn engine_of_another_model_waits_until_it_serves_others_or_its_hold_off_is_over() {
    let slot = slot();
    probe(&slot, serving("small"));
    let now = Instant::now();
    slot.hold_off(Trouble::WrongModel("needs huge, serves small".to_owned()), now);
    slot.hold_off(takes_nothing(), now);
    slot.note_probe(serving("small"), now);
    assert_eq!(slot.admits(now), None);
    assert!(matches!(slot.condition(), Condition::NotReady(why) if why.contains("huge")));
    slot.note_probe(serving("huge"), now);
    assert!(matches!(slot.condition(), Condition::Ready(_)), "it serves another model now");

    slot.hold_off(Trouble::WrongModel("needs small, serves huge".to_owned()), now);
    let later = now + HOLD_OFF_MAX;
    slot.note_probe(serving("huge"), later);
    assert!(slot.admits(later).is_some(), "the units may have been the wrong ones");
}

#[tokio::test]
async fn only_a_decimal_label_admits_work() {
    let slot = slot();
    assert_eq!(slot.admits(Instant::now()), None);
    probe(&slot, facts("default"));
    assert!(matches!(slot.condition(), Condition::Loading(_)));
    assert_eq!(slot.admits(Instant::now()), None);
    probe(&slot, facts("7"));
    assert_eq!(slot.admits(Instant::now()), Some(PolicyVersion(7)));
}

#[tokio::test]
async fn name_and_lacks_are_told_once_and_again_for_another_engine() {
    let slot = slot();
    let engine = |name: &str, lacks: &[Lack]| {
        facts("7").map(|facts| EngineFacts {
            name: name.to_owned(),
            lacks: lacks.to_vec(),
            ..facts
        })
    };
    let told = |news: ProbeNews| (news.name, news.lacks);
    let lacks = [Lack::ScaleOut];
    let first = told(probe(&slot, engine("vllm/1", &lacks)));
    assert_eq!(first, (Some("vllm/1".to_owned()), lacks.to_vec()));
    assert_eq!(told(probe(&slot, engine("vllm/1", &lacks))), (None, Vec::new()));
    assert_eq!(told(probe(&slot, Err(away()))), (None, Vec::new()));
    let other = told(probe(&slot, engine("vllm/2", &lacks)));
    assert_eq!(other, (Some("vllm/2".to_owned()), lacks.to_vec()));
    let more = [Lack::ScaleOut, Lack::DevMode];
    assert_eq!(told(probe(&slot, engine("vllm/2", &more))), (None, vec![Lack::DevMode]));
}

#[tokio::test]
async fn engine_that_does_not_tell_its_weights_is_not_ready_and_says_what_to_set() {
    let slot = slot();
    let silent = EngineFacts { lacks: vec![Lack::DevMode], ..EngineFacts::default() };
    probe(&slot, Ok(silent));
    let is_advice = |why: &str| why.contains("VLLM_SERVER_DEV_MODE=1");
    assert!(matches!(slot.condition(), Condition::NotReady(why) if is_advice(&why)));
}

#[tokio::test]
async fn one_failed_probe_condemns_nothing_and_two_do() {
    let slot = slot();
    probe(&slot, facts("7"));
    probe(&slot, Err(away()));
    assert!(slot.admits(Instant::now()).is_some());
    probe(&slot, Err(away()));
    assert!(slot.admits(Instant::now()).is_none());
    probe(&slot, facts("7"));
    assert!(slot.admits(Instant::now()).is_some());
}

/// Case 18 of rollouts.
#[tokio::test]
async fn weights_that_fall_are_not_accepted() {
    let slot = slot();
    probe(&slot, facts("7"));
    assert_eq!(probe(&slot, facts("8")).risen_to, Some(PolicyVersion(8)));
    probe(&slot, facts("6"));
    assert!(matches!(slot.condition(), Condition::NotReady(why) if why.contains("fell")));
    probe(&slot, facts("8"));
    assert_eq!(slot.condition(), Condition::Ready(PolicyVersion(8)));
}

#[tokio::test]
async fn failing_engine_is_held_off_longer_each_time_until_it_works() {
    let slot = slot();
    probe(&slot, facts("7"));
    let now = Instant::now();
    slot.hold_off(takes_nothing(), now);
    slot.hold_off(takes_nothing(), now);
    assert!(slot.admits(now).is_none());
    let later = now + HOLD_OFF_MIN;
    assert!(slot.admits(later).is_some(), "streams that fail together count once");
    slot.condemn("it died", later);
    probe(&slot, facts("7"));
    assert!(slot.admits(later).is_none(), "a good probe alone does not end the pause");
    slot.note_success();
    assert!(slot.admits(later).is_some());
}

#[tokio::test]
async fn engine_that_failed_is_tried_with_one_unit_until_tokens_come() {
    let slot = slot();
    probe(&slot, facts("7"));
    let idle = EngineHeld::default();
    assert_eq!(slot.room(idle), 8);
    slot.condemn("it died", Instant::now());
    probe(&slot, facts("7"));
    assert!(!slot.is_in_trouble(), "its probes are good");
    assert_eq!((slot.room(idle), slot.places(idle)), (1, 1));
    assert_eq!(slot.room(EngineHeld { streams: 1, begun: 0, units: 1 }), 0);
    slot.note_tokens();
    assert_eq!(slot.room(idle), 8);
}

#[tokio::test]
async fn engine_is_deaf_once_two_probes_in_a_row_were_not_answered_in_time() {
    let slot = slot();
    let silent = || {
        let problem = "timed out".to_owned();
        Err(EngineError::Silent { address: String::new(), problem })
    };
    probe(&slot, facts("7"));
    probe(&slot, silent());
    assert!(!slot.is_deaf());
    probe(&slot, silent());
    assert!(slot.is_deaf());
    probe(&slot, Err(away()));
    assert!(!slot.is_deaf(), "it is gone, not deaf");
    probe(&slot, silent());
    assert!(slot.is_deaf());
    probe(&slot, facts("7"));
    assert!(!slot.is_deaf());
}
