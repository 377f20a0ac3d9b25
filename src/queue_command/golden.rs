//! The words of `ebbtide queue`, each as an operator sees it.

use std::time::Duration;

use ebbtide_core::fabric::FabricVerdict;
use ebbtide_core::ids::{FencingToken, PolicyVersion};
use ebbtide_core::sample::{Chunk, Origin};
use ebbtide_core::staleness::PartialVersions;
use ebbtide_core::time::UnixMillis;
use ebbtide_core::work::PromptGroup;
use ebbtide_queue::command::Stage;
use ebbtide_queue::control::{TrainerPhase, TrainerRecord};
use ebbtide_queue::reply::Failure;
use ebbtide_queue::state::{
    GroupTrace, SlotState, SlotSummary, UnitEvent, UnitSnapshot, UnitTrace,
};
use ebbtide_queue::status::{ShardStatus, TokenCounts};

use super::arguments::Subject;
use super::check::{self, Outcome};
use super::examine::{Examination, Problem};
use super::lag::Lags;
use super::status_view::StatusView;
use super::{failures, peek, tokens, trace};

/// 2026-11-29 18:00:00 UTC.
const START: u64 = 1_795_975_200_000;

fn at(seconds: f64) -> UnixMillis {
    UnixMillis(START.saturating_add_signed((seconds * 1000.0) as i64))
}

fn unit(slot: u16, state: SlotState) -> UnitSnapshot {
    UnitSnapshot {
        unit: format!("g17.{slot:04x}").parse().expect("valid"),
        state,
        stage: Stage::Generate,
        tokens: 0,
        versions: None,
        holder: None,
        fencing_token: FencingToken(0),
        attempts: 0,
        infra_attempts: 0,
        hand_backs: 0,
        is_sealed: false,
        enqueued_at: at(0.0),
        leased_at: None,
        lease_deadline: None,
    }
}

fn with_tokens(slot: u16, state: SlotState, tokens: u32, first: u64, last: u64) -> UnitSnapshot {
    let versions = PartialVersions { first: PolicyVersion(first), last: PolicyVersion(last) };
    UnitSnapshot { tokens, versions: Some(versions), ..unit(slot, state) }
}

fn status() -> ShardStatus {
    ShardStatus {
        enqueued: 4096,
        completed: 2772,
        dead: 4,
        cancelled: 4,
        groups_sealed: 690,
        groups_failed: 2,
        ready: 1204,
        leased: 96,
        reward_ready: 12,
        reward_leased: 4,
        sealed_waiting: 18,
        sealed_taken: 4,
        oldest_ready_at: Some(at(0.0)),
        hand_backs: [("notice".to_owned(), 45), ("agent_restart".to_owned(), 4)].into(),
        lease_expiries: 20,
        failure_records: 2,
        tokens: TokenCounts {
            generated: 1_127_751,
            accepted: 1_000_222,
            preserved: 8246,
            wasted: [("stale".to_owned(), 12_000), ("group_failed".to_owned(), 1000)].into(),
        },
        leased_by_node: [
            ("node-1".parse().expect("valid"), 32),
            ("node-2".parse().expect("valid"), 64),
        ]
        .into(),
        version: PolicyVersion(14),
        now: at(130.0),
        ..ShardStatus::default()
    }
}

fn view() -> StatusView {
    let units = [
        with_tokens(0, SlotState::Enqueued, 5, 13, 14),
        with_tokens(1, SlotState::Streaming, 5, 14, 14),
        with_tokens(2, SlotState::Completed, 5, 2, 14),
        unit(3, SlotState::Enqueued),
    ];
    StatusView {
        run: "grpo-7b".to_owned(),
        shard_count: 4,
        status: status(),
        has_reward_stage: true,
        trainer: Some(TrainerRecord {
            phase: TrainerPhase::Wait,
            step: 14,
            groups_per_step: 12,
            nodes: None,
            incarnation: None,
            heartbeat: at(129.7),
        }),
        trainer_silence: Duration::from_millis(300),
        lags: Some(Lags::of(&units, PolicyVersion(14))),
        ..StatusView::default()
    }
}

#[test]
fn status_is_read_at_a_glance() {
    assert_eq!(
        view().to_text(),
        "\
run grpo-7b, policy version 14, 4 shards

  queue     generate      1,204 ready       96 in flight, the oldest enqueued 2 min ago
            reward           12 ready        4 in flight
  held by   node-1 32 · node-2 64
  buffer    1.8 steps of supply: 18 groups waiting, 4 taken
  trainer   wait, 14 steps done, 12 groups to a step, last heard 0.3 s ago
  units     4,096 enqueued = 2,772 completed + 1,316 in the system + 4 dead + 0 expired +
            4 cancelled
  groups    690 sealed, 2 failed; 2 failure records (ebbtide queue dead list)
  losses    49 units handed back (4 agent restart, 45 notice), 20 leases expired
  tokens    1,127,751 generated = 1,000,222 accepted + 114,529 in the system +
            13,000 wasted (1,000 group failed, 12,000 stale)
            8,246 preserved: a later holder went on from them
  lag       versions behind       0  1  2  3  4  5  6  7  8  9+
            in queue              ·  1  ·  ·  ·  ·  ·  ·  ·   ·
            in flight             1  ·  ·  ·  ·  ·  ·  ·  ·   ·
            complete, not sealed  ·  ·  ·  ·  ·  ·  ·  ·  ·   1
            sealed                ·  ·  ·  ·  ·  ·  ·  ·  ·   ·"
    );
}

#[test]
fn unknown_is_said_and_never_shown_as_nothing() {
    let missing = StatusView {
        missing: vec![(3, "WRONGTYPE".to_owned())],
        trainer: None,
        has_reward_stage: false,
        ..view()
    };
    let text = missing.to_text();
    for line in [
        "shard 3 does not answer: WRONGTYPE",
        "the figures below are those of 3 of 4 shards",
        "  buffer    18 groups waiting, 4 taken; steps of supply unknown without a trainer's word",
        "  trainer   none has reported",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line} in\n{text}");
    }
    let json = missing.to_json();
    assert!(json["buffer"]["stepsOfSupply"].is_null() && json["trainer"].is_null());
    let nobody = StatusView { shard_count: 1, missing: vec![(0, "away".to_owned())], ..missing };
    assert!(!nobody.to_text().contains("tokens"), "without an answer there are no figures");
}

#[test]
fn peek_shows_the_shards_in_turn() {
    let resumed = UnitSnapshot {
        holder: Some("node-1/b/agent-1".parse().expect("valid")),
        hand_backs: 1,
        ..with_tokens(2, SlotState::Enqueued, 1240, 3, 5)
    };
    let units = vec![resumed, unit(0, SlotState::Enqueued), unit(1, SlotState::Enqueued)];
    let shard_of = |unit: &UnitSnapshot| u16::from(unit.unit.slot == 1);
    let rows: Vec<peek::Row> = peek::in_turn(units, 2, shard_of)
        .into_iter()
        .map(|(shard, unit)| peek::Row { shard, unit, priority: Some(0) })
        .collect();
    assert_eq!(
        peek::to_text(&rows, at(95.0)),
        "\
UNIT      SHARD   AGE  PRIORITY  TOKENS  VERSIONS  FAULTS  LOST  BACK  LAST HOLDER
g17.0002      0  95 s         0   1,240       3-5       0     0     1  node-1
g17.0001      1  95 s         0       0                 0     0     0"
    );
}

fn event(seconds: f64, what: &str, detail: &str, token: u64, tokens: u32) -> UnitEvent {
    UnitEvent {
        at: at(seconds),
        what: what.to_owned(),
        detail: detail.to_owned(),
        holder: Some("node-1/b/agent-1".parse().expect("valid")),
        fencing_token: FencingToken(token),
        tokens,
    }
}

fn failure() -> Failure {
    let slot = |state, tokens, attempts| SlotSummary {
        state,
        tokens,
        attempts,
        infra_attempts: 0,
        hand_backs: 0,
        holder: Some("node-1/b/agent-1".parse().expect("valid")),
    };
    Failure {
        record_id: "1-0".to_owned(),
        failed_at: Some(at(0.0)),
        group: "g17".parse().expect("valid"),
        ends_group: true,
        reason: "dead".to_owned(),
        culprit: Some("g17.0001".parse().expect("valid")),
        detail: "engine died".to_owned(),
        history: vec![event(0.0, "fault", "engine died", 17, 3)],
        slots: vec![slot(SlotState::Completed, 1200, 0), slot(SlotState::Dead, 0, 1)],
        spec: None,
        group_size: 2,
        completed: 1,
        dead: 1,
        expired: 0,
        cancelled: 0,
        tokens_wasted: 1200,
    }
}

#[test]
fn failure_tells_who_brought_it_about() {
    let lines = [failures::to_lines(&failure(), at(180.0)), failures::details(&failure())].concat();
    assert_eq!(
        lines.join("\n"),
        "\
g17 failed 3 min ago: dead
    g17.0001: engine died (node-1)
    of 2 samples: 1 completed, 1 dead, 1,200 tokens wasted, its prompt is lost
    SLOT  STATE      TOKENS  FAULTS  LOST  BACK  LAST HOLDER
    0000  completed   1,200       0     0     0  node-1
    0001  dead            0       1     0     0  node-1
    2026-11-29 18:00:00.000  fault while node-1 had it: engine died; 3 tokens kept"
    );
}

fn chunk(start: u32, end: u32, version: u64, token: u64, node: &str, seconds: f64) -> Chunk {
    Chunk {
        offset: start,
        weight_version: PolicyVersion(version),
        token_ids: vec![7; (end - start) as usize],
        logprobs: vec![-1.0; (end - start) as usize],
        origin: Origin {
            holder: format!("{node}/b/agent-1").parse().expect("valid"),
            fencing_token: FencingToken(token),
            engine: "vllm/0.32.0".to_owned(),
            fabric: FabricVerdict::Passed,
            started_at: at(seconds),
            ended_at: at(seconds + 1.5),
        },
    }
}

#[test]
fn life_is_told_in_the_order_of_leases_whatever_the_clocks_say() {
    let mut spec = PromptGroup::new("g17".parse().expect("valid"), 1, vec![1, 2, 3]);
    spec.max_lag = 8;
    let standing = UnitSnapshot {
        holder: Some("node-2/b/agent-2".parse().expect("valid")),
        fencing_token: FencingToken(18),
        leased_at: Some(at(9.0)),
        lease_deadline: Some(at(24.0)),
        ..with_tokens(0, SlotState::Streaming, 300, 3, 4)
    };
    // The clock of the second node is far behind.
    let chunks = vec![
        chunk(0, 100, 3, 17, "node-1", 1.0),
        chunk(100, 240, 3, 17, "node-1", 2.5),
        chunk(240, 300, 4, 18, "node-2", -3600.0 * 20.0),
    ];
    let history = vec![event(4.25, "handed_back", "notice spot_terminate 1795975320000", 17, 240)];
    let trace = GroupTrace {
        spec: Some(spec.into()),
        units: vec![UnitTrace { unit: standing, chunks, history }],
        forgotten_at: None,
    };
    let subject = Subject::Group("g17".parse().expect("valid"));
    let findings = trace::Findings { subject, trace, failures: Vec::new(), now: at(12.0) };
    assert_eq!(
        findings.answer().text,
        "\
g17: 1 sample, 3 tokens of prompt, at most 1,024 each, lag at most 8, priority 0

g17.0000  streaming, 300 tokens
  2026-11-29
  18:00:00.000  enqueued
  18:00:01.000  tokens 0-239 by node-1, version 3, in 3.0 s (lease 17, vllm/0.32.0, fabric passed)
  18:00:04.250  handed back by node-1 (notice: spot terminate, 115 s left), 240 tokens kept
  2026-11-28
  22:00:00.000  tokens 240-299 by node-2, version 4, in 1.5 s (lease 18, vllm/0.32.0, fabric passed)
  now           being generated for 3.0 s, lease 18 ends in 12 s
  holder        node-2/b/agent-2"
    );
}

#[test]
fn stored_tokens_are_held_to_their_record_and_to_what_was_asked_for() {
    let mut spec = PromptGroup::new("g17".parse().expect("valid"), 1, vec![1]);
    spec.sampling.max_tokens = 10;
    let spec = std::sync::Arc::new(spec);
    let problem = |tokens: u32, first: u64, last: u64, chunks: Vec<Chunk>| {
        let unit = with_tokens(0, SlotState::Enqueued, tokens, first, last);
        let units = vec![UnitTrace { unit, chunks, history: Vec::new() }];
        let trace = GroupTrace { spec: Some(spec.clone()), units, forgotten_at: None };
        tokens::problems(&trace).into_iter().map(|(_, text)| text).collect::<Vec<_>>().concat()
    };
    let part = |start, end, version| chunk(start, end, version, 1, "n", 0.0);
    assert_eq!(problem(8, 1, 2, vec![part(0, 5, 1), part(5, 8, 2)]), "");
    let table = [
        (problem(8, 1, 1, vec![part(0, 5, 1), part(6, 9, 1)]), "its tokens have a gap: 6 follow 5"),
        (problem(8, 1, 1, vec![part(0, 5, 1)]), "has 8 tokens by its record, 5 are stored"),
        (problem(8, 2, 1, vec![part(0, 5, 2), part(5, 8, 1)]), "its policy versions fall"),
        (problem(8, 0, 1, vec![part(0, 8, 1)]), "its policy versions are not those of its record"),
        (problem(11, 1, 1, vec![part(0, 11, 1)]), "has 11 tokens, at most 10 were asked for"),
    ];
    for (found, expected) in table {
        assert_eq!(found, expected);
    }
    let mut odd = part(0, 5, 1);
    odd.logprobs.pop();
    assert_eq!(problem(5, 1, 1, vec![odd]), "has 5 tokens and 4 log-probabilities from 0 on");
}

#[test]
fn check_says_what_was_mended_and_what_was_not() {
    let seen = Examination {
        shards: 2,
        groups: 48,
        units: 192,
        tokens: 12_311,
        busy_shards: vec![1],
        ..Examination::default()
    };
    let outcomes = [
        (Problem::new("g12.0003", "is in no queue"), Outcome::Mended),
        (Problem::new("g13", "is taken and would not be delivered again"), Outcome::NotMended),
    ];
    assert_eq!(
        check::to_text(&seen, &outcomes),
        "\
g12.0003  is in no queue                             mended
g13       is taken and would not be delivered again  NOT MENDED

1 problem mended, 1 left
looked at 2 shards, 48 groups, 192 units, 12,311 stored tokens
sums are not exact on shards that changed at every look:
1"
    );
    let calm = Examination { busy_shards: Vec::new(), ..seen };
    let text = check::to_text(&calm, &[]);
    assert!(text.starts_with("everything holds\nlooked at 2 shards"), "{text}");
}
