//! What the end of a stream means: for the unit, and for the engine's standing.
//!
//! `abort` and errors are never a finish. A unit is blamed (negative acknowledgement, counted as
//! an attempt) only for a fault while it was being worked on, or for a call that is wrong in
//! itself; an engine that took nothing, or a node that is going away, is not the unit's fault.
//!
//! An engine that stands still as a whole (deaf) may be paused, or busy with weights: units that it
//! was working on are not blamed. One that has not brought a token is, as it may be what the engine
//! hangs in; else it would go on to hang one engine after the other.

use ebbtide_core::sample::Finish;
use ebbtide_queue::command::{HandBack, HandBackCause, Then};

use crate::engine::{EndReason, EngineError};

/// How a stream ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The engine ended it.
    Ended(EndReason),
    /// It failed.
    Failed(EngineError),
    /// The agent cut it off.
    Cut,
}

/// What is known besides.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Circumstances {
    /// Whether this stream brought any token.
    pub(super) has_tokens: bool,
    /// Why the unit leaves, if it does.
    pub(super) leaving: Option<HandBack>,
    /// Why the node is being emptied, if it is: then its engines may go at any moment.
    pub(super) draining: Option<HandBack>,
}

/// What the end says about the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EngineNote {
    /// It works.
    Fine,
    /// It takes no work now; why.
    TakesNothing(String),
    /// It will take no work until it is started differently; why.
    CannotGenerate(String),
    /// It is in doubt until it was probed again; why.
    InDoubt(String),
}

/// Judges an end.
pub(super) fn judge(outcome: Outcome, seen: Circumstances) -> (Then, EngineNote) {
    match outcome {
        Outcome::Ended(EndReason::Finished { reason, stop }) => {
            (Then::Complete(Finish { reason, stop_reason: stop }), EngineNote::Fine)
        }
        Outcome::Ended(EndReason::Aborted) => judge_abort(seen),
        Outcome::Failed(error) => judge_failure(&error, seen),
        Outcome::Cut => (Then::HandBack(why_of(seen)), EngineNote::Fine),
    }
}

fn judge_abort(seen: Circumstances) -> (Then, EngineNote) {
    let then = Then::HandBack(why_of(seen));
    if seen.leaving.is_some() || seen.has_tokens {
        return (then, EngineNote::Fine);
    }
    let why = "it answers new calls with an abort (it is shutting down, or was told to abort all)";
    (then, EngineNote::TakesNothing(why.to_owned()))
}

fn judge_failure(error: &EngineError, seen: Circumstances) -> (Then, EngineNote) {
    let problem = error.to_string();
    let note = match error {
        EngineError::Unable { .. } => EngineNote::CannotGenerate(error.problem()),
        error if error.is_about_the_unit() => EngineNote::Fine,
        EngineError::Refused { .. } => EngineNote::TakesNothing(problem.clone()),
        error if error.is_engine_in_doubt() => EngineNote::InDoubt(problem.clone()),
        _ => EngineNote::Fine,
    };
    let is_blameless = match error {
        EngineError::Unreachable { .. }
        | EngineError::Unable { .. }
        | EngineError::LeftPaused { .. } => true,
        EngineError::Refused { .. } => !error.is_about_the_unit(),
        EngineError::Deaf { .. } => seen.has_tokens,
        _ => false,
    };
    if seen.leaving.is_some() || seen.draining.is_some() || is_blameless {
        return (Then::HandBack(why_of(seen)), note);
    }
    (Then::Fault(problem), note)
}

fn why_of(seen: Circumstances) -> HandBack {
    seen.leaving.or(seen.draining).unwrap_or(HandBackCause::Engine.into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ebbtide_core::sample::FinishReason;

    use super::*;

    fn unreachable() -> EngineError {
        EngineError::Unreachable { address: "http://e".to_owned(), problem: "refused".to_owned() }
    }

    fn died() -> EngineError {
        EngineError::Failed { code: 500, problem: "EngineCore encountered an issue".to_owned() }
    }

    fn stalled() -> EngineError {
        EngineError::Stalled { waited: Duration::from_secs(61), limit: Duration::from_secs(60) }
    }

    fn refused(status: u16) -> EngineError {
        EngineError::Refused { status, problem: String::new() }
    }

    fn left_paused() -> EngineError {
        let (waited, limit) = (Duration::from_secs(300), Duration::from_secs(295));
        EngineError::LeftPaused { waited, limit }
    }

    #[test]
    fn finish_completes_even_a_unit_that_leaves() {
        let finished = EndReason::Finished { reason: FinishReason::Stop, stop: None };
        let seen =
            Circumstances { leaving: Some(HandBackCause::Notice.into()), ..Default::default() };
        let (then, note) = judge(Outcome::Ended(finished), seen);
        assert!(matches!(then, Then::Complete(_)));
        assert_eq!(note, EngineNote::Fine);
    }

    #[test]
    fn abort_is_never_a_finish_and_never_an_attempt() {
        for seen in [
            Circumstances::default(),
            Circumstances { has_tokens: true, ..Default::default() },
            Circumstances { leaving: Some(HandBackCause::Weights.into()), ..Default::default() },
        ] {
            let (then, _) = judge(Outcome::Ended(EndReason::Aborted), seen);
            assert!(matches!(then, Then::HandBack(_)), "{seen:?} gave {then:?}");
        }
    }

    #[test]
    fn engine_that_aborts_new_calls_takes_nothing() {
        let (then, note) = judge(Outcome::Ended(EndReason::Aborted), Circumstances::default());
        assert_eq!(then, Then::HandBack(HandBackCause::Engine.into()));
        assert!(matches!(note, EngineNote::TakesNothing(_)));
    }

    #[test]
    fn faults_of_model_and_engine_are_attempts_and_absence_is_not() {
        let seen = Circumstances { has_tokens: true, ..Default::default() };
        for (error, is_attempt, is_in_doubt) in [
            (died(), true, true),
            (stalled(), true, true),
            (EngineError::BrokenStream { problem: String::new() }, true, true),
            (refused(400), true, false),
            (refused(422), true, false),
            (refused(404), false, false),
            (refused(429), false, false),
            (unreachable(), false, true),
            (left_paused(), false, true),
        ] {
            let (then, note) = judge(Outcome::Failed(error.clone()), seen);
            assert_eq!(matches!(then, Then::Fault(_)), is_attempt, "{error}");
            assert_eq!(matches!(note, EngineNote::InDoubt(_)), is_in_doubt, "{error}");
        }
    }

    #[test]
    fn engine_that_stands_still_is_blamed_for_what_it_had_begun() {
        let deaf = || {
            let limit = Duration::from_secs(60);
            Outcome::Failed(EngineError::Deaf { waited: limit, limit })
        };
        let begun = Circumstances { has_tokens: true, ..Default::default() };
        let (then, note) = judge(deaf(), begun);
        assert_eq!(then, Then::HandBack(HandBackCause::Engine.into()));
        assert!(matches!(note, EngineNote::InDoubt(_)));
        let (then, _) = judge(deaf(), Circumstances::default());
        assert!(matches!(then, Then::Fault(_)), "it may be what the engine hangs in");
    }

    #[test]
    fn refusal_that_is_not_about_the_unit_holds_the_engine_off() {
        for status in [401, 404, 429, 503] {
            let (then, note) = judge(Outcome::Failed(refused(status)), Circumstances::default());
            assert_eq!(then, Then::HandBack(HandBackCause::Engine.into()), "{status}");
            assert!(matches!(note, EngineNote::TakesNothing(_)), "{status} gave {note:?}");
        }
    }

    #[test]
    fn dying_engine_of_a_draining_node_is_nobodys_fault() {
        let seen =
            Circumstances { draining: Some(HandBackCause::Notice.into()), ..Default::default() };
        let (then, _) = judge(Outcome::Failed(died()), seen);
        assert_eq!(then, Then::HandBack(HandBackCause::Notice.into()));
    }
}
