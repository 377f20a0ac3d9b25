//! A worker in a process of its own, which its parent kills, or stops for a while.
//!
//! The process is this test program once more, told by a variable to run only the "test" below.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ebbtide_core::ids::Holder;
use ebbtide_core::sample::Score;
use ebbtide_harness::{EVENT_LIMIT, Error, Program, until};
use ebbtide_queue::client::{LeaseTerms, WorkQueue};
use ebbtide_queue::command::{
    HandBackCause, ProgressLimits, Renewal, Stage, Then, UnitWrite, Waiting,
};
use ebbtide_queue::redis::RedisOptions;
use ebbtide_queue::reply::{Grant, WriteReply};

use super::load::{append, end, stored, write};
use crate::links::connect;
use crate::worlds::{holder, options, stop, tokens};

const VARIABLE: &str = "EBBTIDE_TEST_WORKER";
/// How long the worker's leases last.
pub const LEASE: Duration = Duration::from_secs(1);
/// Calls of the script.
pub const CALLS: u32 = 11;
/// Tokens of each response that the script makes.
pub const SCRIPT_TOKENS: u32 = 6;

/// What a worker is to do.
#[derive(Debug, Clone)]
pub struct Orders {
    pub url: String,
    pub run: String,
    pub name: String,
    /// The call of the script before which it waits; without one it works on and on.
    pub waits_before: Option<u32>,
    /// It goes on when this file is there.
    pub go_on: PathBuf,
}

impl Orders {
    /// Starts a process that follows them.
    pub fn start(&self) -> Result<Program, Error> {
        let waits_before = self.waits_before.map_or("never".to_owned(), |call| call.to_string());
        let go_on = self.go_on.display();
        let text = format!("{} {} {} {waits_before} {go_on}", self.url, self.run, self.name);
        let program = std::env::current_exe().expect("this program");
        Program::options("worker", program)
            .arguments(["kills::worker::process_for_the_other_tests", "--exact", "--nocapture"])
            .variable(VARIABLE, &text)
            .start()
    }

    #[allow(clippy::disallowed_methods, reason = "the parent test gives its orders this way")]
    fn of_this_process() -> Option<Self> {
        let text = std::env::var(VARIABLE).ok()?;
        let words: Vec<&str> = text.split(' ').collect();
        let [url, run, name, waits_before, go_on] = words[..] else { return None };
        Some(Self {
            url: url.to_owned(),
            run: run.to_owned(),
            name: name.to_owned(),
            waits_before: waits_before.parse().ok(),
            go_on: go_on.into(),
        })
    }
}

#[tokio::test]
async fn process_for_the_other_tests() {
    let Some(orders) = Orders::of_this_process() else { return };
    let options =
        RedisOptions { run: orders.run.parse().unwrap(), layout: None, ..options(&orders.url, 1) };
    let queue = connect(options).await.expect("connects");
    let mut worker = Worker { queue, holder: holder(&orders.name), calls: 0, orders };
    match worker.orders.waits_before {
        Some(_) => worker.follow_the_script().await,
        None => worker.work_on().await,
    }
    println!("done;");
    // It ends as all of them do.
    std::future::pending::<()>().await;
}

struct Worker {
    queue: WorkQueue,
    holder: Holder,
    calls: u32,
    orders: Orders,
}

impl Worker {
    /// Before each call.
    async fn boundary(&mut self) {
        if self.orders.waits_before == Some(self.calls) {
            println!("waits before call {};", self.calls);
            let go_on: &Path = &self.orders.go_on;
            until("the parent", EVENT_LIMIT, || async { go_on.exists().then_some(()) })
                .await
                .unwrap();
        }
        self.calls += 1;
    }

    async fn write(&mut self, grant: &Grant, from: u32, to: u32, then: Then) {
        self.boundary().await;
        let tail = if from < to { vec![tokens(from, to - from, 0)] } else { vec![] };
        let write = write(grant, tail, then);
        let reply = self.queue.write(&self.holder, vec![write]).await.remove(0).expect("a reply");
        self.tell(grant, to, reply);
    }

    /// For the parent, which reads it in the log.
    fn tell(&self, grant: &Grant, tokens: u32, reply: WriteReply) {
        println!("{reply:?} {} {tokens};", grant.unit);
    }

    /// Two units with everything that can become of a unit.
    async fn follow_the_script(&mut self) {
        let terms = LeaseTerms {
            stage: Stage::Generate,
            holder: &self.holder.clone(),
            ttl: LEASE,
            worker_version: Default::default(),
        };
        self.boundary().await;
        let grants = self.queue.lease(terms.holder, 2, LEASE, Default::default()).await;
        let grants = grants.expect("a lease").grants;
        let [first, second] = &grants[..] else { return };
        self.write(first, 0, 2, Then::Continue).await;
        self.write(first, 2, 4, Then::Continue).await;
        self.write(second, 0, 3, Then::Continue).await;
        self.write(second, 3, 4, Then::HandBack(HandBackCause::Drain.into())).await;
        self.boundary().await;
        let renewal = Renewal {
            unit: first.unit.clone(),
            fencing_token: first.fencing_token,
            ttl: LEASE,
            waiting: Waiting::Nothing,
        };
        let limits = ProgressLimits::default();
        let lost = self.queue.renew(terms.holder, vec![renewal], limits).await.expect("a reply");
        println!("{} renewed;", 1 - lost.len());
        self.boundary().await;
        let complete = write(first, vec![tokens(4, 2, 0)], Then::Complete(stop()));
        let (mut replies, leased) = self.queue.exchange(terms, vec![complete], 1).await;
        self.tell(first, SCRIPT_TOKENS, replies.remove(0).expect("a reply"));
        // A worker that was stopped meanwhile goes on with what it knows.
        let again = leased.grants.first().unwrap_or(second);
        self.write(again, 4, SCRIPT_TOKENS, Then::Complete(stop())).await;
        self.boundary().await;
        let scoring = self.queue.lease_to_score(terms.holder, 2, LEASE).await.expect("a lease");
        for response in &scoring.grants {
            let end = stored(response);
            self.write(response, end, end, Then::Score(score())).await;
        }
        self.boundary().await;
    }

    /// Leases and completes until it is killed.
    async fn work_on(&mut self) {
        loop {
            let leased = self.queue.lease(&self.holder, 4, LEASE, Default::default()).await;
            let grants = leased.expect("a lease").grants;
            if grants.is_empty() {
                let _ = tokio::time::timeout(
                    Duration::from_millis(50),
                    self.queue.woken(ebbtide_queue::client::Hint::Work),
                )
                .await;
            }
            for grant in &grants {
                for next in [append(grant), end(grant)] {
                    self.carry_out(next).await;
                }
            }
        }
    }

    async fn carry_out(&self, write: UnitWrite) {
        let reply = self.queue.write(&self.holder, vec![write]).await.remove(0);
        reply.expect("a reply");
    }
}

/// What scorers say.
pub fn score() -> Score {
    Score { value: 1.0, scorer_version: "rule/1".to_owned(), metadata: Vec::new() }
}
