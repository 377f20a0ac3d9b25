//! The laws of the control keys, checked in every world.

use std::time::Duration;

use ebbtide_core::ids::{NodeName, PolicyVersion, ReplicaId};
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::client::Hint;
use ebbtide_queue::control::{
    ClosingReport, DrainOutcome, DrainProgress, DrainReason, DrainRecord, DrainRequest, DrainState,
    HoldRecord, LifecycleRecord, NodeNames, NodeRecord, NodeState, ReplicaView, StragglerRecord,
    TrainerPhase, TrainerRecord, VersionRecord,
};

use super::worlds::*;

laws![
    1;
    records_are_read_as_they_were_written,
    replica_reads_what_concerns_it,
    drain_deadline_only_becomes_earlier,
    rehearsal_gives_way_to_any_other_drain,
    drain_goes_forward_only_and_reports_name_their_request,
    cancelled_drain_can_be_asked_for_again,
    older_generation_is_refused,
    action_is_claimed_once_and_by_the_newest_generation,
    nodes_that_are_lost_add_up,
    closing_report_is_kept_once_and_the_newest_comes_first,
    checkpoint_is_pending_until_its_request_is_confirmed,
    lifecycle_action_stands_until_it_is_removed,
    straggler_is_told_to_its_replica_until_it_is_taken_back,
    change_of_control_keys_wakes_those_who_wait_for_it,
];

fn node(name: &str) -> NodeRecord {
    NodeRecord {
        instance_id: Some(format!("i-{name}")),
        in_flight: 2,
        tokens_per_second: 33.5,
        ..NodeRecord::new(holder(name), NodeState::Ready)
    }
}

fn request(id: &str, reason: DrainReason, seconds: u64) -> DrainRequest {
    DrainRequest {
        replica: "r1".parse().unwrap(),
        request_id: id.to_owned(),
        generation: 0,
        reason,
        remaining: Duration::from_secs(seconds),
        lost: NodeNames::default(),
    }
}

async fn report(world: &World, id: &str, generation: u64, state: DrainState) -> DrainRecord {
    let replica: ReplicaId = "r1".parse().unwrap();
    let progress = DrainProgress { replica, request_id: id.to_owned(), generation, state };
    world.queue.report_drain(progress).await.unwrap().unwrap()
}

async fn records_are_read_as_they_were_written(world: World) {
    world.queue.put_node(node("n1")).await.unwrap();
    world.queue.put_node(node("n2")).await.unwrap();
    let trainer = TrainerRecord {
        phase: TrainerPhase::Wait,
        step: 4,
        groups_per_step: 8,
        nodes: None,
        incarnation: None,
        heartbeat: UnixMillis(0),
    };
    world.queue.put_trainer(trainer).await.unwrap();
    world.queue.beat_reaper().await.unwrap();
    let now = world.queue.view().await.unwrap().now;
    for (role, until) in [("rollout", now.plus(LONG)), ("all", UnixMillis(1))] {
        let (reason, who) = ("upgrade".to_owned(), "me".to_owned());
        world.queue.put_hold(HoldRecord { role: role.into(), until, reason, who }).await.unwrap();
    }
    let view = world.queue.view().await.unwrap();
    let mut names: Vec<_> = view.nodes.iter().map(|node| node.node.to_string()).collect();
    names.sort();
    assert_eq!(names, ["n1", "n2"]);
    assert!(view.nodes.iter().all(|node| node.heartbeat > UnixMillis(0)));
    assert_eq!(view.trainer.map(|trainer| trainer.step), Some(4));
    assert_eq!(view.holds.len(), 1, "a hold that has ended is forgotten");
    assert!(view.reaper_beat.is_some());
    world.queue.remove_node(0, &"n1".parse().unwrap()).await.unwrap();
    assert_eq!(world.queue.view().await.unwrap().nodes.len(), 1);
}

async fn replica_reads_what_concerns_it(world: World) {
    let (one, other): (ReplicaId, ReplicaId) = ("r1".parse().unwrap(), "r2".parse().unwrap());
    for (name, replica) in [("n1", &one), ("n2", &other)] {
        let record = NodeRecord { replica: replica.clone(), ..node(name) };
        world.queue.put_node(record).await.unwrap();
    }
    let asked = world.queue.request_drain(request("a", DrainReason::ScaleIn, 600)).await.unwrap();
    let version = VersionRecord { version: PolicyVersion(3), ..VersionRecord::default() };
    world.queue.set_version(version).await.unwrap();
    world.queue.beat_reaper().await.unwrap();
    world.queue.request_checkpoint().await.unwrap();
    let whole = world.queue.view().await.unwrap();
    let mine = world.queue.replica_view(&one).await.unwrap();
    assert_eq!(mine.members, None, "they are not read");
    assert_eq!(mine.drain, Some(asked));
    assert!(mine.now >= whole.now && mine.checkpoint.is_pending() && mine.reaper_beat.is_some());
    assert_eq!((mine.version.version, &mine.replica), (PolicyVersion(3), &one));
    let not_mine = world.queue.replica_view(&other).await.unwrap();
    assert_eq!(not_mine.drain, None);
    let standing = whole.into_replica(one);
    let members = standing.members.iter().flatten().map(|node| node.node.as_str());
    assert_eq!(members.collect::<Vec<_>>(), ["n1"]);
    let mine = ReplicaView { now: standing.now, members: standing.members.clone(), ..mine };
    assert_eq!(mine, standing, "as in the whole");
}

async fn drain_deadline_only_becomes_earlier(world: World) {
    let first = world.queue.request_drain(request("a", DrainReason::ScaleIn, 600)).await.unwrap();
    let notice = world.queue.request_drain(request("b", DrainReason::Notice, 120)).await.unwrap();
    assert!(notice.deadline < first.deadline);
    assert_eq!((notice.reason, notice.request_id.as_str()), (DrainReason::Notice, "a"));
    let later = world.queue.request_drain(request("c", DrainReason::Operator, 900)).await.unwrap();
    assert_eq!(later.deadline, notice.deadline);
    assert_eq!(later.reason, DrainReason::Notice, "a notice overrides and stays");
}

async fn rehearsal_gives_way_to_any_other_drain(world: World) {
    use DrainReason::*;
    let lost = NodeNames::from("n1".parse::<NodeName>().unwrap());
    for reason in [Notice, Rebalance, Maintenance, Lifecycle, ScaleIn, Swap, Operator, Foreign] {
        let (drill, real) = (format!("drill-{reason:?}"), format!("{reason:?}"));
        let rehearsal = world.queue.request_drain(request(&drill, Drill, 30)).await.unwrap();
        report(&world, &drill, 0, DrainState::Drained).await;
        let asked = DrainRequest { lost: lost.clone(), ..request(&real, reason, 600) };
        let asked = world.queue.request_drain(asked).await.unwrap();
        let facts = (asked.reason, asked.state, asked.request_id.as_str(), &asked.lost);
        assert_eq!(facts, (reason, DrainState::Requested, &*real, &lost));
        assert!(asked.deadline > rehearsal.deadline, "its own, though it is later");
        // Who has begun the rehearsal, or speaks for it, ends nothing any more; nor does another.
        let after = report(&world, &drill, 0, DrainState::Cancelled).await;
        assert_eq!(after, asked);
        let after = world.queue.request_drain(request("another", Drill, 900)).await.unwrap();
        assert_eq!(after, asked);
        report(&world, &real, 0, DrainState::Cancelled).await;
    }
    world.queue.request_drain(request("first", Drill, 30)).await.unwrap();
    let second = world.queue.request_drain(request("second", Drill, 20)).await.unwrap();
    assert_eq!(second.request_id, "first", "one rehearsal at a time");
}

async fn drain_goes_forward_only_and_reports_name_their_request(world: World) {
    world.queue.request_drain(request("a", DrainReason::ScaleIn, 600)).await.unwrap();
    let another = report(&world, "other", 0, DrainState::Drained).await;
    assert_eq!(another.state, DrainState::Requested);
    for state in [DrainState::Draining, DrainState::Drained, DrainState::Terminating] {
        assert_eq!(report(&world, "a", 0, state).await.state, state);
    }
    for state in [DrainState::Draining, DrainState::Cancelled] {
        assert_eq!(report(&world, "a", 0, state).await.state, DrainState::Terminating);
    }
}

async fn cancelled_drain_can_be_asked_for_again(world: World) {
    world.queue.request_drain(request("a", DrainReason::ScaleIn, 600)).await.unwrap();
    report(&world, "a", 0, DrainState::Cancelled).await;
    let replica: ReplicaId = "r1".parse().unwrap();
    assert!(world.queue.view().await.unwrap().active_drain(&replica).is_none());
    let repeated = world.queue.request_drain(request("a", DrainReason::ScaleIn, 1)).await.unwrap();
    assert_eq!(repeated.state, DrainState::Cancelled, "a repeated old request changes nothing");
    let again = world.queue.request_drain(request("b", DrainReason::ScaleIn, 600)).await.unwrap();
    assert_eq!((again.state, again.request_id.as_str()), (DrainState::Requested, "b"));
}

async fn older_generation_is_refused(world: World) {
    let newer = DrainRequest { generation: 5, ..request("a", DrainReason::ScaleIn, 600) };
    world.queue.request_drain(newer).await.unwrap();
    let by_old_leader = report(&world, "a", 4, DrainState::Terminating).await;
    assert_eq!(by_old_leader.state, DrainState::Requested);
    let by_agent = report(&world, "a", 0, DrainState::Draining).await;
    assert_eq!(by_agent.state, DrainState::Draining);
    // A leader that was followed by another writes nothing, not even a first record.
    assert!(world.queue.claim(6, "anything").await.unwrap());
    let replica: ReplicaId = "r2".parse().unwrap();
    let stale = DrainRequest {
        replica: replica.clone(),
        generation: 5,
        ..request("b", DrainReason::ScaleIn, 600)
    };
    assert!(world.queue.request_drain(stale).await.is_err());
    assert!(world.queue.view().await.unwrap().active_drain(&replica).is_none());
}

async fn action_is_claimed_once_and_by_the_newest_generation(world: World) {
    assert!(world.queue.claim(2, "raise pool-a to 4").await.unwrap());
    assert!(!world.queue.claim(2, "raise pool-a to 4").await.unwrap());
    assert!(!world.queue.claim(1, "raise pool-a to 9").await.unwrap());
    assert!(world.queue.claim(3, "raise pool-a to 9").await.unwrap());
}

async fn nodes_that_are_lost_add_up(world: World) {
    let lost = |name: &str| DrainRequest {
        lost: NodeNames::from(name.parse::<NodeName>().unwrap()),
        ..request(name, DrainReason::Notice, 100)
    };
    world.queue.request_drain(request("a", DrainReason::ScaleIn, 600)).await.unwrap();
    for name in ["n2", "n1", "n2"] {
        world.queue.request_drain(lost(name)).await.unwrap();
    }
    let drains = world.queue.view().await.unwrap().drains;
    assert_eq!(drains[0].lost.to_string(), "n1,n2");
    report(&world, "a", 0, DrainState::Cancelled).await;
    let anew = world.queue.request_drain(request("b", DrainReason::ScaleIn, 600)).await.unwrap();
    assert!(anew.lost.is_empty(), "another drain begins with none");
}

fn closing(request_id: &str, dollars: Option<f64>) -> ClosingReport {
    ClosingReport {
        request_id: request_id.to_owned(),
        replica: "r1".parse().unwrap(),
        node: "n1".parse().unwrap(),
        reason: DrainReason::Notice,
        kind: Some("spot_terminate".to_owned()),
        outcome: DrainOutcome::Drained,
        begun_at: UnixMillis(5),
        lead_ms: 110_000,
        units_held: 64,
        units_finished: 4,
        units_handed_back: 60,
        units_left: 0,
        tokens_preserved: 480_000,
        tokens_wasted: 0,
        last_hand_back_ms: Some(212),
        duration_ms: 3_100,
        nodes: 8,
        dollars,
        at: UnixMillis(0),
    }
}

async fn closing_report_is_kept_once_and_the_newest_comes_first(world: World) {
    for (request_id, dollars) in [("a", None), ("b", Some(0.25)), ("a", None)] {
        world.queue.add_report(closing(request_id, dollars)).await.unwrap();
    }
    let reports = world.queue.reports(10).await.unwrap();
    assert_eq!(reports.len(), 2);
    assert!(reports.iter().all(|report| report.at > UnixMillis(0)));
    let read: Vec<ClosingReport> =
        reports.into_iter().map(|report| ClosingReport { at: UnixMillis(0), ..report }).collect();
    assert_eq!(read, [closing("b", Some(0.25)), closing("a", None)]);
    assert_eq!(world.queue.reports(1).await.unwrap().len(), 1);
}

async fn checkpoint_is_pending_until_its_request_is_confirmed(world: World) {
    let checkpoint = async || world.queue.view().await.unwrap().checkpoint;
    assert!(!checkpoint().await.is_pending());
    let asked_at = world.queue.request_checkpoint().await.unwrap();
    let asked = checkpoint().await;
    assert!(asked.is_pending());
    assert_eq!(asked.requested, Some(asked_at));
    let view = world.queue.view().await.unwrap();
    assert!(view.trainer.is_none(), "a request is no report of the trainer");
    world.queue.confirm_checkpoint(asked.requested.unwrap()).await.unwrap();
    assert!(!checkpoint().await.is_pending());
    let trainer = TrainerRecord {
        phase: TrainerPhase::Train,
        step: 1,
        groups_per_step: 8,
        nodes: None,
        incarnation: None,
        heartbeat: UnixMillis(0),
    };
    world.queue.put_trainer(trainer).await.unwrap();
    assert_eq!(checkpoint().await.confirmed, asked.requested, "a report takes nothing away");
}

async fn lifecycle_action_stands_until_it_is_removed(world: World) {
    let record = LifecycleRecord {
        instance_id: "i-1".to_owned(),
        group: "rollout-a".to_owned(),
        hook: "drain".to_owned(),
        token: None,
        seen_at: UnixMillis(0),
    };
    world.queue.put_lifecycle(0, record.clone()).await.unwrap();
    let standing = world.queue.view().await.unwrap().lifecycles;
    assert_eq!(standing.len(), 1);
    assert_eq!(LifecycleRecord { seen_at: UnixMillis(0), ..standing[0].clone() }, record);
    assert!(standing[0].seen_at > UnixMillis(0));
    world.queue.remove_lifecycle(0, "i-1").await.unwrap();
    assert!(world.queue.view().await.unwrap().lifecycles.is_empty());
}

async fn straggler_is_told_to_its_replica_until_it_is_taken_back(world: World) {
    let replica: ReplicaId = "ep-1".parse().unwrap();
    let record = StragglerRecord { replica: replica.clone(), share: 0.5, named_at: UnixMillis(0) };
    world.queue.put_straggler(0, record.clone()).await.unwrap();
    let told = world.queue.replica_view(&replica).await.unwrap().straggler.unwrap();
    assert!(told.named_at > UnixMillis(0), "the store's clock");
    assert_eq!(StragglerRecord { named_at: UnixMillis(0), ..told.clone() }, record);
    assert_eq!(world.queue.view().await.unwrap().stragglers, [told]);
    let other = "ep-2".parse().unwrap();
    assert_eq!(world.queue.replica_view(&other).await.unwrap().straggler, None);
    world.queue.remove_straggler(0, &replica).await.unwrap();
    assert!(world.queue.view().await.unwrap().stragglers.is_empty());
}

async fn change_of_control_keys_wakes_those_who_wait_for_it(world: World) {
    let queue = world.queue.clone();
    let woken = tokio::spawn(async move { queue.woken(Hint::Control).await });
    // Whoever listens late has missed a hint: it is given again and again.
    let telling = async {
        while !woken.is_finished() {
            world.queue.request_drain(request("a", DrainReason::Operator, 600)).await.unwrap();
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, telling).await.expect("woken");
}

#[tokio::test]
async fn unreadable_record_hides_no_other() {
    let redis = ebbtide_harness::require!(ebbtide_harness::Redis::start().await);
    let port = ebbtide_queue::redis::RedisPort::connect(options(&redis.url(), 1)).await.unwrap();
    let queue = ebbtide_queue::client::WorkQueue::new(std::sync::Arc::new(port));
    queue.put_node(node("n1")).await.unwrap();
    queue.put_node(node("n2")).await.unwrap();
    let client = redis::Client::open(redis.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let mut overwrite = redis::cmd("HSET");
    overwrite.arg("{run-1:c}:node:n1").arg("state").arg("of a later version");
    overwrite.query_async::<u64>(&mut connection).await.unwrap();
    let nodes = queue.view().await.unwrap().nodes;
    assert_eq!(nodes.iter().map(|node| node.node.as_str()).collect::<Vec<_>>(), ["n2"]);

    // A hold that makes no sense is a hold: somebody wanted one.
    let record = HoldRecord {
        role: "trainer".to_owned(),
        until: UnixMillis(1),
        reason: "maintenance".to_owned(),
        who: "operator".to_owned(),
    };
    queue.put_hold(record).await.unwrap();
    let mut hold = redis::cmd("HSET");
    hold.arg("{run-1:c}:hold:trainer").arg("until").arg("tomorrow");
    hold.query_async::<u64>(&mut connection).await.unwrap();
    let view = queue.view().await.unwrap();
    let [hold] = &view.holds[..] else { panic!("one hold: {:?}", view.holds) };
    assert!(hold.role == "trainer" && hold.until > view.now, "{hold:?}");
}
