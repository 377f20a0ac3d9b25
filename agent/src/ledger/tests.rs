//! Laws of the ledger: what is written when, and what the answers mean.

use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::fabric::FabricVerdict;
use ebbtide_core::ids::{FencingToken, PolicyVersion};
use ebbtide_core::sample::{Chunk, Finish, FinishReason};
use ebbtide_core::work::PromptGroup;
use ebbtide_queue::client::QueueError;
use ebbtide_queue::reply::{Grant, WriteReply};

use super::*;

const PLENTY: usize = 100;

fn terms() -> AdmissionTerms {
    AdmissionTerms {
        engine: 0,
        engine_name: "vllm/0".to_owned(),
        models: vec!["tiny".to_owned()],
        engine_version: PolicyVersion(3),
        run_version: PolicyVersion(3),
        holder: "n/b/agent-p".parse().expect("valid"),
        fabric: FabricVerdict::NotApplicable,
    }
}

fn grant(slot: u16) -> Grant {
    let group = PromptGroup::new("g".parse().expect("valid"), 8, vec![1, 2, 3]);
    Grant {
        unit: group.unit_id(slot),
        fencing_token: FencingToken(u64::from(slot) + 1),
        group: Arc::new(group),
        partial: Vec::new(),
        finish: None,
        attempts: 0,
    }
}

/// A ledger with units 0 to `count`, each with a few tokens.
fn working(count: u16) -> (Ledger, Vec<RequestId>, Instant) {
    let now = Instant::now();
    let mut ledger = Ledger::default();
    let requests = (0..count).map(|slot| {
        let Admission::Stream(job) = ledger.admit(grant(slot), &terms(), now) else {
            panic!("a fresh unit needs a stream")
        };
        receive(&mut ledger, &job.call.request, 4, now);
        job.call.request.clone()
    });
    let requests = requests.collect();
    (ledger, requests, now)
}

fn receive(ledger: &mut Ledger, request: &RequestId, tokens: usize, now: Instant) -> Received {
    let (ids, logprobs) = (vec![9; tokens], vec![-1.0; tokens]);
    ledger.receive(request, &ids, &logprobs, PLENTY, (now, UnixMillis(1)))
}

fn unit(slot: u16) -> UnitId {
    grant(slot).unit
}

fn stop() -> Then {
    Then::Complete(Finish { reason: FinishReason::Stop, stop_reason: None })
}

fn end(ledger: &mut Ledger, request: &RequestId, then: Then) {
    ledger.end_stream(request, StreamResult { then, spans: Vec::new() });
}

fn leave(write_by: Instant) -> Leave {
    Leave { why: HandBackCause::Notice.into(), write_by }
}

#[test]
fn version_and_offset_of_every_stream_are_noted_at_a_change_of_weights() {
    let (mut ledger, requests, now) = working(3);
    receive(&mut ledger, &requests[1], 2, now);
    ledger.leave([unit(2)].iter(), leave(now), now);
    let going_on = ledger.note_engine_version(0, PolicyVersion(4), leave(now), now);
    assert_eq!(going_on, [(unit(0), 4), (unit(1), 6)]);
    receive(&mut ledger, &requests[1], 1, now);
    let (writes, _) = ledger.collect(true, PLENTY, now);
    let write = writes.iter().find(|write| write.unit == unit(1)).expect("it has tokens");
    let spans: Vec<_> = write.tail.iter().map(|it| (it.weight_version.0, it.end())).collect();
    assert_eq!(spans, [(3, 6), (4, 7)], "a dead stream would tell no versions any more");
}

fn end_telling(ledger: &mut Ledger, request: &RequestId, spans: &[(&str, u32, u32)]) -> bool {
    let spans = spans.iter().map(|(label, start, end)| WeightSpan {
        label: (*label).to_owned(),
        start: *start,
        end: *end,
    });
    ledger.end_stream(request, StreamResult { then: stop(), spans: spans.collect() })
}

#[test]
fn finish_under_unknown_or_lower_weights_is_none_and_the_good_tokens_go_back() {
    for label in ["checkpoint-17", "2"] {
        let (mut ledger, requests, now) = working(2);
        assert!(end_telling(&mut ledger, &requests[0], &[("3", 0, 3), (label, 3, 4)]));
        assert!(!end_telling(&mut ledger, &requests[1], &[("3", 0, 4)]));
        let (writes, _) = ledger.collect(false, PLENTY, now);
        let tokens: Vec<u32> = writes.iter().map(|write| write.tail[0].len()).collect();
        assert_eq!(tokens, [3, 4], "{label}");
        assert_eq!(writes[0].then, Then::HandBack(HandBackCause::Engine.into()), "{label}");
        assert_eq!(writes[1].then, stop(), "{label}");
        assert_eq!(ledger.counts().tokens_dropped, 1, "{label}");
    }
}

#[test]
fn units_of_an_engine_in_doubt_leave_with_what_it_vouches_for() {
    let (mut ledger, requests, now) = working(3);
    let write_by = now + Duration::from_secs(1);
    assert_eq!(ledger.doubt_engine(1, leave(write_by), now), 0);
    assert_eq!(ledger.doubt_engine(0, leave(write_by), now), 3);
    assert_eq!(receive(&mut ledger, &requests[0], 2, now), Received::Kept, "its end is awaited");
    assert!(ledger.collect(true, PLENTY, now).0.is_empty(), "what is in doubt is not stored");
    assert!(end_telling(&mut ledger, &requests[0], &[("3", 0, 4), ("x", 4, 6)]));
    assert!(end_telling(&mut ledger, &requests[1], &[]));
    let (writes, _) = ledger.collect(false, PLENTY, write_by);
    let tails: Vec<u32> = writes.iter().map(|it| it.tail.iter().map(Chunk::len).sum()).collect();
    assert_eq!(tails, [4, 0, 0], "the last one did not end in time");
    assert!(writes.iter().all(|it| matches!(it.then, Then::HandBack(_))));
    assert_eq!(ledger.counts().tokens_dropped, 2 + 4 + 4);
}

#[test]
fn tokens_wait_until_they_are_due_and_ends_do_not() {
    let (mut ledger, requests, now) = working(2);
    assert!(ledger.collect(false, PLENTY, now).0.is_empty());
    end(&mut ledger, &requests[1], stop());
    let (writes, _) = ledger.collect(false, PLENTY, now);
    assert_eq!(writes.len(), 1);
    assert_eq!((&writes[0].unit, &writes[0].then), (&unit(1), &stop()));
    assert_eq!(writes[0].tail[0].len(), 4, "the end carries the last tokens");
    assert_eq!(ledger.collect(true, PLENTY, now).0.len(), 2);
    assert_eq!(receive(&mut ledger, &requests[0], PLENTY, now), Received::Plenty);
    assert_eq!(ledger.collect(false, PLENTY, now).0.len(), 2);
}

#[test]
fn unanswered_write_is_repeated_word_for_word() {
    let (mut ledger, requests, now) = working(1);
    let (first, sent) = ledger.collect(true, PLENTY, now);
    let lost = QueueError::Unavailable { what: "q".to_owned(), problem: "timeout".to_owned() };
    let settled = ledger.settle(sent, vec![Err(lost)], now);
    assert!(settled.retry.is_some());
    receive(&mut ledger, &requests[0], 2, now);
    let (second, sent) = ledger.collect(true, PLENTY, now);
    assert_eq!(second[0].tail[..1], first[0].tail);
    ledger.settle(sent, vec![Ok(WriteReply::Ok)], now);
    let counts = ledger.counts();
    assert_eq!((counts.tokens_stored, counts.tokens_waiting), (6, 0));
}

#[test]
fn units_that_leave_are_written_in_their_order_once_their_streams_end() {
    let (mut ledger, requests, now) = working(3);
    let order = [unit(2), unit(0), unit(1)];
    let write_by = now + Duration::from_secs(1);
    assert_eq!(ledger.leave(order.iter(), leave(write_by), now), 3);
    assert_eq!(ledger.leave(order.iter(), leave(write_by), now), 0, "they leave already");
    assert_eq!(ledger.streams_to_end(0, now).len(), 3);
    assert!(ledger.collect(false, PLENTY, now).0.is_empty());
    for request in &requests {
        end(&mut ledger, request, Then::HandBack(HandBackCause::Engine.into()));
    }
    let (writes, _) = ledger.collect(false, PLENTY, now);
    let units: Vec<&UnitId> = writes.iter().map(|write| &write.unit).collect();
    assert_eq!(units, [&order[0], &order[1], &order[2]]);
    assert!(writes.iter().all(|write| write.then == Then::HandBack(HandBackCause::Notice.into())));
}

#[test]
fn unit_whose_stream_does_not_end_is_handed_back_at_its_time() {
    let (mut ledger, requests, now) = working(1);
    let write_by = now + Duration::from_millis(100);
    ledger.leave_all(leave(write_by), now);
    assert_eq!(ledger.next_write_by(), Some(write_by));
    let (writes, sent) = ledger.collect(false, PLENTY, write_by);
    assert_eq!(writes[0].then, Then::HandBack(HandBackCause::Notice.into()));
    ledger.settle(sent, vec![Ok(WriteReply::Ok)], write_by);
    assert_eq!(ledger.held(), 0);
    assert!(!ledger.is_empty(), "the stream is still open");
    assert_eq!(receive(&mut ledger, &requests[0], 1, write_by), Received::Unwanted);
    assert_eq!(ledger.counts().tokens_dropped, 1);
    end(&mut ledger, &requests[0], Then::HandBack(HandBackCause::Engine.into()));
    assert!(ledger.is_empty());
}

#[test]
fn finish_beats_leaving() {
    let (mut ledger, requests, now) = working(1);
    ledger.leave_all(leave(now + Duration::from_secs(1)), now);
    end(&mut ledger, &requests[0], stop());
    let (writes, sent) = ledger.collect(false, PLENTY, now);
    assert_eq!(writes[0].then, stop());
    ledger.settle(sent, vec![Ok(WriteReply::AlreadyDone)], now);
    assert_eq!(ledger.counts().units_completed, 1, "the lost reply was to the same write");
}

#[test]
fn tokens_of_a_unit_that_others_ended_are_not_counted_as_stored() {
    let (mut ledger, requests, now) = working(2);
    end(&mut ledger, &requests[0], stop());
    let (_, sent) = ledger.collect(false, PLENTY, now);
    ledger.settle(sent, vec![Ok(WriteReply::AlreadyDone)], now);
    let counts = ledger.counts();
    assert_eq!((counts.tokens_stored, counts.tokens_dropped), (0, 4), "its group had failed");
    end(&mut ledger, &requests[1], stop());
    let lost = QueueError::Unavailable { what: "q".to_owned(), problem: "timeout".to_owned() };
    let (_, sent) = ledger.collect(false, PLENTY, now);
    ledger.settle(sent, vec![Err(lost)], now);
    let (_, sent) = ledger.collect(false, PLENTY, now);
    ledger.settle(sent, vec![Ok(WriteReply::AlreadyDone)], now);
    let counts = ledger.counts();
    assert_eq!((counts.tokens_stored, counts.tokens_dropped), (4, 4), "the reply had got lost");
}

#[test]
fn fenced_unit_is_dropped_and_its_stream_ended() {
    let (mut ledger, requests, now) = working(2);
    let (_, sent) = ledger.collect(true, PLENTY, now);
    let settled = ledger.settle(sent, vec![Ok(WriteReply::Fenced), Ok(WriteReply::Ok)], now);
    assert_eq!((settled.lost, ledger.held()), (1, 1));
    assert_eq!(ledger.streams_to_end(0, now), [requests[0].clone()]);
    let counts = ledger.counts();
    assert_eq!((counts.tokens_dropped, counts.tokens_stored), (4, 4));
}

#[test]
fn refused_tail_goes_and_the_unit_goes_back_as_the_queue_has_it() {
    for refusal in [WriteReply::BadVersion, WriteReply::Offset(1)] {
        let (mut ledger, requests, now) = working(1);
        let (_, sent) = ledger.collect(true, PLENTY, now);
        ledger.settle(sent, vec![Ok(refusal)], now);
        assert_eq!(receive(&mut ledger, &requests[0], 3, now), Received::Unwanted);
        end(&mut ledger, &requests[0], stop());
        let (writes, _) = ledger.collect(false, PLENTY, now);
        assert!(writes[0].tail.is_empty(), "{refusal:?}");
        assert!(matches!(writes[0].then, Then::HandBack(_)), "{refusal:?}");
    }
}

#[test]
fn lost_lease_leaves_an_end_that_is_being_written_to_its_answer() {
    let (mut ledger, requests, now) = working(2);
    end(&mut ledger, &requests[0], stop());
    assert!(!ledger.lose(&unit(0), grant(0).fencing_token, now));
    assert!(ledger.lose(&unit(1), grant(1).fencing_token, now));
    assert_eq!(ledger.held(), 1);
}

#[test]
fn unit_for_another_model_goes_back_without_a_call() {
    let mut ledger = Ledger::default();
    let now = Instant::now();
    let mut other = grant(0);
    let mut group = (*other.group).clone();
    group.model_id = "huge".to_owned();
    other.group = Arc::new(group);
    let Admission::WrongModel(why) = ledger.admit(other, &terms(), now) else {
        panic!("this engine does not serve it")
    };
    assert!(why.contains("huge") && why.contains("tiny"), "{why}");
    let (writes, _) = ledger.collect(false, PLENTY, now);
    assert_eq!(writes[0].then, Then::HandBack(HandBackCause::Engine.into()));
}

#[test]
fn engine_has_a_stream_until_it_ends_and_a_unit_until_it_is_written() {
    let (mut ledger, requests, now) = working(2);
    let has = |ledger: &Ledger| {
        let EngineHeld { streams, begun, units } = ledger.held_on(0);
        (streams, begun, units)
    };
    let Admission::Stream(_) = ledger.admit(grant(2), &terms(), now) else {
        panic!("a fresh unit needs a stream")
    };
    assert_eq!((has(&ledger), ledger.held_on(1)), ((3, 2, 3), EngineHeld::default()));
    end(&mut ledger, &requests[0], stop());
    assert_eq!(has(&ledger), (2, 1, 3), "its place is free at once");
    let (_, sent) = ledger.collect(false, PLENTY, now);
    ledger.settle(sent, vec![Ok(WriteReply::Ok)], now);
    assert_eq!(has(&ledger), (2, 1, 2));
    ledger.lose(&unit(1), grant(1).fencing_token, now);
    assert_eq!(has(&ledger), (2, 1, 1), "its stream is still open");
}

/// Unit 0 under a token that is newer than that of [`grant`].
fn regrant() -> Grant {
    Grant { fencing_token: FencingToken(100), ..grant(0) }
}

#[test]
fn unit_granted_anew_forgets_the_older_lease_with_its_tokens() {
    let (mut ledger, requests, now) = working(1);
    let Admission::Stream(job) = ledger.admit(regrant(), &terms(), now) else {
        panic!("it needs a stream of its own")
    };
    let counts = ledger.counts();
    assert_eq!((counts.tokens_waiting, counts.tokens_dropped, counts.units_lost), (0, 4, 1));
    assert_eq!(ledger.streams_to_end(0, now), requests);
    assert!(ledger.leaving_why(&requests[0]).is_some(), "its end says nothing of the engine");
    assert_eq!(receive(&mut ledger, &requests[0], 2, now), Received::Unwanted);
    end(&mut ledger, &requests[0], stop());
    assert_eq!(receive(&mut ledger, &job.call.request, 3, now), Received::Kept);
    let (writes, _) = ledger.collect(true, PLENTY, now);
    assert_eq!(writes.len(), 1);
    assert_eq!((writes[0].fencing_token, &writes[0].then), (FencingToken(100), &Then::Continue));
    assert_eq!(ledger.waiting_tokens(), 3);
}

#[test]
fn answers_to_an_older_lease_leave_the_newer_one_alone() {
    for reply in [WriteReply::Fenced, WriteReply::Ok, WriteReply::Offset(1)] {
        let (mut ledger, _, now) = working(1);
        let (renewals, (_, sent)) =
            (ledger.renewals(Duration::from_secs(1), |_| false), ledger.collect(true, PLENTY, now));
        let Admission::Stream(job) = ledger.admit(regrant(), &terms(), now) else {
            panic!("it needs a stream of its own")
        };
        receive(&mut ledger, &job.call.request, 3, now);
        let settled = ledger.settle(sent, vec![Ok(reply)], now);
        assert_eq!((settled.lost, settled.retry), (0, None), "{reply:?}");
        assert!(!ledger.lose(&renewals[0].unit, renewals[0].fencing_token, now));
        assert_eq!((ledger.held(), ledger.waiting_tokens()), (1, 3), "{reply:?}");
        assert!(ledger.lose(&unit(0), FencingToken(100), now));
    }
}

#[test]
fn closed_ledger_stays_as_it_is() {
    let (mut ledger, requests, now) = working(1);
    let before = ledger.counts();
    ledger.close();
    assert_eq!(receive(&mut ledger, &requests[0], 5, now), Received::Unwanted);
    end(&mut ledger, &requests[0], stop());
    assert_eq!(ledger.counts(), before);
    assert_eq!(ledger.held_on(0).streams, 1);
}

#[test]
fn units_that_wait_in_an_engine_are_told_the_youngest_first() {
    let (mut ledger, _, now) = working(1);
    let later = |ms| now + Duration::from_millis(ms);
    for slot in 1..4 {
        ledger.admit(grant(slot), &terms(), later(u64::from(slot)));
    }
    assert_eq!(ledger.unbegun(0, later(4)), [unit(3), unit(2), unit(1)]);
    assert_eq!(ledger.unbegun(0, later(2)), [unit(1)]);
    assert!(ledger.unbegun(1, later(4)).is_empty());
    ledger.leave([unit(2)].iter(), leave(now), now);
    assert_eq!(ledger.unbegun(0, later(4)), [unit(3), unit(1)]);
}
