//! What the sources say, look by look, and what counts then.

use ebbtide_core::notice::SPOT_LEAD_MAX;
use proptest::prelude::*;

use super::*;

const WALL: UnixMillis = UnixMillis(1_000_000_000);

fn terms(rebalance: RebalanceAction) -> DrainTerms {
    DrainTerms { rebalance, ..DrainTerms::default() }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A look `after` the start; `lead` is the time of the announcement relative to the look.
fn look(start: Instant, after: u64, source: Source, what: Option<(NoticeKind, u64)>) -> Sighting {
    let wall = WALL.plus(seconds(after));
    let announcement =
        what.map(|(kind, lead)| Announcement { kind, time: Some(wall.plus(seconds(lead))) });
    Sighting { source, announcement, wall, at: start + seconds(after) }
}

/// Case 16.
#[test]
fn moving_time_is_one_notice_with_the_earliest_deadline() {
    let start = Instant::now();
    let mut notices = Notices::new(terms(RebalanceAction::StopLeases));
    let spot = Some((NoticeKind::SpotTerminate, 120));
    let first = notices.see(look(start, 0, Source::Spot, spot));
    assert_eq!(first, News::Announced(NoticeKind::SpotTerminate));
    for after in 1..20 {
        assert_eq!(notices.see(look(start, after, Source::Spot, spot)), News::Nothing);
    }
    let emptying = notices.emptying(start).expect("it empties the node");
    assert_eq!(emptying.deadline, start + seconds(120));
}

#[test]
fn earlier_time_and_hibernation_tighten() {
    let start = Instant::now();
    let mut notices = Notices::new(terms(RebalanceAction::StopLeases));
    notices.see(look(start, 0, Source::Spot, Some((NoticeKind::SpotStop, 110))));
    let news = notices.see(look(start, 5, Source::Spot, Some((NoticeKind::SpotStop, 40))));
    assert_eq!(news, News::Tightened(NoticeKind::SpotStop));
    let deadline = |notices: &Notices| notices.emptying(start).map(|e| e.deadline);
    assert_eq!(deadline(&notices), Some(start + seconds(45)));
    notices.see(look(start, 6, Source::Spot, Some((NoticeKind::SpotHibernate, 40))));
    assert_eq!(deadline(&notices), Some(start + seconds(6)));
}

proptest! {
    /// Cases 16 and 18: whatever the wall clock says and however it is set meanwhile, and whatever
    /// time the service tells, the node has two minutes at most, and never more than before.
    #[test]
    fn no_clock_and_no_body_put_a_spot_deadline_off(
        looks in prop::collection::vec(
            (0..10_u64, 0..2_000_000_u64, 0..2_000_000_u64, 0..3_usize),
            1..30,
        ),
    ) {
        let start = Instant::now();
        let mut notices = Notices::new(terms(RebalanceAction::StopLeases));
        let (mut at, mut before) = (start, None);
        for (later, wall, time, kind) in looks {
            at += seconds(later);
            let kinds =
                [NoticeKind::SpotTerminate, NoticeKind::SpotStop, NoticeKind::SpotHibernate];
            let announcement =
                Announcement { kind: kinds[kind], time: Some(UnixMillis(time)) };
            notices.see(Sighting {
                source: Source::Spot,
                announcement: Some(announcement),
                wall: UnixMillis(wall),
                at,
            });
            let emptying = notices.emptying(at).expect("a Spot notice empties the node");
            let first_seen = before.map_or(at, |(_, first_seen)| first_seen);
            prop_assert!(emptying.deadline <= first_seen + SPOT_LEAD_MAX);
            if let Some((deadline, _)) = before {
                prop_assert!(emptying.deadline <= deadline);
            }
            if kinds[kind] == NoticeKind::SpotHibernate {
                prop_assert!(emptying.deadline <= at, "hibernation begins at once");
            }
            before = Some((emptying.deadline, first_seen));
        }
    }
}

#[test]
fn only_repeated_absence_withdraws() {
    let start = Instant::now();
    let mut notices = Notices::new(terms(RebalanceAction::StopLeases));
    let spot = Some((NoticeKind::SpotTerminate, 100));
    notices.see(look(start, 0, Source::Spot, spot));
    notices.see(look(start, 1, Source::Spot, None));
    notices.see(look(start, 2, Source::Spot, spot));
    for after in [3, 4] {
        assert_eq!(notices.see(look(start, after, Source::Spot, None)), News::Nothing);
    }
    assert!(notices.emptying(start).is_some());
    let news = notices.see(look(start, 5, Source::Spot, None));
    assert_eq!(news, News::Withdrawn(NoticeKind::SpotTerminate));
    assert!(notices.emptying(start).is_none());
    assert!(notices.is_quiet_for(DrainReason::Notice, false, start));
}

/// One that cannot be read keeps no node out of work that it did not take out.
#[test]
fn reason_is_over_when_its_own_source_says_so() {
    let start = Instant::now();
    let sources = [
        (Source::Spot, DrainReason::Notice),
        (Source::Rebalance, DrainReason::Rebalance),
        (Source::Lifecycle, DrainReason::Lifecycle),
        (Source::Maintenance, DrainReason::Maintenance),
    ];
    for (source, _) in sources {
        let mut notices = Notices::new(terms(RebalanceAction::Drain));
        for after in 0..3 {
            let is_quiet = |(_, reason): &_| notices.is_quiet_for(*reason, false, start);
            assert!(!sources.iter().any(is_quiet), "{source:?}, {after} looks");
            notices.see(look(start, after, source, None));
        }
        for (other, reason) in sources {
            let is_quiet = notices.is_quiet_for(reason, false, start);
            assert_eq!(is_quiet, source == other, "{reason:?}, {source:?} is quiet");
        }
    }
}

#[test]
fn rebalance_stops_leases_until_its_time_is_over_and_not_again() {
    let start = Instant::now();
    let mut notices = Notices::new(terms(RebalanceAction::StopLeases));
    let fixed = |after| Sighting {
        announcement: Some(Announcement { kind: NoticeKind::Rebalance, time: Some(WALL) }),
        ..look(start, after, Source::Rebalance, None)
    };
    notices.see(fixed(0));
    assert!(notices.stops_leases(start + seconds(899)));
    assert!(notices.emptying(start).is_none());
    assert_eq!(notices.next_change(start), Some(start + seconds(900)));
    for after in [900, 1000, 5000] {
        notices.see(fixed(after));
        assert!(!notices.stops_leases(start + seconds(after)), "after {after} s");
    }
    notices.see(look(start, 6000, Source::Rebalance, Some((NoticeKind::Rebalance, 0))));
    assert!(notices.stops_leases(start + seconds(6001)), "another one counts again");
}

#[test]
fn rebalance_drains_or_does_nothing_when_told_so() {
    let start = Instant::now();
    let rebalance = look(start, 0, Source::Rebalance, Some((NoticeKind::Rebalance, 0)));
    let mut notices = Notices::new(terms(RebalanceAction::Drain));
    notices.see(rebalance);
    assert_eq!(notices.emptying(start).map(|e| e.deadline), Some(start + seconds(600)));
    let mut notices = Notices::new(terms(RebalanceAction::Ignore));
    notices.see(rebalance);
    assert_eq!(notices.strongest(start), None);
}

/// A look at a maintenance `lead` seconds after the start.
fn maintenance(start: Instant, after: u64, kind: NoticeKind, lead: u64) -> Sighting {
    look(start, after, Source::Maintenance, Some((kind, lead - after)))
}

/// Case 25.
#[test]
fn maintenance_far_ahead_is_told_and_drains_only_when_its_lead_begins() {
    let start = Instant::now();
    let mut notices = Notices::new(terms(RebalanceAction::StopLeases));
    let ahead = 21 * 86_400;
    notices.see(maintenance(start, 0, NoticeKind::Maintenance, ahead));
    let told = notices.strongest(start);
    assert_eq!(told, Some((NoticeKind::Maintenance, Some(start + seconds(ahead)))));
    assert_eq!(notices.emptying(start), None);
    let begins = start + seconds(ahead - 1800);
    assert_eq!(notices.next_change(start), Some(begins));
    assert_eq!(notices.emptying(begins - seconds(1)), None);
    assert!(notices.emptying(begins).is_some());
}

/// Case 25, the other half.
#[test]
fn degraded_node_leaves_at_once_when_the_policy_says_so() {
    let start = Instant::now();
    let early = DrainTerms { leave_degraded: true, ..DrainTerms::default() };
    let mut notices = Notices::new(early);
    notices.see(maintenance(start, 0, NoticeKind::Retirement, 21 * 86_400));
    assert_eq!(notices.emptying(start).map(|e| e.deadline), Some(start + seconds(600)));
    let mut notices = Notices::new(early);
    notices.see(maintenance(start, 0, NoticeKind::Maintenance, 21 * 86_400));
    assert_eq!(notices.emptying(start), None, "only degraded hardware is left early");
}

#[test]
fn maintenance_that_is_put_off_counts_from_its_new_time() {
    let start = Instant::now();
    let mut notices = Notices::new(terms(RebalanceAction::StopLeases));
    notices.see(maintenance(start, 0, NoticeKind::Maintenance, 7200));
    notices.see(maintenance(start, 60, NoticeKind::Maintenance, 14_400));
    let told = notices.strongest(start).and_then(|(_, deadline)| deadline);
    assert_eq!(told, Some(start + seconds(14_400)));
    notices.see(maintenance(start, 13_000, NoticeKind::Maintenance, 20_000));
    let told = notices.strongest(start).and_then(|(_, deadline)| deadline);
    assert_eq!(told, Some(start + seconds(14_400)), "the drain is under way");
}

#[test]
fn earliest_of_several_notices_decides() {
    let start = Instant::now();
    let mut notices = Notices::new(terms(RebalanceAction::StopLeases));
    let lifecycle = Some((NoticeKind::AsgTermination, 0));
    notices.see(look(start, 0, Source::Lifecycle, lifecycle));
    notices.see(look(start, 1, Source::Spot, Some((NoticeKind::SpotTerminate, 60))));
    let emptying = notices.emptying(start).expect("it empties the node");
    assert_eq!(emptying.kind, NoticeKind::SpotTerminate);
    assert_eq!(emptying.deadline, start + seconds(61));
}

#[test]
fn notice_of_aws_names_the_drain_whatever_other_handlers_say_and_the_earliest_deadline_holds() {
    use crate::kubernetes::{SeenNode, SeenTaint, Termination, Tier};
    let start = Instant::now();
    let mut notices = Notices::new(terms(RebalanceAction::StopLeases));
    let key = "aws-node-termination-handler/spot-itn".to_owned();
    let taint = SeenTaint { key, value: String::new() };
    let termination = Termination { by: WALL.plus(seconds(20)), grace: seconds(60) };
    let engine = SeenPod {
        tier: Tier::Engine,
        termination: Some(termination),
        ..SeenPod::ordinary("rl", "e", "e")
    };
    let sight = |taints, pods| NodeSight {
        node: Some(SeenNode { taints, is_being_deleted: false }),
        pods: Some(std::sync::Arc::new(pods)),
        failures: 0,
    };
    let mut see = |sight, spot| {
        notices.see_node(&sight, |_| false, WALL, start);
        let what = if spot { Some((NoticeKind::SpotStop, 100)) } else { None };
        notices.see(look(start, 0, Source::Spot, what));
        let emptying = notices.emptying(start).expect("it empties the node");
        (emptying.kind, emptying.deadline - start, notices.strongest(start).is_some())
    };
    let engine_alone = see(sight(vec![], vec![engine.clone()]), false);
    assert_eq!(engine_alone, (NoticeKind::EngineDeleted, seconds(20), false));
    let with_taint = see(sight(vec![taint.clone()], vec![engine.clone()]), false);
    assert_eq!(with_taint, (NoticeKind::Foreign, seconds(20), false));
    let with_notice = see(sight(vec![taint], vec![engine]), true);
    assert_eq!(with_notice, (NoticeKind::SpotStop, seconds(20), true));
}
