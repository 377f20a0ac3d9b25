//! The drain under way: why, until when, what leaves, and what it came to.

use std::time::Duration;

use ebbtide_core::drain::{DrainPlan, DrainWindow, plan_drain};
use ebbtide_core::ids::UnitId;
use ebbtide_core::notice::NoticeKind;
use ebbtide_queue::command::HandBackCause;
use ebbtide_queue::control::DrainReason;
use tokio::time::Instant;

use super::word_of;
use crate::ledger::AgentCounts;
use crate::marks::NodeEvent;
use crate::shared::Shared;

/// A drain that should be under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Want {
    pub(super) reason: DrainReason,
    /// The notice of this node, if one is behind it.
    pub(super) kind: Option<NoticeKind>,
    pub(super) deadline: Instant,
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
        };
        Self { reason, kind: Some(kind), deadline }
    }

    /// This drain, together with one that others ask for: the earlier deadline holds, and a notice
    /// is the stronger reason.
    pub(super) fn joined_with(self, asked: Self) -> Self {
        let is_notice = self.reason == DrainReason::Notice;
        let reason = if is_notice { self.reason } else { asked.reason };
        Self { reason, deadline: self.deadline.min(asked.deadline), ..self }
    }
}

/// What a drain came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainReport {
    /// Why the node was drained.
    pub reason: DrainReason,
    /// The notice behind it, if this node had one.
    pub kind: Option<NoticeKind>,
    /// Time from its beginning to its deadline.
    pub lead: Duration,
    /// Units held when it began.
    pub units_held: usize,
    /// Units that finished meanwhile.
    pub units_completed: u64,
    /// Units handed back meanwhile.
    pub units_handed_back: u64,
    /// Time from its beginning until nothing was held and no stream was open.
    pub duration: Duration,
}

/// See the module.
#[derive(Debug)]
pub(super) struct RunningDrain {
    want: Want,
    begun: Instant,
    next_plan: Instant,
    is_drained: bool,
    is_overdue: bool,
    units_held: usize,
    counts_before: AgentCounts,
    /// Whether the node itself goes, not only another one of its replica.
    marks_node: bool,
}

impl RunningDrain {
    pub(super) fn begin(want: Want, shared: &Shared, now: Instant) -> Self {
        let ledger = shared.desk.ledger();
        let (units_held, counts_before) = (ledger.held(), ledger.counts());
        drop(ledger);
        let remaining_ms = want.deadline.saturating_duration_since(now).as_millis() as u64;
        tracing::warn!(
            reason = word_of(want.reason),
            remaining_ms,
            units = units_held,
            "drain begins"
        );
        let is_single = shared.config.replica.as_str() == shared.config.node().as_str();
        let goes_whole = !matches!(want.reason, DrainReason::Notice | DrainReason::Rebalance);
        Self {
            want,
            begun: now,
            next_plan: now,
            is_drained: false,
            is_overdue: false,
            units_held,
            counts_before,
            marks_node: is_single || goes_whole,
        }
    }

    /// Takes in what is wanted now: the deadline only becomes earlier.
    pub(super) fn tighten(&mut self, want: Want, now: Instant) {
        if want.deadline < self.want.deadline {
            self.next_plan = now;
        }
        self.want = Want { deadline: want.deadline.min(self.want.deadline), ..want };
    }

    pub(super) fn cause(&self) -> HandBackCause {
        match self.want.reason {
            DrainReason::Notice => HandBackCause::Notice,
            _ => HandBackCause::Drain,
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.want.deadline
    }

    pub(super) fn is_drained(&self) -> bool {
        self.is_drained
    }

    pub(super) fn reason_word(&self) -> &'static str {
        self.want.kind.map_or(word_of(self.want.reason), NoticeKind::as_str)
    }

    /// What the node is to be marked with, if it is: a rehearsal marks nothing, and of a replica
    /// only the node that goes is marked.
    pub(super) fn mark(&self) -> Option<&'static str> {
        let is_marked = self.want.kind.is_some() || self.marks_node;
        (is_marked && self.want.reason != DrainReason::Drill).then(|| self.reason_word())
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

    /// Plans, and lets go what will not finish in time, the longest first.
    pub(super) fn hand_back(&mut self, shared: &Shared, now: Instant) {
        if self.is_drained || now < self.next_plan {
            return;
        }
        let terms = shared.config.drain;
        let remaining = self.want.deadline.saturating_duration_since(now);
        let window = DrainWindow { remaining, reserve: terms.reserve };
        let leave = shared.leave(self.cause(), now);
        let mut ledger = shared.desk.ledger();
        let plan = plan_drain(&ledger.in_flight(now), ledger.lengths(), window);
        let leaving: Vec<&UnitId> = plan.handed_back().map(|decision| &decision.unit).collect();
        let left = ledger.leave(leaving.into_iter(), leave, now);
        drop(ledger);
        if left > 0 {
            shared.desk.nudge();
            log_plan(&plan, left, remaining);
        }
        let cut_off = self.want.deadline.checked_sub(terms.reserve).unwrap_or(now);
        let again = now + shared.config.pace.replan_every;
        self.next_plan = if cut_off > now { again.min(cut_off) } else { again };
    }

    /// Looks whether the node is empty; gives the report when it has just become so.
    pub(super) fn note_progress(&mut self, shared: &Shared, now: Instant) -> Option<DrainReport> {
        if self.is_drained {
            return None;
        }
        if !shared.is_empty() {
            self.note_overdue(shared, now);
            return None;
        }
        self.is_drained = true;
        let counts = shared.desk.ledger().counts();
        let before = &self.counts_before;
        let report = DrainReport {
            reason: self.want.reason,
            kind: self.want.kind,
            lead: self.want.deadline.saturating_duration_since(self.begun),
            units_held: self.units_held,
            units_completed: counts.units_completed - before.units_completed,
            units_handed_back: counts.handed_back_total() - before.handed_back_total(),
            duration: now - self.begun,
        };
        shared.metrics.drain_duration.observe(report.duration.as_secs_f64());
        tracing::info!(
            reason = self.reason_word(),
            completed = report.units_completed,
            handed_back = report.units_handed_back,
            duration_ms = report.duration.as_millis() as u64,
            "drained"
        );
        Some(report)
    }

    /// The deadline has passed and something is still held: only lease expiry is left for it.
    fn note_overdue(&mut self, shared: &Shared, now: Instant) {
        if self.is_overdue || now < self.want.deadline {
            return;
        }
        self.is_overdue = true;
        let held = shared.desk.ledger().held();
        shared.metrics.units_lost.inc_by(held as u64);
        if held > 0 {
            tracing::error!(
                units = held,
                "deadline passed with units held, their leases will expire"
            );
        }
    }

    /// When it has to be looked at next; never when it is over.
    pub(super) fn next_due(&self) -> Option<Instant> {
        (!self.is_drained).then_some(self.next_plan)
    }
}

fn log_plan(plan: &DrainPlan, left: usize, remaining: Duration) {
    let longest = plan.handed_back().next().map(|decision| decision.tokens_left);
    tracing::info!(
        handed_back = left,
        kept = plan.kept().count(),
        longest_tokens_left = longest,
        remaining_ms = remaining.as_millis() as u64,
        "drain plan"
    );
}
