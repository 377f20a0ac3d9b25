//! The drain under way: why, until when, what leaves, and what it came to.

use std::time::Duration;

use ebbtide_core::drain::{DrainPlan, DrainWindow, plan_drain};
use ebbtide_core::ids::UnitId;
use ebbtide_core::notice::NoticeKind;
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::command::{DrainBehind, HandBack, HandBackCause};
use ebbtide_queue::control::{DrainOutcome, DrainReason};
use tokio::time::Instant;

use super::key::DrainKey;
use super::others::{OthersHold, OthersSeen};
use super::steps;
use crate::ledger::{AgentCounts, Leave};
use crate::marks::NodeEvent;
use crate::shared::Shared;

mod report;

pub use report::DrainReport;

/// Time that a drain has to hand back, however close a deadline it is given: an engine pod that is
/// deleted by force leaves none, and yet the agent lives on.
const HAND_BACK_CHANCE: Duration = Duration::from_secs(2);

/// A drain that should be under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Want {
    pub(super) reason: DrainReason,
    /// The notice of this node, if one is behind it.
    pub(super) kind: Option<NoticeKind>,
    pub(super) deadline: Instant,
    /// Whether this node goes, not only another one of its replica.
    pub(super) goes: bool,
}

impl Want {
    /// For a notice that this node has.
    pub(super) fn for_notice(kind: NoticeKind, deadline: Instant) -> Self {
        let reason = match kind {
            NoticeKind::SpotTerminate | NoticeKind::SpotStop | NoticeKind::SpotHibernate => {
                DrainReason::Notice
            }
            NoticeKind::AsgTermination => DrainReason::Lifecycle,
            NoticeKind::Maintenance | NoticeKind::Retirement => DrainReason::Maintenance,
            NoticeKind::Rebalance => DrainReason::Rebalance,
            NoticeKind::Foreign | NoticeKind::EngineDeleted => DrainReason::Foreign,
        };
        // The node of an engine pod that is deleted may stay.
        let goes = kind != NoticeKind::EngineDeleted;
        Self { reason, kind: Some(kind), deadline, goes }
    }

    /// This drain, together with one that others ask for: the earlier deadline holds, a notice is
    /// the stronger reason, and a rehearsal is the weaker one. Where others have a reason of their
    /// own, the end of an engine pod is its consequence.
    pub(super) fn joined_with(self, asked: Self) -> Self {
        let is_stronger = self.reason == DrainReason::Notice || asked.reason == DrainReason::Drill;
        let reason = if is_stronger { self.reason } else { asked.reason };
        let is_cause = |kind: &NoticeKind| {
            *kind != NoticeKind::EngineDeleted || reason == DrainReason::Foreign
        };
        let kind = self.kind.filter(is_cause);
        let goes = self.goes || asked.goes;
        Self { reason, kind, deadline: self.deadline.min(asked.deadline), goes }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct RunningDrain {
    want: Want,
    /// The request that it is part of, as soon as that is known.
    request_id: Option<String>,
    /// Its deadline on the server's clock, as soon as that is known.
    deadline_at: Option<UnixMillis>,
    begun: Instant,
    /// When it was given its deadline.
    hastened_at: Instant,
    next_plan: Instant,
    /// Whether there was a plan before.
    is_planned: bool,
    /// Whether it was reported.
    is_reported: bool,
    drained_at: Option<Instant>,
    /// Whether others, here or on other nodes, were seen to hold units, and since when not.
    others: OthersSeen,
    units_held: usize,
    counts_before: AgentCounts,
}

impl RunningDrain {
    pub(super) fn begin(want: Want, key: &DrainKey, shared: &Shared, now: Instant) -> Self {
        let (units_held, counts_before) = (shared.held(), shared.counts());
        let remaining_ms = want.deadline.saturating_duration_since(now).as_millis() as u64;
        tracing::warn!(
            reason = want.reason.as_str(),
            remaining_ms,
            units = units_held,
            "drain begins"
        );
        Self {
            want,
            request_id: key.request_id().map(str::to_owned),
            deadline_at: key.on_server_clock(want.deadline),
            begun: now,
            hastened_at: now,
            next_plan: now,
            is_planned: false,
            is_reported: false,
            drained_at: None,
            others: OthersSeen::Idle,
            units_held,
            counts_before,
        }
    }

    /// Takes in what is wanted now: the deadline only becomes earlier.
    pub(super) fn tighten(&mut self, want: Want, key: &DrainKey, now: Instant) {
        if key.request_id().is_some() && key.request_id() != self.request_id() {
            self.request_id = key.request_id().map(str::to_owned);
        }
        if want.deadline < self.want.deadline {
            (self.hastened_at, self.next_plan) = (now, now);
            self.deadline_at = None;
        }
        self.request_id = self.request_id.take().or_else(|| key.request_id().map(str::to_owned));
        let goes = want.goes || self.want.goes;
        self.want = Want { deadline: want.deadline.min(self.want.deadline), goes, ..want };
        let deadline = self.want.deadline;
        self.deadline_at = self.deadline_at.or_else(|| key.on_server_clock(deadline));
    }

    /// Names the request that it is part of, once that is known.
    pub(super) fn request_id(&self) -> Option<&str> {
        self.request_id.as_deref()
    }

    /// The node belongs to another replica by now: the drain goes on under a request of that one.
    pub(super) fn forget_request(&mut self) {
        self.request_id = None;
    }

    /// Whether the key asks for another drain by now: this one was taken back between two looks.
    pub(super) fn is_superseded(&self, key: &DrainKey) -> bool {
        let (own, asked) = (self.request_id.as_deref(), key.request_id());
        own.is_some() && asked.is_some() && own != asked
    }

    pub(super) fn reason(&self) -> DrainReason {
        self.want.reason
    }

    /// What units are handed back for.
    pub(super) fn why(&self) -> HandBack {
        let cause = match self.want.reason {
            DrainReason::Notice => HandBackCause::Notice,
            _ => HandBackCause::Drain,
        };
        let reason = self.reason_word();
        let drain = self.deadline_at.map(|deadline| DrainBehind { reason, deadline });
        HandBack { cause, drain }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.want.deadline
    }

    /// From when on what is still held counts as left. A rehearsal is measured by its deadline.
    fn overdue_at(&self) -> Instant {
        let chance = self.hastened_at + HAND_BACK_CHANCE;
        if self.is_rehearsal() { self.want.deadline } else { self.want.deadline.max(chance) }
    }

    pub(super) fn begun(&self) -> Instant {
        self.begun
    }

    pub(super) fn is_drained(&self) -> bool {
        self.drained_at.is_some()
    }

    pub(super) fn is_rehearsal(&self) -> bool {
        self.want.reason == DrainReason::Drill
    }

    /// Since when the node stands idle although it stays: another node of its replica goes.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let is_survivor = !self.want.goes && !self.is_rehearsal();
        self.drained_at.filter(|_| is_survivor)
    }

    /// Until when everything that can wait has to wait for what matters more.
    pub(super) fn cut_off(&self, reserve: Duration) -> Instant {
        self.want.deadline.checked_sub(reserve).unwrap_or(self.begun).max(self.begun)
    }

    pub(super) fn reason_word(&self) -> &'static str {
        self.want.kind.map_or(self.want.reason.as_str(), NoticeKind::as_str)
    }

    /// What the node is to be marked with, if it is: a rehearsal marks nothing, of a replica only
    /// the node that goes is marked, and the end of an engine pod is not that of its node.
    pub(super) fn mark(&self) -> Option<&'static str> {
        (self.want.goes && !self.is_rehearsal()).then(|| self.reason_word())
    }

    /// Whether its deadline is the end of the node: AWS takes it then. Others leave it alone until
    /// nothing is held any more.
    fn ends_node(&self) -> bool {
        let is_of_aws = matches!(
            self.want.reason,
            DrainReason::Notice | DrainReason::Maintenance | DrainReason::Lifecycle
        );
        self.want.goes && is_of_aws
    }

    /// Whether the pods of the node are to leave: where it is marked, unless another handler
    /// empties it, by rules of its own that may be more patient than ours.
    pub(super) fn evicts(&self) -> bool {
        self.mark().is_some() && self.want.reason != DrainReason::Foreign
    }

    /// Whether sizing asked for it.
    pub(super) fn is_sizing(&self) -> bool {
        matches!(self.want.reason, DrainReason::ScaleIn | DrainReason::Swap)
    }

    /// What an operator is told.
    pub(super) fn event(&self) -> NodeEvent {
        let seconds = (self.want.deadline - self.begun).as_secs();
        NodeEvent {
            reason: "EbbtideDrain",
            message: format!(
                "draining ({}): {} units held, {seconds} s left",
                self.reason_word(),
                self.units_held
            ),
            is_warning: self.want.kind.is_some(),
        }
    }

    /// Plans over the units of engines and of custom workers, and lets go what will not finish in
    /// time, the longest first. Custom workers may send their tail, up to deadline − reserve.
    pub(super) fn hand_back(&mut self, shared: &Shared, now: Instant) {
        if self.is_drained() || now < self.next_plan {
            return;
        }
        let terms = shared.config.drain;
        let remaining = self.want.deadline.saturating_duration_since(now);
        let window = DrainWindow { remaining, reserve: terms.reserve };
        let leave = shared.leave(self.why(), now);
        let cut_off = self.cut_off(terms.reserve);
        let mut units = shared.workers.workers().in_flight(now);
        let mut ledger = shared.desk.ledger();
        units.extend(ledger.in_flight(now));
        let plan = plan_drain(&units, ledger.lengths(), window);
        let leaving: Vec<&UnitId> = plan.handed_back().map(|decision| &decision.unit).collect();
        let left = ledger.leave(leaving.iter().copied(), leave, now);
        drop(ledger);
        if left > 0 {
            shared.desk.nudge();
        }
        self.release(shared, &plan, cut_off, now);
        steps::log(&plan, !std::mem::replace(&mut self.is_planned, true), remaining);
        let again = now + shared.config.pace.replan_every;
        self.next_plan = if cut_off > now { again.min(cut_off) } else { again };
    }

    /// Tells custom workers what the plan means for their units.
    fn release(&self, shared: &Shared, plan: &DrainPlan, cut_off: Instant, now: Instant) {
        let leave = shared.leave_workers(self.why(), now);
        let leave = Leave { write_by: leave.write_by.min(cut_off), ..leave };
        shared.workers.change(|workers| {
            workers.hasten(cut_off);
            workers.keep(plan.kept().map(|decision| &decision.unit), cut_off);
            workers.release(plan.handed_back().map(|decision| &decision.unit), leave);
        });
    }

    /// Looks how far it is; gives the report when it has just become clear what it came to, for
    /// the other nodes of the replica as well.
    ///
    /// `waits`: for something beside the units, such as the trainer's checkpoint. `here`: what
    /// direct workers of this node hold, `others`: what the other nodes do.
    pub(super) fn note_progress(
        &mut self,
        shared: &Shared,
        waits: bool,
        (here, others): (OthersHold, OthersHold),
        now: Instant,
    ) -> Option<DrainReport> {
        self.others = self.others.then(here.and(others), now);
        let is_over = now >= self.overdue_at();
        // From then on only the end of their leases is left for units of direct workers.
        let waits = waits || !(here.is_nothing() || is_over);
        if !self.is_drained() && shared.has_let_go() && !waits {
            self.drained_at = Some(now);
        }
        if self.is_drained() && here.and(others).is_nothing() {
            return self.close(shared, DrainOutcome::Drained, [0; 2], now);
        }
        let left = [here.units, others.units];
        is_over.then(|| self.close(shared, DrainOutcome::Overdue, left, now))?
    }

    /// It was taken back; gives the report unless there was one.
    pub(super) fn cancel(&mut self, shared: &Shared, now: Instant) -> Option<DrainReport> {
        tracing::info!(reason = self.reason_word(), "drain taken back");
        self.close(shared, DrainOutcome::Cancelled, [0; 2], now)
    }

    /// What it came to; told once. Units are left to direct workers and to the other nodes of the
    /// replica.
    fn close(
        &mut self,
        shared: &Shared,
        outcome: DrainOutcome,
        [left_directly, left_elsewhere]: [u64; 2],
        now: Instant,
    ) -> Option<DrainReport> {
        if std::mem::replace(&mut self.is_reported, true) {
            return None;
        }
        let (counts, before) = (shared.counts(), &self.counts_before);
        let last_hand_back = shared.last_hand_back().filter(|at| *at >= self.begun);
        let last_hand_back = last_hand_back.max(self.others.done_at());
        let left_here = shared.held() as u64 + left_directly;
        let units_left = usize::try_from(left_here + left_elsewhere).unwrap_or(usize::MAX);
        let is_overdue = outcome == DrainOutcome::Overdue;
        let report = DrainReport {
            reason: self.want.reason,
            kind: self.want.kind,
            outcome,
            lead: self.want.deadline.saturating_duration_since(self.begun),
            units_held: self.units_held,
            units_completed: counts.units_completed - before.units_completed,
            units_handed_back: counts.handed_back_total() - before.handed_back_total(),
            units_left: if is_overdue { units_left } else { 0 },
            tokens_preserved: counts.tokens_handed_back - before.tokens_handed_back,
            tokens_wasted: counts.tokens_dropped - before.tokens_dropped,
            last_hand_back: last_hand_back.map(|at| at - self.begun),
            duration: now - self.begun,
        };
        // Each agent counts what its own node has lost.
        if is_overdue && self.ends_node() {
            shared.metrics.units_lost.inc_by(left_here);
        }
        report.tell(self.reason_word(), shared);
        Some(report)
    }

    /// When it has to be looked at next; never when it is over.
    pub(super) fn next_due(&self) -> Option<Instant> {
        match (self.is_drained(), self.is_reported) {
            (false, _) => Some(self.next_plan),
            (true, false) => Some(self.overdue_at()),
            (true, true) => None,
        }
    }
}
