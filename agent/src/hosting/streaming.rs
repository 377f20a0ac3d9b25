//! One stream: from the call to the engine to its end, whatever that is.

use std::sync::Arc;
use std::time::Duration;

use ebbtide_queue::command::Then;
use futures::StreamExt;
use tokio::time::{Instant, timeout};

use super::engines::{EngineSlot, Trouble};
use super::verdict::{Circumstances, EngineNote, Outcome, judge};
use crate::engine::{EngineError, RequestId, StreamEnd, StreamEvent, WeightSpan};
use crate::ledger::{Received, StreamJob, StreamResult};
use crate::shared::Shared;

/// Tokens of this agent that may wait to be stored before streams are read no further: 4 Mi
/// tokens are 32 MiB of ids and log-probabilities.
const WAITING_TOKENS_MAX: u64 = 4 << 20;

/// Between two looks whether a silent engine is paused.
const PAUSE_LOOK: Duration = Duration::from_secs(1);

/// Runs a stream to its end and reports it to the ledger.
pub(super) async fn run_stream(shared: Arc<Shared>, slot: Arc<EngineSlot>, job: StreamJob) {
    let (request, is_continued) = (job.call.request.clone(), job.is_continued);
    let cut = job.cut.clone();
    let mut seen = Seen::default();
    let outcome = tokio::select! {
        biased;
        () = cut.cancelled() => Outcome::Cut,
        outcome = drive(&shared, &slot, job, &mut seen) => outcome,
    };
    let circumstances = Circumstances {
        has_tokens: seen.has_tokens,
        leaving: shared.desk.ledger().leaving_why(&request),
        draining: shared.drain_why(),
    };
    let (then, note) = judge(outcome, circumstances);
    if is_continued && !seen.has_tokens && matches!(then, Then::Fault(_)) {
        shared.metrics.streams.note_refused();
    }
    match note {
        EngineNote::Fine => {}
        EngineNote::TakesNothing(why) => {
            tracing::warn!(engine = slot.engine.address(), why, "engine takes no work");
            slot.hold_off(Trouble::TakesNothing(why), Instant::now());
        }
        EngineNote::CannotGenerate(why) => {
            tracing::warn!(engine = slot.engine.address(), why, "engine cannot generate");
            slot.hold_off(Trouble::CannotGenerate(why), Instant::now());
        }
        EngineNote::InDoubt(why) => {
            tracing::warn!(engine = slot.engine.address(), why, "engine failed");
            slot.condemn(&why, Instant::now());
        }
    }
    let result = StreamResult { then, spans: seen.spans };
    if shared.desk.change(|ledger| ledger.end_stream(&request, result)) {
        let why = "it makes tokens with weights whose label is no policy version, or fell";
        tracing::debug!(engine = slot.engine.address(), why, "tokens thrown away");
        slot.hold_off(Trouble::TakesNothing(why.to_owned()), Instant::now());
    }
}

/// What a stream brought.
#[derive(Default)]
struct Seen {
    has_tokens: bool,
    spans: Vec<WeightSpan>,
}

async fn drive(shared: &Shared, slot: &EngineSlot, job: StreamJob, seen: &mut Seen) -> Outcome {
    let request = job.call.request.clone();
    let (begun_at, is_continued) = (Instant::now(), job.is_continued);
    let opened = within_progress(shared, slot, slot.engine.generate(job.call)).await;
    let mut stream = match opened {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) | Err(error) => return Outcome::Failed(error),
    };
    loop {
        let event = match within_progress(shared, slot, stream.next()).await {
            Ok(Some(Ok(event))) => event,
            Ok(Some(Err(error))) | Err(error) => return Outcome::Failed(error),
            Ok(None) => {
                let problem = "it closed without a finish".to_owned();
                return Outcome::Failed(EngineError::BrokenStream { problem });
            }
        };
        match event {
            StreamEvent::Tokens { ids, logprobs } => {
                let is_first = !std::mem::replace(&mut seen.has_tokens, true);
                slot.note_tokens();
                if is_first {
                    slot.note_success();
                    slot.note_startup(|startup, _| startup.note_token((shared.wall_clock)()));
                    shared.metrics.streams.note_first_token(begun_at.elapsed(), is_continued);
                }
                if !take_in(shared, &request, &ids, &logprobs).await {
                    return Outcome::Cut;
                }
                if is_first {
                    // The engine may be given more.
                    shared.desk.nudge();
                }
            }
            StreamEvent::End(StreamEnd { reason, spans }) => {
                seen.spans = spans;
                return Outcome::Ended(reason);
            }
        }
    }
}

/// Hands tokens to the ledger; false when nobody wants them any more.
async fn take_in(shared: &Shared, request: &RequestId, ids: &[i32], logprobs: &[f32]) -> bool {
    let clocks = (Instant::now(), (shared.wall_clock)());
    let plenty = shared.config.pace.append_tokens;
    let received = shared.desk.ledger().receive(request, ids, logprobs, plenty, clocks);
    shared.metrics.tokens.received.inc_by(ids.len() as u64);
    match received {
        Received::Kept => {}
        Received::Plenty => shared.desk.nudge(),
        Received::Unwanted => return false,
    }
    wait_for_room(shared).await;
    true
}

/// While the queue is away and too many tokens wait, nothing more is read from the engine.
async fn wait_for_room(shared: &Shared) {
    let mut changes = shared.desk.subscribe();
    while shared.waiting_tokens() > WAITING_TOKENS_MAX {
        // The sender lives in `shared`, so the wait cannot end with an error.
        let _ = changes.changed().await;
    }
}

/// Waits for the engine, but not longer than the progress limit; a pause for weights suspends it
/// up to a limit of its own. Both end a little before the queue's.
async fn within_progress<T>(
    shared: &Shared,
    slot: &EngineSlot,
    wait: impl Future<Output = T>,
) -> Result<T, EngineError> {
    let lease = shared.config.lease;
    let (idle_limit, limit) = (lease.idle_limit(), lease.pause_limit());
    let mut idle = Duration::ZERO;
    tokio::pin!(wait);
    loop {
        let was_paused = slot.is_paused();
        let longest = if was_paused { idle_limit } else { idle_limit.saturating_sub(idle) };
        let step = longest.min(PAUSE_LOOK);
        if let Ok(result) = timeout(step, &mut wait).await {
            return Ok(result);
        }
        match slot.paused_for(Instant::now()) {
            Some(waited) if waited > limit => {
                return Err(EngineError::LeftPaused { waited, limit });
            }
            // A step that began in a pause is no sign of anything.
            None if !was_paused => idle += step,
            _ => {}
        }
        if idle >= idle_limit {
            let (waited, limit) = (idle, idle_limit);
            return Err(match slot.is_deaf() {
                true => EngineError::Deaf { waited, limit },
                false => EngineError::Stalled { waited, limit },
            });
        }
    }
}
