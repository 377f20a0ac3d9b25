//! Flow B, interruption: notice → lease gate closed → hand back what will not finish in time,
//! let the rest finish → report drained; beside it the Kubernetes node is marked.
//!
//! One loop: wait for an [`Event`], take it in, then [`Flow::steer`] compares what should be with
//! what is. Steering is idempotent, so a repeated notice, a restart or a lost reply needs no case
//! of its own. The gate comes first, synchronously. The queue and the Kubernetes API are called in
//! lanes of their own: nothing here waits for either, and neither waits for the other.

mod checkpoint;
mod closing;
mod direct;
mod drain;
mod evictions;
mod foreign;
mod key;
mod node;
mod notices;
mod others;
mod pods;
mod requests;
mod steps;
mod telling;
mod turn;
mod upkeep;

use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::time::UnixMillis;
use ebbtide_queue::client::QueueError;
use ebbtide_queue::command::HandBackCause;
use ebbtide_queue::control::{DrainRecord, ReplicaView};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

pub use drain::DrainReport;

use crate::gate::ClosedFor;
use crate::imds::Sighting;
use crate::kubernetes::{Membership, NodePods, NodeSight};
use crate::marks::{MarkError, NodeMarks};
use crate::pulse::Loop;
use crate::shared::Shared;
use checkpoint::CheckpointLane;
use closing::ClosingLane;
use direct::DirectLane;
use drain::{RunningDrain, Want};
use evictions::{Evicted, Evictions};
use key::DrainKey;
use node::NodeLane;
use notices::Notices;
use requests::is_of_an_agent;

/// Longest time between two looks at everything, when nothing happens.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What is left of the time to exit, for the last report of the node.
const EXIT_RESERVE: Duration = Duration::from_secs(2);

/// Drain reports kept.
const REPORTS_KEPT: usize = 16;

/// What concerns the node's replica, as it was read at a moment.
#[derive(Debug, Clone)]
pub(crate) struct SeenView {
    pub(crate) view: Arc<ReplicaView>,
    pub(crate) at: Instant,
}

/// What the flow listens to.
pub(crate) struct Inputs {
    pub(crate) sightings: mpsc::Receiver<Sighting>,
    pub(crate) views: watch::Receiver<Option<SeenView>>,
    pub(crate) sights: watch::Receiver<NodeSight>,
    pub(crate) shutdown: CancellationToken,
}

/// What the Kubernetes lane acts through.
pub(crate) struct Kubernetes {
    pub(crate) marks: Arc<dyn NodeMarks>,
    pub(crate) pods: Arc<dyn NodePods>,
}

/// Everything that can happen.
enum Event {
    /// A metadata source was looked at.
    Sighted(Sighting),
    /// The control keys were read.
    Viewed(SeenView),
    /// The process is to end.
    ShutDown,
    /// Units or streams have changed.
    HoldingsChanged,
    /// Something is due.
    Due,
    /// The drain key was written, or not.
    KeyWritten(key::Call, Result<Option<DrainRecord>, QueueError>),
    /// The node or its pods have changed.
    NodeSeen(NodeSight),
    /// The node was marked or cleared, or not.
    NodeMarked(node::Part, Option<&'static str>, Result<(), MarkError>),
    /// A pod was made to leave, or not.
    Evicted(Evicted),
    /// The trainer was asked for a checkpoint, or not.
    CheckpointAsked(Result<UnixMillis, QueueError>),
    /// The queue has counted what the node holds, or not; what this agent held before.
    HeldCounted(usize, Result<u64, QueueError>),
    /// A closing report was kept, or not.
    ReportKept(Result<(), QueueError>),
    /// An operator was told, or not.
    Told,
}

/// Calls under way. Each ends in an event.
type Lanes = FuturesUnordered<BoxFuture<'static, Event>>;

/// Runs until the process may end: everything is handed back, or its time is over.
pub(crate) async fn run(shared: Arc<Shared>, kubernetes: Kubernetes, mut inputs: Inputs) {
    let mut flow = Flow::new(shared.clone(), kubernetes);
    let mut changes = shared.desk.subscribe();
    loop {
        shared.pulses.beat(Loop::Interruption, Instant::now());
        let due = flow.next_due(Instant::now());
        let event = tokio::select! {
            biased;
            Some(sighting) = inputs.sightings.recv() => Event::Sighted(sighting),
            () = inputs.shutdown.cancelled(), if flow.ending_by.is_none() => Event::ShutDown,
            Ok(()) = inputs.views.changed() => match inputs.views.borrow_and_update().clone() {
                Some(view) => Event::Viewed(view),
                None => continue,
            },
            Ok(()) = inputs.sights.changed() => {
                Event::NodeSeen(inputs.sights.borrow_and_update().clone())
            }
            Some(event) = flow.lanes.next() => event,
            Ok(()) = changes.changed() => Event::HoldingsChanged,
            () = sleep_until(due) => Event::Due,
        };
        let now = Instant::now();
        flow.take_in(event, now);
        flow.steer(now);
        if flow.may_end(now) {
            return;
        }
    }
}

/// The state of the flow.
struct Flow {
    shared: Arc<Shared>,
    notices: Notices,
    key: DrainKey,
    node: NodeLane,
    evictions: Evictions,
    /// The node and its pods, as last seen.
    sight: NodeSight,
    /// The replica that the node is part of by the labels of its engine's pod.
    labelled: Option<Membership>,
    drain: Option<RunningDrain>,
    checkpoint: CheckpointLane,
    direct: DirectLane,
    closing: ClosingLane,
    /// When the process ends at the latest, once it is to end.
    ending_by: Option<Instant>,
    lanes: Lanes,
}

impl Flow {
    fn new(shared: Arc<Shared>, kubernetes: Kubernetes) -> Self {
        let Kubernetes { marks, pods } = kubernetes;
        let terms = pods::eviction_terms(&shared);
        Self {
            evictions: Evictions::new(pods, terms, shared.metrics.evictions.clone()),
            sight: NodeSight::default(),
            labelled: None,
            notices: Notices::new(shared.config.drain),
            key: DrainKey::new(&shared.config),
            node: NodeLane::new(marks, shared.config.node().clone()),
            drain: None,
            checkpoint: CheckpointLane::new(),
            direct: DirectLane::new(),
            closing: ClosingLane::new(),
            ending_by: None,
            lanes: Lanes::new(),
            shared,
        }
    }

    /// Takes in what happened; decides nothing.
    fn take_in(&mut self, event: Event, now: Instant) {
        match event {
            Event::Sighted(sighting) => {
                let news = self.notices.see(sighting);
                self.tell_news(news, self.notices.lead_of(sighting.source));
            }
            Event::NodeSeen(sight) => self.see_node(sight, now),
            Event::Evicted(evicted) => self.evictions.take_answer(evicted, now),
            Event::Viewed(seen) => {
                self.key.take_view(&seen);
                self.checkpoint.take_view(&seen);
            }
            Event::ShutDown => {
                tracing::info!("shutting down, everything held is handed back");
                self.ending_by = Some(now + (crate::config::SHUTDOWN_LIMIT - EXIT_RESERVE));
            }
            Event::KeyWritten(call, answer) => self.key.take_answer(call, answer, now),
            Event::NodeMarked(part, reason, answer) => {
                if answer.is_err() {
                    self.shared.metrics.node_mark_failures.inc();
                }
                self.node.take_answer(part, reason, &answer, now);
            }
            Event::CheckpointAsked(answer) => self.checkpoint.take_answer(answer, now),
            Event::HeldCounted(own, answer) => {
                self.direct.take_answer(own, answer, &self.shared, now);
            }
            Event::ReportKept(answer) => self.closing.take_answer(answer, now),
            Event::HoldingsChanged | Event::Due | Event::Told => {}
        }
    }

    /// Brings everything to where it should be, in this order.
    fn steer(&mut self, now: Instant) {
        self.follow_membership(now);
        let want = self.wanted_after_all(now);
        self.steer_gate(want, now);
        self.steer_drain(want, now);
        self.hand_back(now);
        let goes = self.drain.as_ref().is_some_and(|drain| drain.mark().is_some());
        self.checkpoint.steer(goes, &self.shared, &self.lanes, now);
        self.direct.steer(self.drain.is_some(), &self.shared, &self.lanes, now);
        self.note_drained(now);
        self.closing.steer(&self.key, self.drain.as_ref(), &self.shared, &self.lanes, now);
        self.key.steer(&self.notices, self.drain.as_ref(), &self.shared, &self.lanes, now);
        if self.ending_by.is_none() {
            let reason = self.drain.as_ref().and_then(|drain| drain.mark());
            self.node.steer(reason, self.key.is_known(), &self.lanes, now);
            self.steer_evictions(now);
        }
        self.publish(now);
    }

    /// As [`Self::wanted`]. When nothing else is wanted any more, engine pods that a drain of ours
    /// has made to leave count like those of others: they are gone for work all the same.
    fn wanted_after_all(&mut self, now: Instant) -> Option<Want> {
        let want = self.wanted(now);
        if want.is_some() || self.drain.is_none() {
            return want;
        }
        self.evictions.forget();
        self.judge_sight(now);
        self.wanted(now)
    }

    /// The drain that should be under way: for a notice of this node, or as the key says.
    fn wanted(&self, now: Instant) -> Option<Want> {
        let asked = self.key.wanted();
        let own = self.key.own_want(&self.notices, self.drain.as_ref(), now);
        let Some(own) = own else { return asked };
        Some(match asked {
            Some(asked) => own.joined_with(asked),
            None => own,
        })
    }

    fn steer_gate(&self, want: Option<Want>, now: Instant) {
        self.shared.gate.set([
            (ClosedFor::KeysUnread, !self.key.is_known()),
            (ClosedFor::Drain, want.is_some()),
            (ClosedFor::Shutdown, self.ending_by.is_some()),
            (ClosedFor::Rebalance, self.notices.stops_leases(now)),
        ]);
    }

    /// Begins, tightens or ends the drain.
    fn steer_drain(&mut self, want: Option<Want>, now: Instant) {
        if self.drain.as_ref().is_some_and(|drain| drain.is_superseded(&self.key)) {
            self.cancel_drain(now);
        }
        match (&mut self.drain, want) {
            (None, None) => {}
            (None, Some(want)) => {
                let drain = RunningDrain::begin(want, &self.key, &self.shared, now);
                self.node.tell(drain.event(), &self.lanes);
                // The node that has a notice told it when it was seen: this one or another.
                let is_told = want.kind.is_some() || drain.request_id().is_some_and(is_of_an_agent);
                if !is_told && self.key.leads_replica() && !drain.is_rehearsal() {
                    let remaining = want.deadline.saturating_duration_since(now);
                    self.call_webhook(drain.reason_word(), Some(remaining));
                }
                self.drain = Some(drain);
            }
            (Some(drain), Some(want)) => drain.tighten(want, &self.key, now),
            (Some(_), None) => self.cancel_drain(now),
        }
    }

    fn cancel_drain(&mut self, now: Instant) {
        let report = self.drain.as_mut().and_then(|drain| drain.cancel(&self.shared, now));
        self.report(report);
        self.drain = None;
    }

    /// The queue lane: whatever will not finish in time leaves now.
    fn hand_back(&mut self, now: Instant) {
        if self.ending_by.is_some() {
            let why = self.drain.as_ref().map(RunningDrain::why);
            let why = why.unwrap_or(HandBackCause::AgentRestart.into());
            let leave = self.shared.leave(why, now);
            if self.shared.desk.ledger().leave_all(leave, now) > 0 {
                self.shared.desk.nudge();
            }
            let leave = self.shared.leave_workers(why, now);
            self.shared.workers.change(|workers| workers.release_all(leave));
        } else if let Some(drain) = &mut self.drain {
            drain.hand_back(&self.shared, now);
        }
    }

    fn note_drained(&mut self, now: Instant) {
        let serves = self.drain.as_ref().is_some_and(|drain| self.may_serve(drain));
        let Some(drain) = &mut self.drain else { return };
        let cut_off = drain.cut_off(self.shared.config.drain.reserve);
        let waits = now < cut_off && (self.checkpoint.is_awaited() || serves);
        let (here, others) = (self.direct.hold(), self.key.others_hold());
        let report = drain.note_progress(&self.shared, waits, (here, others), now);
        self.report(report);
    }

    /// Keeps what the drain came to: here, and for operators in Redis.
    fn report(&mut self, report: Option<DrainReport>) {
        let Some((report, drain)) = report.zip(self.drain.as_ref()) else { return };
        self.closing.add(report.clone(), drain);
        self.shared.standing.send_modify(|standing| {
            if standing.reports.len() == REPORTS_KEPT {
                standing.reports.remove(0);
            }
            standing.reports.push(report);
        });
    }

    /// Shows the other loops where the node stands.
    fn publish(&self, now: Instant) {
        let notice = self.notices.strongest(now);
        let drain = self.drain.as_ref().map(|drain| self.standing_of(drain, now));
        let is_drained = drain.is_some_and(|drain| drain.is_drained);
        let drained_for = self.key.request_id().filter(|_| is_drained);
        self.shared.standing.send_if_modified(|standing| {
            let is_known = standing.drained_for.as_deref() == drained_for;
            let is_new = standing.notice != notice || standing.drain != drain || !is_known;
            standing.notice = notice;
            standing.drain = drain;
            standing.drained_for = drained_for.map(str::to_owned);
            is_new
        });
    }

    /// Whether the process may end now.
    fn may_end(&self, now: Instant) -> bool {
        let Some(ending_by) = self.ending_by else { return false };
        let is_told = self.drain.is_none() || !self.key.has_call_to_make(self.drain.as_ref(), now);
        let is_told = is_told && !self.closing.has_more() && !self.awaits_count();
        now >= ending_by || (self.shared.is_empty() && is_told)
    }

    /// Whether it is still to be heard that nobody else on the node holds anything of the drain.
    fn awaits_count(&self) -> bool {
        self.drain.as_ref().is_some_and(|drain| !drain.is_drained()) && self.direct.is_awaited()
    }

    /// When something has to be looked at, whether or not anything happens.
    fn next_due(&self, now: Instant) -> Instant {
        // What a process that ends does not steer any more must not wake it either.
        let drain = self.drain.as_ref().and_then(RunningDrain::next_due);
        let steered = [drain, self.node.next_due(), self.evictions.next_due()];
        let steered = steered.into_iter().filter(|_| self.ending_by.is_none());
        [self.notices.next_change(now), self.key.next_due(), self.ending_by]
            .into_iter()
            .chain([self.closing.next_due(), self.checkpoint.next_due(), self.direct.next_due()])
            .chain(steered)
            .flatten()
            .fold(now + LOOK_EVERY, Instant::min)
    }
}
