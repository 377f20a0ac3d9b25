//! `ebbtide queue status` as text. What is not known is said to be unknown, never 0.

use std::collections::BTreeMap;
use std::time::Duration;

use ebbtide_core::ledger::Ledger;
use ebbtide_core::observation::TrainerPhase;
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::control::{HoldRecord, TrainerRecord};
use ebbtide_queue::status::ShardStatus;

use super::lag::Lags;
use crate::operator_command::hold;
use crate::words::{counted, flow, span, thousands};

/// Characters before the text of a line.
const TITLE_WIDTH: usize = 10;
/// Characters of the text of a line.
const TEXT_WIDTH: usize = 84;
/// Nodes that are named.
const NODES_SHOWN: usize = 24;

/// What `status` has learnt.
#[derive(Debug, Clone, Default)]
pub struct StatusView {
    pub run: String,
    pub shard_count: u16,
    /// Shards that gave no answer, with the reason; the figures are without them.
    pub missing: Vec<(u16, String)>,
    /// Shards whose units could not be read, with the reason; the lag is without them.
    pub unread: Vec<(u16, String)>,
    /// Why the control keys could not be read.
    pub control_error: Option<String>,
    pub status: ShardStatus,
    pub has_reward_stage: bool,
    /// Holds that last, at `control_now`.
    pub holds: Vec<HoldRecord>,
    /// The store's clock when the control keys were read.
    pub control_now: UnixMillis,
    pub trainer: Option<TrainerRecord>,
    /// What the run has cost, once a controller has counted.
    pub ledger: Option<Ledger>,
    /// Since the trainer's last word.
    pub trainer_silence: Duration,
    /// `None` when the units were not read.
    pub lags: Option<Lags>,
}

impl StatusView {
    /// Whether every part has answered.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.unread.is_empty() && self.control_error.is_none()
    }

    /// Since the oldest ready unit was enqueued.
    pub(super) fn oldest_wait(&self) -> Option<Duration> {
        self.status.oldest_ready_at.map(|at| self.status.now.since(at))
    }

    /// Groups in the buffer divided by those of a step; `None` without a word of the trainer.
    pub(super) fn steps_of_supply(&self) -> Option<f64> {
        let groups = (self.status.sealed_waiting + self.status.sealed_taken) as f64;
        let step = self.trainer.as_ref()?.groups_per_step;
        (step > 0).then(|| groups / f64::from(step))
    }

    /// For people.
    pub fn to_text(&self) -> String {
        let answered = usize::from(self.shard_count) - self.missing.len();
        let mut lines = vec![format!(
            "run {}, policy version {}, {}",
            self.run,
            self.status.version,
            counted(self.shard_count.into(), "shard"),
        )];
        for (shard, error) in &self.missing {
            lines.push(format!("shard {shard} does not answer: {error}"));
        }
        if !self.missing.is_empty() {
            let all = self.shard_count;
            lines.push(format!("the figures below are those of {answered} of {all} shards"));
        }
        for (shard, error) in &self.unread {
            lines.push(format!(
                "units of shard {shard} cannot be read, lag is without them: {error}"
            ));
        }
        if let Some(error) = &self.control_error {
            lines.push(format!("the control keys cannot be read: {error}"));
        }
        lines.extend(self.holds.iter().map(|held| hold::to_words(held, self.control_now)));
        if answered > 0 {
            lines.push(String::new());
            for (title, texts) in self.sections() {
                let titles = std::iter::once(title).chain(std::iter::repeat(""));
                lines.extend(titles.zip(texts).map(|(title, text)| {
                    format!("  {title:<TITLE_WIDTH$}{text}").trim_end().to_owned()
                }));
            }
        }
        lines.join("\n")
    }

    fn sections(&self) -> [(&'static str, Vec<String>); 10] {
        [
            ("queue", self.queue()),
            ("held by", self.held_by()),
            ("buffer", self.buffer()),
            ("trainer", vec![self.trainer_words()]),
            ("units", self.units()),
            ("groups", vec![self.groups()]),
            ("losses", self.losses()),
            ("tokens", self.tokens()),
            ("lag", self.lags.as_ref().map(Lags::to_lines).unwrap_or_default()),
            ("cost", self.ledger.as_ref().map(Ledger::to_lines).unwrap_or_default()),
        ]
    }

    fn queue(&self) -> Vec<String> {
        let status = &self.status;
        let stage = |name: &str, ready: u64, leased: u64| {
            format!("{name:<10}{:>9} ready{:>9} in flight", thousands(ready), thousands(leased))
        };
        let mut lines = vec![stage("generate", status.ready, status.leased)];
        if self.has_reward_stage {
            lines.push(stage("reward", status.reward_ready, status.reward_leased));
        }
        if let Some(wait) = self.oldest_wait() {
            lines[0].push_str(&format!(", the oldest enqueued {} ago", span(wait)));
        }
        lines
    }

    fn held_by(&self) -> Vec<String> {
        let nodes = &self.status.leased_by_node;
        let mut parts: Vec<String> = nodes
            .iter()
            .take(NODES_SHOWN)
            .map(|(node, units)| format!("{node} {}", thousands(*units)))
            .collect();
        if nodes.len() > NODES_SHOWN {
            parts.push(format!("and {} more nodes", nodes.len() - NODES_SHOWN));
        }
        if parts.is_empty() {
            parts.push("nobody".to_owned());
        }
        flow(&parts, " · ", TEXT_WIDTH)
    }

    fn buffer(&self) -> Vec<String> {
        let (waiting, taken) = (self.status.sealed_waiting, self.status.sealed_taken);
        let groups = format!("{} waiting, {} taken", counted(waiting, "group"), thousands(taken));
        vec![match self.steps_of_supply() {
            Some(steps) => format!("{steps:.1} steps of supply: {groups}"),
            None => format!("{groups}; steps of supply unknown without a trainer's word"),
        }]
    }

    fn trainer_words(&self) -> String {
        let Some(trainer) = &self.trainer else { return "none has reported".to_owned() };
        format!(
            "{}, {} done, {} to a step, last heard {} ago",
            phase_word(trainer.phase),
            counted(trainer.step, "step"),
            counted(trainer.groups_per_step.into(), "group"),
            span(self.trainer_silence),
        )
    }

    fn units(&self) -> Vec<String> {
        let status = &self.status;
        let parts = [
            format!(
                "{} enqueued = {} completed",
                thousands(status.enqueued),
                thousands(status.completed)
            ),
            format!("{} in the system", thousands(status.in_system())),
            format!("{} dead", thousands(status.dead)),
            format!("{} expired", thousands(status.expired)),
            format!("{} cancelled", thousands(status.cancelled)),
        ];
        flow(&parts, " + ", TEXT_WIDTH)
    }

    fn groups(&self) -> String {
        let status = &self.status;
        let records = match status.failure_records {
            0 => "no failure record".to_owned(),
            count => format!("{} (ebbtide queue dead list)", counted(count, "failure record")),
        };
        let (sealed, failed) = (thousands(status.groups_sealed), thousands(status.groups_failed));
        format!("{sealed} sealed, {failed} failed; {records}")
    }

    fn losses(&self) -> Vec<String> {
        let status = &self.status;
        let back = status.hand_backs.values().sum();
        let mut parts =
            vec![format!("{} handed back{}", counted(back, "unit"), by_cause(&status.hand_backs))];
        parts.push(format!("{} expired", counted(status.lease_expiries, "lease")));
        for (count, what) in [
            (status.repaired, "record mended on the way"),
            (status.versions_refused, "lower policy version refused"),
        ] {
            if count > 0 {
                parts.push(format!("{} {what}", thousands(count)));
            }
        }
        flow(&parts, ", ", TEXT_WIDTH)
    }

    fn tokens(&self) -> Vec<String> {
        let tokens = &self.status.tokens;
        let wasted = thousands(tokens.wasted_total());
        let parts = [
            format!(
                "{} generated = {} accepted",
                thousands(tokens.generated),
                thousands(tokens.accepted)
            ),
            format!("{} in the system", thousands(tokens.in_system())),
            format!("{wasted} wasted{}", by_cause(&tokens.wasted)),
        ];
        let mut lines = flow(&parts, " + ", TEXT_WIDTH);
        lines.push(format!(
            "{} preserved: a later holder went on from them",
            thousands(tokens.preserved)
        ));
        lines
    }
}

/// ` (45 notice, 4 drain)`, or nothing.
fn by_cause(counts: &BTreeMap<String, u64>) -> String {
    let counts = counts.iter().filter(|(_, count)| **count > 0);
    let parts: Vec<String> = counts
        .map(|(cause, count)| format!("{} {}", thousands(*count), cause.replace('_', " ")))
        .collect();
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
}

/// The word for what a trainer does.
pub(super) fn phase_word(phase: TrainerPhase) -> &'static str {
    match phase {
        TrainerPhase::Train => "train",
        TrainerPhase::Sync => "sync",
        TrainerPhase::Wait => "wait",
        TrainerPhase::Checkpoint => "checkpoint",
        TrainerPhase::Done => "done",
    }
}
