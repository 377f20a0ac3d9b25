//! What an event asks for. Pure: who is concerned was looked up before, and what follows is carried
//! out elsewhere.
//!
//! Moments in messages are on AWS's clock, `now` is on the controller's; both are set by time
//! servers. Whatever they say, EC2 never leaves more than [`SPOT_LEAD_MAX`] after its notice.

use std::time::Duration;

use ebbtide_core::event::{Event, Happening, InterruptionAction, Maintenance, Transition};
use ebbtide_core::notice::SPOT_LEAD_MAX;
use ebbtide_core::policy::{DrainPolicy, Market, RebalanceAction};
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::control::DrainReason;

/// A notice this old was outlived: the instance has come back, or is gone for long.
const STALE_AFTER: Duration = Duration::from_secs(600);

/// A maintenance without an end counts for this long after its beginning.
const MAINTENANCE_COUNTS: Duration = Duration::from_hours(24);

/// Longest time that a message is put off: SQS hides one for 12 h at most.
const POSTPONE_MAX: Duration = Duration::from_hours(11);

/// What follows from an event for one instance of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Its replica is drained.
    Drain(DrainOrder),
    /// Nothing; the message is done with.
    Nothing(Idle),
    /// It is too early; the message is looked at again after this time.
    Postpone(Duration),
}

/// How a replica is to be drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DrainOrder {
    pub reason: DrainReason,
    /// Time left until the node is lost.
    pub remaining: Duration,
    /// Whether the node still lives, so that its agent may answer and its mark makes sense.
    pub node_lives: bool,
}

/// Why nothing follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Idle {
    /// The event asks for nothing.
    NothingToDo,
    /// The policy says so.
    IgnoredByPolicy,
    /// The agent stops leasing by itself.
    LeftToAgent,
    /// It is about a lifecycle hook of somebody else.
    OtherHook,
    /// Its time is over.
    Stale,
}

/// The node that an event is about, as far as the verdict depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Standing {
    /// Spot or on-demand, once its agent told.
    pub market: Option<Market>,
    /// Whether its replica drains already.
    pub drains: bool,
}

/// What follows from an event for an instance that belongs to the run.
pub(super) fn judge(
    event: &Event,
    standing: Standing,
    terms: &DrainPolicy,
    now: UnixMillis,
) -> Verdict {
    let sent_at = event.sent_at.unwrap_or(now);
    let age = now.since(sent_at);
    match &event.happening {
        Happening::SpotInterruption { action, .. }
        | Happening::ReservationInterruption { action, .. } => {
            judge_interruption(*action, sent_at, now)
        }
        Happening::Rebalance { .. } => judge_rebalance(terms, age),
        Happening::StateChange { state, .. } => {
            // Nothing can be handed back any more, but others of its replica wait for it. Whoever
            // drains it already has taken care of that.
            let is_news = state.is_leaving() && standing.market == Some(Market::Spot);
            match (is_news && !standing.drains, age > STALE_AFTER) {
                (false, _) => Verdict::Nothing(Idle::NothingToDo),
                (true, true) => Verdict::Nothing(Idle::Stale),
                (true, false) => Verdict::Drain(DrainOrder {
                    reason: DrainReason::Notice,
                    remaining: Duration::ZERO,
                    node_lives: false,
                }),
            }
        }
        Happening::Lifecycle(action) => match action.transition {
            Transition::Launching => Verdict::Nothing(Idle::NothingToDo),
            Transition::Terminating => {
                drain(DrainReason::Lifecycle, terms.asg_deadline.saturating_sub(age))
            }
        },
        Happening::Maintenance(maintenance) => judge_maintenance(maintenance, terms, now),
        Happening::TestNotification | Happening::OtherHealth => Verdict::Nothing(Idle::NothingToDo),
    }
}

fn drain(reason: DrainReason, remaining: Duration) -> Verdict {
    Verdict::Drain(DrainOrder { reason, remaining, node_lives: true })
}

fn judge_interruption(action: InterruptionAction, sent_at: UnixMillis, now: UnixMillis) -> Verdict {
    if now.since(sent_at) > STALE_AFTER {
        return Verdict::Nothing(Idle::Stale);
    }
    let remaining = match action {
        InterruptionAction::Terminate | InterruptionAction::Stop => {
            sent_at.plus(SPOT_LEAD_MAX).remaining(now).min(SPOT_LEAD_MAX)
        }
        InterruptionAction::Hibernate => Duration::ZERO,
    };
    drain(DrainReason::Notice, remaining)
}

fn judge_rebalance(terms: &DrainPolicy, age: Duration) -> Verdict {
    match terms.rebalance {
        RebalanceAction::Ignore => Verdict::Nothing(Idle::IgnoredByPolicy),
        RebalanceAction::StopLeases => Verdict::Nothing(Idle::LeftToAgent),
        RebalanceAction::Drain if age >= terms.rebalance_ttl => Verdict::Nothing(Idle::Stale),
        RebalanceAction::Drain => drain(DrainReason::Rebalance, terms.request_deadline),
    }
}

fn judge_maintenance(maintenance: &Maintenance, terms: &DrainPolicy, now: UnixMillis) -> Verdict {
    let starts_at = maintenance.starts_at;
    let ends_at = maintenance.ends_at.unwrap_or(starts_at.plus(MAINTENANCE_COUNTS));
    if ends_at.max(starts_at) <= now {
        return Verdict::Nothing(Idle::Stale);
    }
    let lead = starts_at.remaining(now);
    let leaves_now = maintenance.is_retirement && terms.leave_degraded;
    match lead.checked_sub(terms.maintenance_lead).filter(|early| !early.is_zero()) {
        Some(early) if !leaves_now => Verdict::Postpone(early.min(POSTPONE_MAX)),
        Some(_) => drain(DrainReason::Maintenance, lead.min(terms.request_deadline)),
        None => drain(DrainReason::Maintenance, lead),
    }
}

#[cfg(test)]
mod tests {
    use ebbtide_core::event::{LifecycleAction, MachineState};
    use ebbtide_core::observation::InstanceId;
    use ebbtide_core::policy::FleetPolicy;
    use proptest::prelude::*;

    use super::*;

    const NOW: UnixMillis = UnixMillis(1_000_000_000);
    const SPOT: Standing = Standing { market: Some(Market::Spot), drains: false };

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn terms(drain: &str) -> DrainPolicy {
        let text = format!(
            "apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {{name: run}}
spec:
  drain: {{{drain}}}
  trainer: {{groupsPerStep: 2, groupSize: 1}}
  rollout: {{minReplicas: 0, maxReplicas: 4, concurrencyPerReplica: 2, pools: [p]}}
  pools: [{{name: p, provider: local, market: spot, maxNodes: 8}}]
"
        );
        FleetPolicy::parse(&text, "test").expect("valid").drain.clone()
    }

    fn instance() -> InstanceId {
        InstanceId("i-0a".to_owned())
    }

    fn event(sent_at: Option<UnixMillis>, happening: Happening) -> Event {
        Event { id: "e".to_owned(), sent_at, happening }
    }

    fn spot(action: InterruptionAction, sent_at: Option<UnixMillis>) -> Event {
        event(sent_at, Happening::SpotInterruption { instance: instance(), action })
    }

    fn ago(age: u64) -> Option<UnixMillis> {
        Some(NOW.minus(seconds(age)))
    }

    fn verdict(event: &Event, drain: &str) -> Verdict {
        judge(event, SPOT, &terms(drain), NOW)
    }

    #[test]
    fn spot_notice_leaves_two_minutes_from_its_sending() {
        let terminate = InterruptionAction::Terminate;
        for (sent_at, left) in [(ago(0), 120), (ago(7), 113), (ago(120), 0), (ago(600), 0)] {
            let expected = drain(DrainReason::Notice, seconds(left));
            assert_eq!(verdict(&spot(terminate, sent_at), ""), expected, "{sent_at:?}");
        }
        let timeless = spot(InterruptionAction::Stop, None);
        assert_eq!(verdict(&timeless, ""), drain(DrainReason::Notice, seconds(120)));
        let hibernate = spot(InterruptionAction::Hibernate, ago(0));
        assert_eq!(verdict(&hibernate, ""), drain(DrainReason::Notice, Duration::ZERO));
        let outlived = spot(terminate, ago(601));
        assert_eq!(verdict(&outlived, ""), Verdict::Nothing(Idle::Stale));
    }

    #[test]
    fn clock_ahead_of_ours_never_gives_more_than_the_longest_lead() {
        let event = spot(InterruptionAction::Terminate, Some(NOW.plus(seconds(90))));
        assert_eq!(verdict(&event, ""), drain(DrainReason::Notice, SPOT_LEAD_MAX));
    }

    /// Case 21, the queue's part.
    #[test]
    fn rebalance_does_what_the_policy_says() {
        let event = |age| event(ago(age), Happening::Rebalance { instance: instance() });
        let judged = |age, drain| verdict(&event(age), drain);
        assert_eq!(judged(0, "rebalance: ignore"), Verdict::Nothing(Idle::IgnoredByPolicy));
        assert_eq!(judged(0, ""), Verdict::Nothing(Idle::LeftToAgent));
        let drains = "rebalance: drain, requestDeadline: 5m, rebalanceTtl: 10m";
        assert_eq!(judged(599, drains), drain(DrainReason::Rebalance, seconds(300)));
        assert_eq!(judged(600, drains), Verdict::Nothing(Idle::Stale));
    }

    #[test]
    fn lifecycle_action_leaves_what_the_policy_gives_it() {
        let event = |transition| {
            let action = LifecycleAction {
                instance: instance(),
                group: "g".to_owned(),
                hook: "h".to_owned(),
                token: None,
                transition,
            };
            event(ago(30), Happening::Lifecycle(action))
        };
        let terminating = verdict(&event(Transition::Terminating), "asgDeadline: 100s");
        assert_eq!(terminating, drain(DrainReason::Lifecycle, seconds(70)));
        let launching = verdict(&event(Transition::Launching), "");
        assert_eq!(launching, Verdict::Nothing(Idle::NothingToDo));
    }

    #[test]
    fn end_of_a_spot_node_that_nobody_announced_is_a_notice() {
        let judged = |state, standing| {
            let happening = Happening::StateChange { instance: instance(), state };
            judge(&event(ago(1), happening), standing, &terms(""), NOW)
        };
        let lost = Verdict::Drain(DrainOrder {
            reason: DrainReason::Notice,
            remaining: Duration::ZERO,
            node_lives: false,
        });
        let nothing = Verdict::Nothing(Idle::NothingToDo);
        assert_eq!(judged(MachineState::ShuttingDown, SPOT), lost);
        assert_eq!(judged(MachineState::Running, SPOT), nothing);
        let drains = Standing { drains: true, ..SPOT };
        assert_eq!(judged(MachineState::ShuttingDown, drains), nothing);
        let on_demand = Standing { market: Some(Market::OnDemand), ..SPOT };
        assert_eq!(judged(MachineState::Terminated, on_demand), nothing);
    }

    #[test]
    fn maintenance_is_left_alone_until_its_lead_time() {
        let judged = |starts_at: UnixMillis, ends_at, is_retirement, drain| {
            let instances = vec![instance()];
            let maintenance = Maintenance { starts_at, ends_at, is_retirement, instances };
            verdict(&event(ago(0), Happening::Maintenance(maintenance)), drain)
        };
        let after = |time| NOW.plus(seconds(time));
        let lead = "maintenanceLead: 30m";
        let drained = |left| drain(DrainReason::Maintenance, seconds(left));
        assert_eq!(judged(after(1800), None, false, lead), drained(1800));
        assert_eq!(judged(after(60), None, true, lead), drained(60));
        let early = Verdict::Postpone(seconds(5));
        assert_eq!(judged(after(1805), None, false, lead), early);
        let weeks = judged(after(21 * 86_400), None, true, lead);
        assert_eq!(weeks, Verdict::Postpone(POSTPONE_MAX));
        let early = "leaveDegraded: true, requestDeadline: 10m";
        assert_eq!(judged(after(21 * 86_400), None, true, early), drained(600));
        let healthy = judged(after(21 * 86_400), None, false, early);
        assert_eq!(healthy, Verdict::Postpone(POSTPONE_MAX));
        let begun = NOW.minus(seconds(60));
        assert_eq!(judged(begun, None, false, lead), drained(0));
        assert_eq!(judged(begun, Some(NOW), false, lead), Verdict::Nothing(Idle::Stale));
        let past = NOW.minus(MAINTENANCE_COUNTS);
        assert_eq!(judged(past, None, false, lead), Verdict::Nothing(Idle::Stale));
    }

    proptest! {
        #[test]
        fn no_spot_notice_leaves_more_than_two_minutes(
            sent_at in any::<u64>(),
            now in any::<u64>(),
        ) {
            let event = spot(InterruptionAction::Terminate, Some(UnixMillis(sent_at)));
            let verdict = judge(&event, SPOT, &terms(""), UnixMillis(now));
            if let Verdict::Drain(order) = verdict {
                prop_assert!(order.remaining <= SPOT_LEAD_MAX);
            }
        }
    }
}
