//! Tables for single decisions, a whole drain as a story, and laws over random nodes.

use std::time::Duration;

use ebbtide_core::time::UnixMillis;
use proptest::prelude::*;

use super::*;
use crate::kubernetes::{Termination, Tier};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Everything goes from 5 s before the deadline on.
const TERMS: EvictionTerms = EvictionTerms {
    grace: Duration::from_secs(5),
    reserve: Duration::from_secs(10),
    on_blocked: BlockedEviction::Delete,
};

fn pod(name: &str, tier: Tier) -> SeenPod {
    SeenPod { tier, ..SeenPod::ordinary("rl", name, name) }
}

fn one_of_each() -> Vec<SeenPod> {
    vec![
        pod("engine", Tier::Engine),
        pod("worker", Tier::Worker),
        pod("critical", Tier::Critical),
        pod("ordinary", Tier::Ordinary),
    ]
}

fn going(pod: SeenPod) -> SeenPod {
    let termination = Termination { by: UnixMillis(1), grace: seconds(30) };
    SeenPod { termination: Some(termination), ..pod }
}

/// A drain of 120 s on a cordoned node that holds nothing.
#[derive(Debug)]
struct Case {
    pods: Vec<SeenPod>,
    tried: BTreeMap<String, Tried>,
    holdings: Holdings,
    is_cordoned: bool,
    held_until: Option<Duration>,
    terms: EvictionTerms,
    begun: Instant,
}

impl Case {
    fn of(pods: Vec<SeenPod>) -> Self {
        Self {
            pods,
            tried: BTreeMap::new(),
            holdings: Holdings::default(),
            is_cordoned: true,
            held_until: None,
            terms: TERMS,
            begun: Instant::now(),
        }
    }

    fn tried(mut self, uid: &str, tried: Tried) -> Self {
        self.tried.insert(uid.to_owned(), tried);
        self
    }

    fn retry_at(&self, after: u64) -> Instant {
        self.begun + seconds(after)
    }

    fn plan(&self, after: Duration) -> EvictionPlan {
        let situation = Situation {
            pods: &self.pods,
            tried: &self.tried,
            drain: DrainAround {
                holdings: self.holdings,
                is_cordoned: self.is_cordoned,
                held_until: self.held_until.map(|until| self.begun + until),
                begun: self.begun,
                deadline: self.begun + seconds(120),
            },
        };
        plan_evictions(&situation, &self.terms, self.begun + after)
    }

    /// The verdict on a pod, so many seconds after the beginning.
    fn verdict(&self, uid: &str, after: u64) -> Verdict {
        let plan = self.plan(seconds(after));
        plan.decisions.iter().find(|d| d.pod.uid == uid).expect("a decision").verdict
    }

    /// The pods that are made to leave now, in order.
    fn acted_on(&self, after: u64) -> Vec<String> {
        let is_act =
            |d: &&PodDecision| matches!(d.verdict, Verdict::Evict { .. } | Verdict::Delete { .. });
        let plan = self.plan(seconds(after));
        plan.decisions.iter().filter(is_act).map(|d| d.pod.name.clone()).collect()
    }
}

fn evict(grace: u64, why: EvictWhy) -> Verdict {
    Verdict::Evict { grace: seconds(grace), why }
}

#[test]
fn pods_leave_tier_by_tier_as_the_earlier_ones_are_gone() {
    let mut case = Case::of(one_of_each());
    for expected in ["ordinary", "critical", "worker", "engine"] {
        assert_eq!(case.acted_on(1), [expected]);
        // On its way out it still counts; what is gone does not.
        case.tried.insert(expected.to_owned(), Tried::Accepted);
        assert!(case.acted_on(1).is_empty(), "{expected} is still there");
        case.pods.retain(|pod| pod.id.name != expected);
    }
    assert_eq!(case.plan(seconds(1)).left(), 0);
}

// Case 15, for pods; case 65 asks the same of custom workers.
#[test]
fn pod_that_holds_work_gets_no_sigterm_before_deadline_minus_grace() {
    for (tier, holdings) in [
        (Tier::Engine, Holdings { has_streams: true, has_worker_units: false }),
        (Tier::Worker, Holdings { has_streams: false, has_worker_units: true }),
    ] {
        let mut case = Case::of(vec![pod("p", tier)]);
        assert_eq!(case.verdict("p", 0), evict(30, EvictWhy::Turn), "nothing is held");
        case.holdings = holdings;
        for after in [0, 60, 110, 114] {
            assert_eq!(case.verdict("p", after), Verdict::Wait(WaitReason::HoldsWork));
        }
        assert_eq!(case.verdict("p", 115), evict(5, EvictWhy::TimeUp));
    }
}

#[test]
fn everything_goes_from_deadline_minus_grace_on_and_nothing_from_the_deadline_on() {
    let mut case = Case::of(one_of_each());
    case.holdings = Holdings { has_streams: true, has_worker_units: true };
    case.is_cordoned = false;
    assert_eq!(case.acted_on(115), ["ordinary", "critical", "worker", "engine"]);
    for after in [120, 500] {
        assert!(case.acted_on(after).is_empty());
        assert_eq!(case.verdict("engine", after), Verdict::Skip(SkipReason::TooLate));
    }
}

#[test]
fn grace_is_the_pods_own_but_no_more_than_is_left_and_never_zero() {
    for (own, after, expected) in [(30, 0, 30), (600, 20, 100), (0, 0, 1), (30, 119, 1)] {
        let pod = SeenPod { grace: seconds(own), ..pod("p", Tier::Ordinary) };
        let Verdict::Evict { grace, .. } = Case::of(vec![pod]).verdict("p", after) else {
            panic!("not evicted")
        };
        assert_eq!(grace.as_secs(), expected, "own {own}, after {after}");
    }
}

#[test]
fn critical_pod_gets_its_own_grace_though_ordinary_ones_are_still_there() {
    let critical = |own| SeenPod { grace: seconds(own), ..pod("critical", Tier::Critical) };
    // Half of the time until everything goes is 57.5 s: that much is for ordinary pods alone.
    for (own, waits, goes) in [(30, 89, 90), (300, 57, 58), (1, 114, 115)] {
        let case = Case::of(vec![going(pod("ordinary", Tier::Ordinary)), critical(own)]);
        assert_eq!(case.verdict("critical", waits), Verdict::Wait(WaitReason::EarlierTier));
        assert_eq!(case.acted_on(goes), ["critical"], "own grace {own} s");
    }
}

// Case 40.
#[test]
fn pods_that_stay_are_skipped_and_hold_nobody_up() {
    for reason in [StayReason::DaemonSet, StayReason::Static, StayReason::Own, StayReason::Finished]
    {
        let stays = SeenPod { stays: Some(reason), ..pod("stays", Tier::Ordinary) };
        let case = Case::of(vec![stays, pod("engine", Tier::Engine)]);
        for after in [0, 116] {
            assert_eq!(case.verdict("stays", after), Verdict::Skip(SkipReason::Stays(reason)));
            assert_eq!(case.acted_on(after), ["engine"]);
        }
    }
}

// Case 36.
#[test]
fn blocked_pod_is_tried_again_with_pauses_and_deleted_when_its_time_is_up() {
    let case = Case::of(one_of_each());
    let retry_at = case.retry_at(20);
    let mut case = case.tried("ordinary", Tried::Blocked { retry_at });
    assert_eq!(case.verdict("ordinary", 19), Verdict::Wait(WaitReason::Retry));
    assert_eq!(case.verdict("ordinary", 20), evict(30, EvictWhy::Turn));
    assert_eq!(case.verdict("engine", 114), Verdict::Wait(WaitReason::EarlierTier));
    // A pause that is still running does not put the end off.
    case.tried.insert("ordinary".to_owned(), Tried::Blocked { retry_at: case.retry_at(119) });
    assert_eq!(case.verdict("ordinary", 115), Verdict::Delete { grace: seconds(5) });
    let is_blocked = true;
    let retry_at = case.retry_at(117);
    case.tried.insert("ordinary".to_owned(), Tried::Failed { is_blocked, retry_at });
    assert_eq!(case.verdict("ordinary", 116), Verdict::Wait(WaitReason::Retry));
    assert_eq!(case.verdict("ordinary", 117), Verdict::Delete { grace: seconds(3) });
}

#[test]
fn blocked_pod_is_left_to_its_budget_when_the_policy_says_so() {
    let case = Case::of(one_of_each());
    let retry_at = case.retry_at(1);
    let mut case = case.tried("ordinary", Tried::Blocked { retry_at });
    case.terms.on_blocked = BlockedEviction::Wait;
    assert_eq!(case.verdict("ordinary", 114), evict(6, EvictWhy::Turn));
    assert_eq!(case.verdict("ordinary", 115), Verdict::Skip(SkipReason::LeftToBudget));
}

#[test]
fn failed_eviction_is_tried_again_and_never_becomes_a_deletion() {
    let case = Case::of(vec![pod("p", Tier::Ordinary)]);
    let failed = Tried::Failed { is_blocked: false, retry_at: case.retry_at(10) };
    let case = case.tried("p", failed);
    assert_eq!(case.verdict("p", 9), Verdict::Wait(WaitReason::Retry));
    assert_eq!(case.verdict("p", 116), evict(4, EvictWhy::TimeUp));
}

#[test]
fn nothing_is_evicted_before_the_node_is_cordoned_or_half_of_the_time_is_over() {
    let mut case = Case::of(one_of_each());
    case.is_cordoned = false;
    assert_eq!(case.verdict("ordinary", 57), Verdict::Wait(WaitReason::NotCordoned));
    assert_eq!(case.acted_on(58), ["ordinary"]);
}

#[test]
fn evictions_that_are_held_back_wait_but_not_longer_than_to_the_reserve() {
    let mut case = Case::of(vec![pod("p", Tier::Ordinary)]);
    for (held, waits, goes) in [(30, 29, 30), (500, 109, 110)] {
        case.held_until = Some(seconds(held));
        assert_eq!(case.verdict("p", waits), Verdict::Wait(WaitReason::Held));
        assert_eq!(case.acted_on(goes), ["p"]);
    }
}

#[test]
fn calls_under_way_are_bounded_and_not_made_twice() {
    let pods = (0..40).map(|n| pod(&format!("p{n:02}"), Tier::Ordinary)).collect();
    let case = Case::of(pods).tried("p00", Tried::Calling).tried("p01", Tried::Accepted);
    assert_eq!(case.acted_on(0).len(), 15, "one of 16 is under way");
    assert_eq!(case.verdict("p00", 0), Verdict::Wait(WaitReason::Calling));
    assert_eq!(case.verdict("p01", 0), Verdict::Wait(WaitReason::Leaving));
    assert_eq!(case.verdict("p39", 0), Verdict::Wait(WaitReason::Busy));
}

fn any_tried() -> impl Strategy<Value = Option<Tried>> {
    let at = (0_u64..150_000).prop_map(|ms| Instant::now() + Duration::from_millis(ms));
    let blocked = at.clone().prop_map(|retry_at| Tried::Blocked { retry_at });
    let failed = (any::<bool>(), at)
        .prop_map(|(is_blocked, retry_at)| Tried::Failed { is_blocked, retry_at });
    let known = prop_oneof![
        Just(Tried::Calling),
        Just(Tried::Accepted),
        Just(Tried::Gone),
        blocked,
        failed,
    ];
    prop::option::of(known)
}

fn any_case() -> impl Strategy<Value = Case> {
    let stays = prop_oneof![
        4 => Just(None),
        1 => Just(Some(StayReason::Own)),
        1 => Just(Some(StayReason::DaemonSet)),
    ];
    let one = (prop::sample::select(&Tier::ALL[..]), stays, any::<bool>(), 0..700_u64, any_tried());
    let holds = (any::<bool>(), any::<bool>());
    let held = prop::option::of((0_u64..150).prop_map(seconds));
    (prop::collection::vec(one, 0..30), holds, any::<bool>(), held, any::<bool>()).prop_map(
        |(rows, (has_streams, has_worker_units), is_cordoned, held_until, waits)| {
            let mut case = Case::of(Vec::new());
            for (number, (tier, stays, is_going, own, tried)) in rows.into_iter().enumerate() {
                let name = format!("p{number}");
                let plain = SeenPod { stays, grace: seconds(own), ..pod(&name, tier) };
                let is_going = is_going && number % 3 == 0;
                case.pods.push(if is_going { going(plain) } else { plain });
                case.tried.extend(tried.map(|tried| (name, tried)));
            }
            let on_blocked = if waits { BlockedEviction::Wait } else { BlockedEviction::Delete };
            case.terms.on_blocked = on_blocked;
            case.holdings = Holdings { has_streams, has_worker_units };
            Case { is_cordoned, held_until, ..case }
        },
    )
}

proptest! {
    #[test]
    fn no_step_is_taken_from_the_deadline_on(case in any_case(), late in 0_u64..1000) {
        prop_assert!(case.acted_on(120 + late).is_empty());
    }

    #[test]
    fn engines_go_last_and_pods_with_work_stay_until_the_time_is_up(
        case in any_case(),
        after in 0_u64..115,
    ) {
        for name in case.acted_on(after) {
            let pod = case.pods.iter().find(|pod| pod.id.name == name).expect("known");
            let is_there = |other: &SeenPod| {
                other.tier < pod.tier
                    && other.stays.is_none()
                    && case.tried.get(&other.id.uid) != Some(&Tried::Gone)
            };
            let has_earlier = case.pods.iter().any(is_there);
            match pod.tier {
                Tier::Engine => prop_assert!(!has_earlier && !case.holdings.has_streams),
                Tier::Worker => prop_assert!(!has_earlier && !case.holdings.has_worker_units),
                Tier::Critical => prop_assert!(!has_earlier || after >= 57),
                Tier::Ordinary => {}
            }
        }
    }

    #[test]
    fn each_pod_gets_one_decision_that_names_its_uid_and_own_pods_never_leave(
        case in any_case(),
        after in 0_u64..130,
    ) {
        let plan = case.plan(seconds(after));
        prop_assert_eq!(plan.decisions.len(), case.pods.len());
        for decision in &plan.decisions {
            let pod = case.pods.iter().find(|pod| pod.id == decision.pod);
            let pod = pod.expect("name and UID of a pod that was seen");
            if let Some(reason) = pod.stays {
                prop_assert_eq!(decision.verdict, Verdict::Skip(SkipReason::Stays(reason)));
            }
            if let Verdict::Evict { grace, .. } | Verdict::Delete { grace } = decision.verdict {
                prop_assert!(!decision.pod.uid.is_empty());
                let left = seconds(120 - after);
                prop_assert!(grace >= seconds(1) && grace <= pod.grace.min(left).max(seconds(1)));
            }
        }
    }

    #[test]
    fn deletion_needs_a_budget_that_refused_and_a_policy_that_allows_it(
        case in any_case(),
        after in 0_u64..120,
    ) {
        for decision in case.plan(seconds(after)).decisions {
            if matches!(decision.verdict, Verdict::Delete { .. }) {
                prop_assert!(after >= 115);
                prop_assert_eq!(case.terms.on_blocked, BlockedEviction::Delete);
                let is_blocked = matches!(
                    case.tried.get(&decision.pod.uid),
                    Some(Tried::Blocked { .. } | Tried::Failed { is_blocked: true, .. })
                );
                prop_assert!(is_blocked);
            }
        }
    }

    #[test]
    fn same_node_gives_the_same_plan_and_a_settled_one_needs_nothing(
        case in any_case(),
        after in 0_u64..130,
    ) {
        prop_assert_eq!(case.plan(seconds(after)), case.plan(seconds(after)));
        let settled = Case::of(case.pods.iter().cloned().map(going).collect());
        prop_assert!(settled.acted_on(after).is_empty());
    }
}
