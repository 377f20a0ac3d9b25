//! Emulated EC2 instance metadata service (IMDSv2) of one instance: real HTTP, scripted by handle.
//!
//! It answers as the documented service does: a session token from a `PUT` is needed for every
//! read, what is not planned is 404 with an XHTML body, times are UTC in whole seconds. Unlike the
//! real one it can be made to fail: see [`Fault`] and the other switches of [`ImdsHandle`].

mod fault;
mod resources;
mod service;
mod tokens;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;

use super::lock;
use super::server::Server;

pub use fault::{EVERY_PATH, Fault};
pub use resources::{InstanceIdentity, LifeCycle, SpotAction, path};

use fault::Faults;
use resources::{NoticeTime, Resources};
use service::RequestCounts;
use tokens::Tokens;

/// A running emulator; it stops, and its connections are reset, when this is dropped.
pub struct ImdsEmulator {
    handle: ImdsHandle,
}

/// Scripts a running [`ImdsEmulator`]; clones steer the same one.
#[derive(Clone)]
pub struct ImdsHandle {
    imds: Arc<Imds>,
}

/// Everything the emulator holds; requests and handles share it.
struct Imds {
    server: Server,
    resources: Mutex<Resources>,
    tokens: Mutex<Tokens>,
    faults: Mutex<Faults>,
    counts: watch::Sender<RequestCounts>,
}

impl ImdsEmulator {
    /// Starts on a free port of 127.0.0.1, with nothing planned. Call inside a tokio runtime.
    ///
    /// # Errors
    /// When no port can be bound.
    pub fn start(identity: InstanceIdentity) -> io::Result<Self> {
        let imds = Arc::new(Imds {
            server: Server::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?,
            resources: Mutex::new(Resources::new(identity)),
            tokens: Mutex::default(),
            faults: Mutex::default(),
            counts: watch::Sender::default(),
        });
        let handle = ImdsHandle { imds };
        handle.come_back()?;
        Ok(Self { handle })
    }

    /// What to give as `AWS_EC2_METADATA_SERVICE_ENDPOINT`, without a slash at the end.
    pub fn base_url(&self) -> String {
        self.handle.base_url()
    }

    /// A handle to script this emulator.
    pub fn handle(&self) -> ImdsHandle {
        self.handle.clone()
    }
}

impl Drop for ImdsEmulator {
    fn drop(&mut self) {
        self.handle.refuse();
    }
}

impl ImdsHandle {
    /// What to give as `AWS_EC2_METADATA_SERVICE_ENDPOINT`, without a slash at the end.
    pub fn base_url(&self) -> String {
        self.imds.server.base_url()
    }

    /// Announces a Spot interruption. Returns the time as clients read it: cut to whole seconds,
    /// as the real service has it.
    pub fn announce_spot(&self, action: SpotAction, time: Timestamp) -> Timestamp {
        let time = whole_seconds(time);
        lock(&self.imds.resources).spot = Some((action, NoticeTime::At(time)));
        time
    }

    /// Announces a Spot interruption whose time moves: every read answers its own time plus `lead`.
    pub fn announce_moving_spot(&self, action: SpotAction, lead: Duration) {
        lock(&self.imds.resources).spot = Some((action, NoticeTime::Moving(lead)));
    }

    /// Takes a Spot interruption back: reads are 404 again.
    pub fn withdraw_spot(&self) {
        lock(&self.imds.resources).spot = None;
    }

    /// Gives a rebalance recommendation, noticed at `time` (cut to whole seconds).
    pub fn recommend_rebalance(&self, time: Timestamp) {
        lock(&self.imds.resources).rebalance = Some(NoticeTime::At(whole_seconds(time)));
    }

    /// Takes a rebalance recommendation back.
    pub fn withdraw_rebalance(&self) {
        lock(&self.imds.resources).rebalance = None;
    }

    /// Sets the Auto Scaling target state, such as `InService` or `Terminated`.
    pub fn set_target_lifecycle(&self, state: impl Into<String>) {
        lock(&self.imds.resources).target_lifecycle = Some(state.into());
    }

    /// Makes the target state absent (404), as for an instance never in a group.
    pub fn clear_target_lifecycle(&self) {
        lock(&self.imds.resources).target_lifecycle = None;
    }

    /// Sets the body of `events/maintenance/scheduled`, an array of events; `[]` is legal.
    pub fn set_maintenance(&self, events: serde_json::Value) {
        lock(&self.imds.resources).maintenance = Some(events);
    }

    /// Makes scheduled maintenance absent (404).
    pub fn clear_maintenance(&self) {
        lock(&self.imds.resources).maintenance = None;
    }

    /// Makes every request for `path` (see [`path`] and [`EVERY_PATH`]) fail until cleared. A
    /// fault of one path goes before one of every path.
    pub fn fault(&self, path: &str, fault: Fault) {
        lock(&self.imds.faults).set(path, fault, None);
    }

    /// Makes the next `times` requests for `path` fail.
    pub fn fault_times(&self, path: &str, fault: Fault, times: u32) {
        lock(&self.imds.faults).set(path, fault, Some(times));
    }

    /// Ends all faults; requests that hang meanwhile go on hanging.
    pub fn clear_faults(&self) {
        lock(&self.imds.faults).clear();
    }

    /// Lets tokens granted from now on expire after `lifetime`, whatever was asked and promised;
    /// none: as asked.
    pub fn override_token_lifetime(&self, lifetime: Option<Duration>) {
        lock(&self.imds.tokens).override_lifetime(lifetime);
    }

    /// Makes every token granted so far invalid.
    pub fn revoke_tokens(&self) {
        lock(&self.imds.tokens).revoke();
    }

    /// Stops listening and resets open connections, as when the service is unreachable.
    pub fn refuse(&self) {
        self.imds.server.cut();
    }

    /// Listens again, on the same port. Call inside a tokio runtime.
    ///
    /// # Errors
    /// When the port could not be kept meanwhile and somebody else has it.
    pub fn come_back(&self) -> io::Result<()> {
        self.imds.server.listen(service::router(self.imds.clone()))
    }

    /// Requests for `path` that arrived so far, failed ones included.
    pub fn requests(&self, path: &str) -> u64 {
        self.imds.counts.borrow().of(path)
    }

    /// Waits until at least `count` requests for `path` have arrived. Give it a time limit.
    pub async fn await_requests(&self, path: &str, count: u64) {
        let mut counts = self.imds.counts.subscribe();
        // The sender lives in `self`, so the wait cannot end with an error.
        let _ = counts.wait_for(|counts| counts.of(path) >= count).await;
    }
}

/// `time` without its fraction of a second, never later.
fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
mod tests;
