//! Scripts an emulated engine: its speed, its label, and all the ways in which it fails or ends.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use tokio::time::{sleep, timeout};

use super::scheduler::Scheduler;
use super::{Engine, EngineCounts, PauseMode, lock};

/// Between the last lines of an ending engine and the end of its server, so that they arrive.
const EXIT_DELAY: Duration = Duration::from_millis(500);

/// From the end of a drain's time to refused connections, as recorded from vLLM 0.32.
const REFUSE_DELAY: Duration = Duration::from_millis(250);

/// Scripts a running [`super::EngineEmulator`]; clones steer the same one.
#[derive(Clone)]
pub struct EngineHandle {
    engine: Arc<Engine>,
}

impl EngineHandle {
    pub(super) fn of(engine: Arc<Engine>) -> Self {
        Self { engine }
    }

    /// `http://address`, without a slash at the end.
    pub fn base_url(&self) -> String {
        self.engine.server.base_url()
    }

    /// What the engine does and has done.
    pub fn counts(&self) -> EngineCounts {
        self.engine.counts_now()
    }

    /// Tokens made so far by all streams, delivered or not, each counted once.
    pub fn tokens_generated(&self) -> u64 {
        self.counts().tokens_generated
    }

    /// Waits until the counts are as wanted; they are looked at after every tick and call. Give it
    /// a time limit.
    pub async fn wait_for(&self, is_wanted: impl FnMut(&EngineCounts) -> bool) -> EngineCounts {
        let mut counts = self.engine.counts.subscribe();
        match counts.wait_for(is_wanted).await {
            Ok(counts) => *counts,
            // The sender lives in `self`, so the wait cannot end with an error.
            Err(_) => self.counts(),
        }
    }

    /// Waits until the engine has ended, by a failure, a kill or a drain.
    pub async fn ended(&self) {
        self.engine.ended.cancelled().await;
    }

    /// Changes the speed of one stream that runs alone, from the next tick on.
    pub fn set_tokens_per_second(&self, tokens_per_second: f64) {
        self.engine.change(|scheduler| scheduler.set_tokens_per_second(tokens_per_second));
    }

    /// The weights label of the tokens made now.
    pub fn weights_label(&self) -> String {
        lock(&self.engine.scheduler).label().to_string()
    }

    /// Sets the weights label, which may be a wrong or an unreadable one, as somebody does who has
    /// pushed whole weights.
    pub fn set_weights_label(&self, label: &str) {
        self.engine.change(|scheduler| {
            scheduler.set_hollow(false);
            scheduler.set_label(label);
        });
    }

    /// Acknowledges new labels that come over HTTP without taking them over.
    pub fn set_ignores_labels(&self, ignores_labels: bool) {
        lock(&self.engine.faults).ignores_labels = ignores_labels;
    }

    /// Fails to load weights whose place begins with `beginning`; with an empty one, all.
    pub fn set_unreadable_weights(&self, beginning: Option<&str>) {
        lock(&self.engine.faults).unreadable_weights = beginning.map(str::to_owned);
    }

    /// Pauses as the control route does, without waiting for running streams.
    pub fn pause(&self, mode: PauseMode) {
        self.engine.change(|scheduler| scheduler.pause(mode));
    }

    /// Goes on after a pause.
    pub fn resume(&self) {
        self.engine.change(Scheduler::resume);
    }

    /// Counts and answers aborts, and does not abort.
    pub fn set_ignores_aborts(&self, ignores_aborts: bool) {
        self.engine.change(|scheduler| scheduler.set_ignores_aborts(ignores_aborts));
    }

    /// Ends streams without their `[DONE]` line.
    pub fn set_omits_done(&self, omits_done: bool) {
        lock(&self.engine.faults).ends.omits_done = omits_done;
    }

    /// Leaves the connections of streams open after their last line.
    pub fn set_leaves_open(&self, leaves_open: bool) {
        lock(&self.engine.faults).ends.leaves_open = leaves_open;
    }

    /// Ends all streams with an error event; the engine lives and takes new calls.
    pub fn fail_streams(&self) {
        self.engine.change(Scheduler::fail_streams);
    }

    /// Closes the connections of all streams, without a finish; the engine lives and takes new
    /// calls.
    pub fn break_streams(&self) {
        self.engine.change(Scheduler::break_streams);
    }

    /// Answers the next `calls` generation calls with this HTTP status, 503 for an impossible one.
    pub fn fail_next(&self, calls: u32, status: u16) {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        lock(&self.engine.faults).failing_calls = Some((calls, status));
    }

    /// Makes no token and ends no stream, while health stays good and calls are taken.
    pub fn set_hung(&self, is_hung: bool) {
        self.engine.change(|scheduler| scheduler.set_hung(is_hung));
    }

    /// Loses the node: when this returns, the port refuses, every connection is reset, nothing
    /// answers and no token is made any more. There is no way back.
    pub fn kill(&self) {
        self.engine.kill();
    }

    /// The engine core dies: streams end with the error event and `[DONE]`, calls without a stream
    /// get a bare 500, health is 503 at once; half a second later the server is gone.
    pub fn fail_core(&self) {
        fail_core(&self.engine);
    }

    /// What SIGTERM does with a drain limit: running streams go on, new calls are aborted without
    /// a token, health stays good; idle, the server ends. Streams that outlive the limit get
    /// nothing more and are left open, health is 503, connections are refused, as recorded.
    pub fn begin_drain(&self, limit: Duration) {
        self.engine.change(Scheduler::drain);
        self.engine.runtime.spawn(finish_drain(self.clone(), limit));
    }
}

/// See [`EngineHandle::fail_core`].
pub(super) fn fail_core(engine: &Arc<Engine>) {
    engine.change(Scheduler::kill_core);
    let engine = engine.clone();
    engine.runtime.clone().spawn(async move {
        sleep(EXIT_DELAY).await;
        engine.kill();
    });
}

async fn finish_drain(handle: EngineHandle, limit: Duration) {
    let engine = &handle.engine;
    if timeout(limit, handle.wait_for(EngineCounts::is_idle)).await.is_err() {
        engine.change(Scheduler::lose_core);
        sleep(REFUSE_DELAY).await;
        engine.server.refuse();
        handle.wait_for(EngineCounts::is_idle).await;
    }
    sleep(EXIT_DELAY).await;
    engine.kill();
}
