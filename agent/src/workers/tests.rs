//! Laws of what workers hold: who may write what, what goes back when, and what answers mean.

use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::fabric::FabricVerdict;
use ebbtide_core::ids::PolicyVersion;
use ebbtide_core::sample::{Finish, FinishReason};
use ebbtide_core::time::UnixMillis;
use ebbtide_core::work::{PromptGroup, ResumePolicy};
use ebbtide_queue::client::QueueError;
use ebbtide_queue::command::{HandBackCause, Stage, Then, UnitWrite, Waiting};
use ebbtide_queue::reply::{Grant, WriteReply};
use tokio::time::Instant;

use super::writing::{Sent, WriteTerms};
use super::*;
use crate::ledger::Leave;

const TTL: Duration = Duration::from_secs(15);

fn name(text: &str) -> WorkerName {
    text.parse().expect("valid")
}

fn call(worker: &str, limit: usize) -> LeaseCall {
    LeaseCall {
        worker: name(worker),
        stage: Stage::Generate,
        engine: "env/1".to_owned(),
        version: PolicyVersion(3),
        limit,
        request_id: Some("r1".to_owned()),
    }
}

fn grant(slot: u16) -> Grant {
    let mut group = PromptGroup::new("g".parse().expect("valid"), 200, vec![1, 2, 3]);
    group.max_lag = 2;
    let unit = group.unit_id(slot);
    let fencing_token = FencingToken(u64::from(slot) + 1);
    let group = Arc::new(group);
    Grant { unit, fencing_token, group, partial: Vec::new(), finish: None, attempts: 0 }
}

fn key(slot: u16) -> LeaseKey {
    let Grant { unit, fencing_token, .. } = grant(slot);
    LeaseKey { unit, fencing_token }
}

/// A worker `a` that has been given units 0 to `count`.
fn working(count: u16) -> (Workers, Instant) {
    let now = Instant::now();
    let mut workers = Workers::default();
    let call = call("a", usize::from(count));
    workers.room(&call.worker, TTL, now).expect("room");
    let keys = workers.admit((0..count).map(grant).collect(), &call, PolicyVersion(3), now);
    assert_eq!(
        workers.deliver(&call.worker, &keys, None).map(|grants| grants.len()),
        Ok(keys.len())
    );
    (workers, now)
}

fn terms(at: u64) -> WriteTerms {
    WriteTerms {
        holder: "n/b/agent-p".parse().expect("valid"),
        fabric: FabricVerdict::NotApplicable,
        wall_now: UnixMillis(at),
        drain_why: None,
    }
}

fn tokens(offset: u32, count: usize) -> Option<NewTokens> {
    let (token_ids, logprobs) = (vec![9; count], vec![-1.0; count]);
    Some(NewTokens { offset, weight_version: None, token_ids, logprobs })
}

fn begin(
    workers: &mut Workers,
    worker: &str,
    slot: u16,
    tokens: Option<NewTokens>,
    then: Then,
    now: Instant,
) -> Option<(UnitWrite, Sent)> {
    let write = WorkerWrite { key: key(slot), tokens, then };
    workers.begin_write(&name(worker), write, &terms(5), now)
}

/// Carries a write out, with this answer of the queue.
fn write(
    workers: &mut Workers,
    slot: u16,
    tokens: Option<NewTokens>,
    then: Then,
    reply: Result<WriteReply, QueueError>,
    now: Instant,
) -> Answer {
    let (_, sent) = begin(workers, "a", slot, tokens, then, now).expect("its own unit");
    workers.settle(vec![sent], vec![reply], now).0.remove(0)
}

fn stop() -> Then {
    Then::Complete(Finish { reason: FinishReason::Stop, stop_reason: None })
}

fn away() -> QueueError {
    QueueError::Unavailable { what: "q".to_owned(), problem: "timeout".to_owned() }
}

fn leave(write_by: Instant) -> Leave {
    Leave { why: HandBackCause::Notice.into(), write_by }
}

/// What the agent hands back now, all answered with OK.
fn hand_back(workers: &mut Workers, now: Instant) -> usize {
    workers.take_due(TTL, now);
    let sent: Vec<Sent> = workers.hand_backs().into_iter().map(|(_, sent)| sent).collect();
    let replies = sent.iter().map(|_| Ok(WriteReply::Ok)).collect();
    workers.settle(sent, replies, now).1.settled.handed_back.len()
}

#[test]
fn gate_that_closes_between_grant_and_answer_lets_nothing_out() {
    let now = Instant::now();
    let mut workers = Workers::default();
    workers.room(&name("a"), TTL, now).expect("room");
    let keys = workers.admit(vec![grant(0), grant(1)], &call("a", 2), PolicyVersion(3), now);
    let closed = Some(HandBackCause::Notice.into());
    assert_eq!(workers.deliver(&name("a"), &keys, closed), Err(HandBackCause::Notice.into()));
    assert_eq!(hand_back(&mut workers, now), 2, "at once, nobody has a tail");
    assert_eq!(workers.counts().units_handed_back[&HandBackCause::Notice], 2);
}

#[test]
fn repeated_call_is_granted_the_same_until_the_worker_shows_that_it_has_it() {
    let (mut workers, now) = working(2);
    let again = workers.granted_before(&name("a"), Some("r1")).expect("remembered");
    assert_eq!(again, [key(0), key(1)]);
    assert_eq!(workers.deliver(&name("a"), &again, None).map(|grants| grants.len()), Ok(2));
    assert!(workers.renewal(&name("a"), &key(0), Waiting::Nothing, TTL, now).is_some());
    let left = workers.deliver(&name("a"), &again, None).expect("the gate is open");
    assert_eq!(left.iter().map(|grant| grant.unit.slot).collect::<Vec<_>>(), [1]);
    for (worker, id) in [("a", Some("r2")), ("a", None), ("b", Some("r1"))] {
        assert_eq!(workers.granted_before(&name(worker), id), None, "{worker} {id:?}");
    }
}

#[test]
fn more_than_was_asked_for_or_than_the_weights_allow_goes_back_unseen() {
    let now = Instant::now();
    let mut workers = Workers::default();
    workers.room(&name("a"), TTL, now).expect("room");
    let keys = workers.admit((0..3).map(grant).collect(), &call("a", 2), PolicyVersion(3), now);
    assert_eq!(keys, [key(0), key(1)]);
    let stale = workers.admit(vec![grant(7)], &call("a", 2), PolicyVersion(6), now);
    assert!(stale.is_empty(), "version 3 lags 6 by more than 2");
    assert_eq!(hand_back(&mut workers, now), 2);
    assert_eq!(workers.held(), 2);
}

#[test]
fn limits_are_named_when_they_are_reached() {
    let (mut workers, now) = working(UNITS_PER_WORKER as u16);
    assert_eq!(workers.room(&name("a"), TTL, now), Err(TooMany::Units));
    for number in 1..WORKERS_MAX {
        workers.room(&name(&format!("w{number}")), TTL, now).expect("room");
    }
    assert_eq!(workers.room(&name("one-more"), TTL, now), Err(TooMany::Workers));
    assert!(workers.room(&name("w1"), TTL, now).is_ok(), "known ones go on");
    assert!(workers.room(&name("one-more"), TTL, now + TTL).is_ok(), "idle ones are forgotten");
    assert_eq!(workers.census().len(), 2, "but not one that holds units");
    for _ in 0..STREAMS_PER_WORKER {
        workers.open_stream(&name("a"), TTL, now).expect("a place");
    }
    assert_eq!(workers.open_stream(&name("a"), TTL, now), Err(TooMany::Streams));
    workers.close_stream(&name("a"));
    assert!(workers.open_stream(&name("a"), TTL, now).is_ok());
}

#[test]
fn repeated_tokens_are_the_same_chunk_whenever_they_come() {
    let (mut workers, now) = working(1);
    let first = WorkerWrite { key: key(0), tokens: tokens(0, 4), then: Then::Continue };
    let later = WorkerWrite { key: key(0), tokens: tokens(4, 2), then: Then::Continue };
    let at = |workers: &mut Workers, write: &WorkerWrite, wall| {
        let begun = workers.begin_write(&name("a"), write.clone(), &terms(wall), now);
        begun.expect("its own unit").0.tail
    };
    let sent = at(&mut workers, &first, 10);
    assert_ne!(at(&mut workers, &later, 20)[0].origin.started_at, sent[0].origin.started_at);
    assert_eq!(at(&mut workers, &first, 30), sent);
    assert_eq!(sent[0].weight_version, PolicyVersion(3), "that of the lease");
}

#[test]
fn tokens_are_counted_once_however_often_they_are_sent() {
    let (mut workers, now) = working(1);
    let unanswered = write(&mut workers, 0, tokens(0, 4), Then::Continue, Err(away()), now);
    assert!(unanswered.reply.is_err());
    for _ in 0..2 {
        write(&mut workers, 0, tokens(0, 4), Then::Continue, Ok(WriteReply::Ok), now);
    }
    write(&mut workers, 0, tokens(9, 1), Then::Continue, Ok(WriteReply::Offset(6)), now);
    let counts = workers.counts();
    assert_eq!((counts.tokens_received, counts.tokens_stored), (6, 6));
    write(&mut workers, 0, tokens(6, 1), stop(), Ok(WriteReply::AlreadyDone), now);
    assert_eq!((workers.counts().units_completed, workers.held()), (1, 0));
}

#[test]
fn tokens_of_a_unit_that_others_ended_are_not_counted_as_stored() {
    for then in [stop(), Then::HandBack(HandBackCause::Engine.into())] {
        let (mut workers, now) = working(2);
        let gone = Ok(WriteReply::AlreadyDone);
        write(&mut workers, 0, tokens(0, 4), then.clone(), gone.clone(), now);
        let counts = workers.counts();
        assert_eq!((counts.tokens_stored, counts.tokens_dropped), (0, 4), "its group had failed");
        assert_eq!((counts.tokens_received, workers.held()), (4, 1));
        write(&mut workers, 1, tokens(0, 4), then.clone(), Err(away()), now);
        write(&mut workers, 1, tokens(0, 4), then, gone, now);
        let counts = workers.counts();
        assert_eq!((counts.tokens_stored, counts.tokens_dropped), (4, 4), "the reply had got lost");
        assert_eq!((counts.tokens_received, workers.held()), (8, 0));
    }
}

#[test]
fn worker_writes_to_its_own_units_only() {
    let (mut workers, now) = working(1);
    assert!(begin(&mut workers, "b", 0, tokens(0, 1), Then::Continue, now).is_none());
    assert!(workers.renewal(&name("b"), &key(0), Waiting::Nothing, TTL, now).is_none());
    // Nobody's unit here: the queue is asked, and its answer changes nothing.
    let (_, sent) = begin(&mut workers, "b", 5, None, stop(), now).expect("left to the queue");
    let (answers, outcome) = workers.settle(vec![sent], vec![Ok(WriteReply::Fenced)], now);
    assert!(matches!(answers[0].reply, Ok(WriteReply::Fenced)));
    assert_eq!((outcome.settled.lost, workers.held(), workers.counts().units_lost), (0, 1, 0));
}

#[test]
fn silent_unit_goes_back_once_and_its_worker_is_fenced() {
    let (mut workers, now) = working(2);
    assert_eq!(workers.next_due(TTL), Some(now + TTL));
    let later = now + TTL - Duration::from_millis(1);
    workers.renewal(&name("a"), &key(1), Waiting::Environment, TTL, later).expect("held");
    assert_eq!(hand_back(&mut workers, now + TTL), 1, "only the one that was not named");
    assert_eq!(hand_back(&mut workers, now + TTL), 0);
    assert_eq!(workers.renewals(TTL).len(), 1);
    assert_eq!(workers.renewals(TTL)[0].waiting, Waiting::Environment);
    assert!(workers.renewal(&name("a"), &key(0), Waiting::Nothing, TTL, later).is_none());
}

#[test]
fn unanswered_hand_back_is_repeated_and_nobody_else_writes_meanwhile() {
    let (mut workers, now) = working(1);
    workers.take_due(TTL, now + TTL);
    for _ in 0..2 {
        let (writes, sent): (Vec<_>, Vec<_>) = workers.hand_backs().into_iter().unzip();
        assert_eq!(writes[0].then, Then::HandBack(HandBackCause::Engine.into()));
        let (_, outcome) = workers.settle(sent, vec![Err(away())], now);
        assert!(outcome.settled.retry.is_some());
        assert!(begin(&mut workers, "a", 0, tokens(0, 1), Then::Continue, now).is_none());
        assert!(!workers.lose(&key(0).unit, key(0).fencing_token), "its answer decides");
    }
    assert_eq!(hand_back(&mut workers, now), 1);
}

#[test]
fn released_unit_takes_its_tail_and_then_goes_back() {
    let (mut workers, now) = working(3);
    let by = now + TAIL_LIMIT;
    assert_eq!(workers.release_all(leave(by)), 3);
    assert_eq!(workers.release_all(leave(by)), 0, "they go already");
    let answer = write(&mut workers, 0, tokens(0, 4), Then::Continue, Ok(WriteReply::Ok), now);
    assert_eq!(answer.release_by, Some(by));
    let tail = tokens(4, 1);
    let (sent, _) =
        begin(&mut workers, "a", 1, tail, Then::HandBack(HandBackCause::Engine.into()), now)
            .expect("own");
    assert_eq!(sent.then, Then::HandBack(HandBackCause::Notice.into()), "the agent asked for it");
    assert_eq!(hand_back(&mut workers, by - Duration::from_millis(1)), 0);
    assert_eq!(hand_back(&mut workers, by), 2, "the write under way is waited for");
    workers.hasten(now);
    assert_eq!(workers.held(), 1);
}

#[test]
fn deadline_that_comes_closer_hastens_what_goes_already() {
    let (mut workers, now) = working(1);
    workers.release_all(leave(now + TAIL_LIMIT));
    workers.hasten(now);
    assert_eq!(workers.next_due(TTL), Some(now));
    assert_eq!(hand_back(&mut workers, now), 1);
}

#[test]
fn plan_sees_working_units_with_the_speed_of_their_transfers() {
    let (mut workers, now) = working(2);
    for step in 0..5_u32 {
        let at = now + Duration::from_secs(1) * step;
        write(&mut workers, 0, tokens(step * 50, 50), Then::Continue, Ok(WriteReply::Ok), at);
    }
    let flight = workers.in_flight(now + Duration::from_secs(4));
    assert_eq!(flight.len(), 2);
    assert_eq!(flight[0].tokens, 250);
    for unit in &flight {
        let speed = unit.slow_tokens_per_second.expect("the other one's has to do");
        assert!((speed - 50.0).abs() < 1.0, "{speed}");
    }
    workers.release([&key(1).unit].into_iter(), leave(now));
    assert_eq!(workers.in_flight(now).len(), 1, "what goes is not planned again");
}

#[test]
fn risen_version_lets_only_those_go_that_restart() {
    let (mut workers, now) = working(1);
    let mut restarting = grant(1);
    let mut group = (*restarting.group).clone();
    group.resume_policy = ResumePolicy::RestartIfNewer;
    restarting.group = Arc::new(group);
    let keys = workers.admit(vec![restarting], &call("a", 1), PolicyVersion(3), now);
    workers.deliver(&name("a"), &keys, None).expect("open");
    let leave = Leave { why: HandBackCause::Weights.into(), write_by: now };
    assert_eq!(workers.note_run_version(PolicyVersion(3), leave), 0);
    assert_eq!(workers.note_run_version(PolicyVersion(4), leave), 1);
    assert_eq!(hand_back(&mut workers, now), 1);
    assert_eq!(workers.counts().units_handed_back[&HandBackCause::Weights], 1);
}

#[test]
fn refusals_that_change_nothing_leave_the_unit_and_fences_take_it() {
    let (mut workers, now) = working(4);
    for reply in [WriteReply::BadVersion, WriteReply::Busy, WriteReply::WrongStage] {
        write(&mut workers, 0, tokens(0, 1), Then::Continue, Ok(reply), now);
        assert_eq!(workers.held(), 4, "{reply:?}");
    }
    for (slot, reply) in
        [(0, WriteReply::Fenced), (1, WriteReply::Unknown), (2, WriteReply::AlreadyDone)]
    {
        write(&mut workers, slot, tokens(0, 1), Then::Continue, Ok(reply), now);
    }
    assert_eq!((workers.held(), workers.counts().units_lost), (1, 3));
}

#[test]
fn unit_granted_anew_forgets_the_older_lease() {
    let (mut workers, now) = working(1);
    let (_, sent) =
        begin(&mut workers, "a", 0, tokens(0, 4), Then::Continue, now).expect("its own unit");
    let newer = Grant { fencing_token: FencingToken(100), ..grant(0) };
    workers.admit(vec![newer], &call("b", 1), PolicyVersion(3), now);
    let (_, outcome) = workers.settle(vec![sent], vec![Ok(WriteReply::Fenced)], now);
    assert_eq!((outcome.settled.lost, workers.held()), (0, 1));
    assert_eq!(workers.counts().units_lost, 1);
    assert!(!workers.lose(&key(0).unit, key(0).fencing_token));
    assert!(workers.lose(&key(0).unit, FencingToken(100)));
}
