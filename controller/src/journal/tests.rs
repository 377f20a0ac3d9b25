//! Laws of the journal.

use std::path::Path;

use ebbtide_core::journal::{Decoder, Outcome, RecordedAction};
use ebbtide_core::observation::{Observation, OthersAtWork, Signal};
use ebbtide_core::scale::Action;
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::client::MemoryPort;
use ebbtide_queue::memory::ShardSettings;
use serde_json::json;
use std::sync::Arc;

use super::*;

fn record(tick: u64, outcomes: &[Outcome]) -> Record {
    let unknown = || Signal::unknown("nobody looked");
    let recorded = |outcome: &Outcome| RecordedAction {
        action: Action::Raise { pool: "spot".parse().expect("a name"), from: 0, to: 1 },
        outcome: outcome.clone(),
    };
    Record {
        answered: Vec::new(),
        is_first: tick == 0,
        role: Role::Rollout,
        mode: "act".to_owned(),
        generation: 1,
        running: Some(0),
        wish: Some(3),
        desired: Some(3),
        actions: outcomes.iter().map(recorded).collect(),
        reasons: vec!["pace is not measured yet".to_owned()],
        bottleneck: String::new(),
        held: None,
        trainer: None,
        observation: Observation {
            now: UnixMillis(1_000 + tick),
            ready: unknown(),
            in_flight: unknown(),
            environment_waiting: unknown(),
            reward_ready: unknown(),
            reward_in_flight: unknown(),
            completed: unknown(),
            buffer_groups: unknown(),
            buffer_taken: unknown(),
            oldest_ready_age: Signal::unknown("nobody looked"),
            trainer: Signal::unknown("nobody looked"),
            trainer_resize: None,
            trainer_resize_ended: None,
            trainer_pool: None,
            policy_version: Signal::unknown("nobody looked"),
            replicas: Signal::unknown("nobody looked"),
            pools: Vec::new(),
            others_at_work: Signal::fresh(OthersAtWork::default()),
            gone: Default::default(),
            others_dollars_per_hour: None,
            is_cost_of_others_unknown: false,
            service: None,
        },
    }
}

fn read(path: &Path) -> Vec<Record> {
    let mut decoder = Decoder::default();
    let text = std::fs::read_to_string(path).expect("written");
    text.lines().map(|line| decoder.decode(line).expect("a record").expect("whole")).collect()
}

fn queue() -> WorkQueue {
    WorkQueue::new(Arc::new(MemoryPort::new(1, ShardSettings::default(), || UnixMillis(1))))
}

#[test]
fn only_news_is_told_and_quiet_is_told_now_and_then() {
    let mut news = News::default();
    let observed = json!({});
    let mut lines = |outcomes: &[Outcome], times: u64| {
        (0..times).filter_map(|tick| news.line(&record(tick, outcomes), &observed)).count()
    };
    assert_eq!(lines(&[Outcome::Recommended], 10), 1, "a recommendation that stands is no news");
    assert_eq!(lines(&[Outcome::Done], 2), 2, "what was done is always told");
    assert_eq!(lines(&[], 60), 1);
    assert_eq!(lines(&[], 1), 1, "quiet is told as well");
    let actions = record(0, &[Outcome::Done]).actions;
    let answered = Record { answered: actions, ..record(0, &[]) };
    let line = news.line(&answered, &observed).expect("what was answered late is told");
    assert!(
        line.contains(r#""answered":[{"action":"raise pool spot from 0 to 1","outcome":"done"}]"#)
    );
}

#[tokio::test]
async fn every_tick_is_on_record_in_file_and_stream() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal.jsonl");
    let queue = queue();
    let mut written = Vec::new();
    for process in 0..2 {
        let mut journal = Journal::new(Some(path.clone()));
        for tick in 0..200 {
            let record = record(tick, if tick % 7 == process { &[Outcome::Done] } else { &[] });
            journal.record(&record, &json!({}), &queue).await;
            written.push(record);
        }
    }
    assert_eq!(read(&path), written);
    let mut decoder = Decoder::default();
    let lines = queue.journal(1_000).await.expect("memory");
    let lines = lines.iter().rev().filter_map(|line| decoder.decode(&line.line).expect("read"));
    assert_eq!(lines.last().as_ref(), written.last());
}

#[tokio::test]
async fn passive_controller_writes_nothing_into_the_stream() {
    let queue = queue();
    let mut journal = Journal::new(None);
    let passive = Record { generation: 0, ..record(0, &[]) };
    journal.record(&passive, &json!({}), &queue).await;
    assert!(queue.journal(10).await.expect("memory").is_empty());
}

#[test]
fn stream_keeps_what_fits_by_the_lines_that_lie_in_it() {
    let mut stream = Stream::default();
    (0..20_000).for_each(|_| stream.note(1_000));
    assert_eq!(stream.kept(), 33_554);
    // The fleet has grown: soon nothing is left of the short ones.
    (0..320).for_each(|_| stream.note(100_000));
    let kept = stream.kept();
    assert!((1_800..1_900).contains(&kept), "320 long ones and the short ones beside them: {kept}");
    (0..100).for_each(|_| stream.note(100_000));
    assert_eq!(stream.kept(), 335);
    (0..100).for_each(|_| stream.note(10_000_000));
    assert_eq!(stream.kept(), 240, "two whole ones and what is between them");
}
