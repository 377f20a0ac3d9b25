//! The laws of the drain key, seen from one agent.

use std::sync::Arc;

use ebbtide_core::ids::RunId;
use ebbtide_core::notice::{Announcement, NoticeKind};
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::control::{ControlView, NodeNames};

use super::*;
use crate::config::{DrainTerms, agent_holder};
use crate::imds::{Sighting, Source};

const SERVER_NOW: UnixMillis = UnixMillis(5_000_000);

fn key() -> DrainKey {
    let run: RunId = "r".parse().expect("valid");
    let holder = agent_holder(&"n1".parse().expect("valid"), "b").expect("valid");
    DrainKey::new(&AgentConfig::new(run, holder))
}

/// As an agent of the node names its requests.
const OWN: &str = "notice-n1-67e5504410b1426f9247bb680e5fe0c8";

fn ep_0(leads: bool) -> Membership {
    Membership { replica: "ep-0".parse().expect("valid"), leads, since: None }
}

fn record(request_id: &str, reason: DrainReason, state: DrainState) -> DrainRecord {
    DrainRecord {
        replica: "n1".parse().expect("valid"),
        request_id: request_id.to_owned(),
        generation: 0,
        reason,
        deadline: SERVER_NOW.plus(Duration::from_secs(60)),
        state,
        requested_at: SERVER_NOW,
        lost: NodeNames::default(),
    }
}

fn view(drains: Vec<DrainRecord>, at: Instant) -> SeenView {
    let view = ControlView { now: SERVER_NOW, drains, ..ControlView::default() };
    SeenView { view: Arc::new(view.into_replica("n1".parse().expect("valid"))), at }
}

fn notices(lead: Option<Duration>, at: Instant) -> Notices {
    let mut notices = Notices::new(DrainTerms::default());
    let wall = UnixMillis(9_000_000);
    let announcement = lead
        .map(|lead| Announcement { kind: NoticeKind::SpotTerminate, time: Some(wall.plus(lead)) });
    let look = |source, announcement| Sighting { source, announcement, wall, at };
    for _ in 0..3 {
        notices.see(look(Source::Spot, announcement));
        notices.see(look(Source::Rebalance, None));
        notices.see(look(Source::Lifecycle, None));
        notices.see(look(Source::Maintenance, None));
    }
    notices
}

#[test]
fn notice_is_told_until_the_key_says_so() {
    let now = Instant::now();
    let mut key = key();
    let noticed = notices(Some(Duration::from_secs(50)), now);
    assert!(matches!(key.due_call(&noticed, None, now), Some(Call::Request(_))));
    let later = record("scale-in", DrainReason::ScaleIn, DrainState::Draining);
    key.take_view(&view(vec![later], now));
    assert!(matches!(key.due_call(&noticed, None, now), Some(Call::Request(_))), "later");
    let told = DrainRecord {
        deadline: SERVER_NOW.plus(Duration::from_secs(50)),
        ..record("scale-in", DrainReason::Notice, DrainState::Draining)
    };
    key.take_view(&view(vec![told], now));
    assert_eq!(key.due_call(&noticed, None, now), None);
}

#[test]
fn notice_is_told_until_the_key_names_the_node_among_those_that_go() {
    let now = Instant::now();
    let mut key = key();
    key.join(ep_0(false));
    let noticed = notices(Some(Duration::from_secs(60)), now);
    let lost = |names: &str| DrainRecord {
        replica: "ep-0".parse().expect("valid"),
        lost: names.to_owned().try_into().expect("valid"),
        ..record("notice-n2", DrainReason::Notice, DrainState::Drained)
    };
    let mut due = |names: &str| {
        let view = ControlView { now: SERVER_NOW, drains: vec![lost(names)], ..Default::default() };
        let view = Arc::new(view.into_replica("ep-0".parse().expect("valid")));
        key.take_view(&SeenView { view, at: now });
        key.due_call(&noticed, None, now)
    };
    assert!(matches!(due("n2"), Some(Call::Request(_))));
    assert_eq!(due("n1,n2"), None);
}

#[test]
fn rehearsal_says_nothing_of_a_notice() {
    let now = Instant::now();
    let mut key = key();
    let drill = DrainRecord {
        lost: NodeNames::from(key.node.clone()),
        ..record("drill-1", DrainReason::Drill, DrainState::Draining)
    };
    key.take_view(&view(vec![drill], now));
    for lead in [Duration::from_secs(60), Duration::from_secs(100)] {
        let call = key.due_call(&notices(Some(lead), now), None, now);
        assert!(matches!(call, Some(Call::Request(_))));
    }
}

#[test]
fn only_own_requests_are_taken_back_and_only_when_their_source_is_quiet() {
    let now = Instant::now();
    let mut key = key();
    let own = record(OWN, DrainReason::Notice, DrainState::Drained);
    key.take_view(&view(vec![own.clone()], now));
    let unknown = Notices::new(DrainTerms::default());
    assert_eq!(key.due_call(&unknown, None, now), None, "nothing was looked at yet");
    let quiet = notices(None, now);
    let cancel = Some(Call::Report(DrainState::Cancelled));
    assert_eq!(key.due_call(&quiet, None, now), cancel);
    let terminating = DrainRecord { state: DrainState::Terminating, ..own };
    key.take_view(&view(vec![terminating], now));
    assert_eq!(key.due_call(&quiet, None, now), None);
    let foreign = record("scale-in", DrainReason::ScaleIn, DrainState::Drained);
    key.take_view(&view(vec![foreign], now));
    assert_eq!(key.due_call(&quiet, None, now), None);
}

#[test]
fn old_view_does_not_bring_a_cancelled_drain_to_life() {
    let now = Instant::now();
    let mut key = key();
    let own = record(OWN, DrainReason::Notice, DrainState::Draining);
    key.take_view(&view(vec![own.clone()], now));
    let cancelled = DrainRecord { state: DrainState::Cancelled, ..own.clone() };
    let call = Call::Report(DrainState::Cancelled);
    key.take_answer(call, Ok(Some(cancelled)), now);
    assert_eq!(key.wanted(), None);
    key.take_view(&view(vec![own], now));
    assert_eq!(key.wanted(), None);
}

#[test]
fn terminating_replica_does_not_come_back_without_its_key() {
    let now = Instant::now();
    let mut key = key();
    let drained = record("scale-in", DrainReason::ScaleIn, DrainState::Drained);
    key.take_view(&view(vec![drained.clone()], now));
    key.take_view(&view(vec![], now));
    assert_eq!(key.wanted(), None);
    let terminating = DrainRecord { state: DrainState::Terminating, ..drained };
    key.take_view(&view(vec![terminating], now));
    key.take_view(&view(vec![], now));
    assert!(key.wanted().is_some());
}

#[test]
fn deadline_is_fixed_at_first_sight() {
    let now = Instant::now();
    let mut key = key();
    let asked = record("scale-in", DrainReason::ScaleIn, DrainState::Requested);
    key.take_view(&view(vec![asked.clone()], now));
    key.take_view(&view(vec![asked], now + Duration::from_secs(5)));
    let deadline = key.wanted().map(|want| want.deadline);
    assert_eq!(deadline, Some(now + Duration::from_secs(60)));
}

#[test]
fn nodes_of_the_replica_before_say_nothing_about_the_next() {
    let now = Instant::now();
    let mut key = key();
    key.take_view(&view(vec![], now));
    key.join(ep_0(true));
    assert_eq!(key.others_hold(), OthersHold::UNREAD);
}

#[test]
fn answer_about_the_replica_before_says_nothing_about_the_next() {
    let now = Instant::now();
    let mut key = key();
    let own = record(OWN, DrainReason::Notice, DrainState::Draining);
    key.take_view(&view(vec![own.clone()], now));
    key.join(ep_0(false));
    key.take_answer(Call::Report(DrainState::Draining), Ok(Some(own)), now);
    assert_eq!(key.wanted(), None);
    key.take_view(&view(vec![], now));
    assert!(!key.is_known(), "the keys are read anew");
}
