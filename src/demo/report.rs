//! What the demo says at the end: for people, and as JSON.

use std::fmt::Write;
use std::time::Duration;

use ebbtide_queue::status::ShardStatus;
use serde_json::json;

use super::ledger::Balance;
use crate::words::{counted, thousands};

/// Everything the summary is made of.
pub struct Report {
    pub seed: u64,
    pub ran_for: Duration,
    /// What is known of a trainer outside; `None` when the demo's own trained.
    pub outside: Option<OutsideTrainer>,
    pub balance: Balance,
    pub status: ShardStatus,
    pub notices: u32,
    pub kills: u32,
    pub scale_decisions: u64,
    /// Node time bought, by market name, with its price.
    pub capacity: Vec<Capacity>,
    /// Nodes that the trainer ran on after each change of its size.
    pub trainer_sizes: Vec<u32>,
    /// Where the queue's own counters differ from the books, or from its raw keys.
    pub disagreements: Vec<String>,
    /// Tokens that killed agents had received and not stored, where that is known.
    pub tokens_unstored: Option<u64>,
    pub speed_tokens_per_second: f64,
}

/// A trainer that the demo only knows by what it reports.
pub struct OutsideTrainer {
    /// Steps that it finished meanwhile.
    pub steps: u64,
    /// How to look at the run, which stays in Redis.
    pub how_to_look: String,
}

/// Node time of one market.
pub struct Capacity {
    pub market: &'static str,
    pub node_seconds: f64,
    pub dollars: f64,
}

impl Report {
    /// Whether nothing was lost, doubled or garbled, and all accounts agree.
    pub fn is_ok(&self) -> bool {
        self.balance.is_even() && self.disagreements.is_empty()
    }

    fn dollars(&self) -> f64 {
        self.capacity.iter().map(|part| part.dollars).sum()
    }

    fn units_handed_back(&self) -> u64 {
        self.status.hand_backs.values().sum()
    }

    /// What is wrong, one line each.
    pub fn problems(&self) -> Vec<String> {
        let lost = self.balance.units_lost.iter().map(|unit| format!("lost: {unit}"));
        let doubled = self.balance.doubled.iter().map(|what| format!("doubled: {what}"));
        let wrong = self.balance.wrong_samples.iter().map(|what| format!("garbled: {what}"));
        let disagreements = self.disagreements.iter().map(|what| format!("accounts: {what}"));
        lost.chain(doubled).chain(wrong).chain(disagreements).collect()
    }

    /// For machines.
    pub fn to_json(&self) -> serde_json::Value {
        let (balance, tokens) = (&self.balance, &self.status.tokens);
        // Without books nobody knows these; that is not the same as none.
        let by_books = |count: u64| self.outside.is_none().then_some(count);
        json!({
            "ok": self.is_ok(),
            "seed": self.seed,
            "seconds": self.ran_for.as_secs_f64(),
            "unitsEnqueued": balance.units_enqueued,
            "samplesCompleted": balance.samples_completed,
            "unitsDead": balance.units_dead,
            "unitsExpired": balance.units_expired,
            "unitsCancelled": balance.units_cancelled,
            "unitsInSystem": balance.units_in_system,
            "groupsSealed": balance.groups_sealed,
            "groupsFailed": balance.groups_failed,
            "samplesScored": balance.samples_scored,
            "unitsLost": by_books(balance.units_lost.len() as u64),
            "duplicatesSealed": by_books(balance.doubled.len() as u64),
            "samplesGarbled": by_books(balance.wrong_samples.len() as u64),
            "notices": self.notices,
            "kills": self.kills,
            "unitsHandedBack": self.units_handed_back(),
            "handBacksByCause": self.status.hand_backs,
            "leasesExpired": self.status.lease_expiries,
            "tokensGenerated": tokens.generated,
            "tokensAccepted": balance.tokens_accepted,
            "tokensPreserved": tokens.preserved,
            "tokensWasted": tokens.wasted_total(),
            "tokensWastedByCause": tokens.wasted,
            "tokensInSystem": balance.tokens_in_system,
            "tokensReceivedNotStored": self.tokens_unstored,
            "policyVersion": self.status.version,
            "verifiedUpdates": by_books(balance.verified_updates),
            "trainerSteps": self.outside.as_ref().map(|trainer| trainer.steps),
            "scaleDecisions": self.scale_decisions,
            "trainerSizes": self.trainer_sizes,
            "dollars": self.dollars(),
            "problems": self.problems(),
        })
    }

    /// For people.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let verdict = match (self.is_ok(), &self.outside) {
            (false, _) => "SOMETHING IS WRONG",
            (true, None) => "nothing was lost",
            (true, Some(_)) => "the queue's accounts are even",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\n  {verdict}: {}", self.headline());
        for (title, lines) in
            [("work", self.work()), ("losses", self.losses()), ("tokens", self.tokens())]
                .into_iter()
                .chain([("cost", self.cost()), ("run", self.whereabouts())])
        {
            for (index, line) in lines.into_iter().enumerate() {
                let title = if index == 0 { title } else { "" };
                let _ = writeln!(text, "  {title:<8}{line}");
            }
        }
        for problem in self.problems() {
            let _ = writeln!(text, "  {problem}");
        }
        text
    }

    fn headline(&self) -> String {
        let books = match self.outside {
            Some(_) => String::new(),
            None => format!(
                ", {} lost, {} doubled",
                self.balance.units_lost.len(),
                self.balance.doubled.len()
            ),
        };
        format!(
            "{} and {} in {:.0} s, {}{books} (seed {})",
            counted(self.notices.into(), "notice"),
            counted(self.kills.into(), "kill"),
            self.ran_for.as_secs_f64(),
            counted(self.balance.units_enqueued, "unit"),
            self.seed,
        )
    }

    fn work(&self) -> Vec<String> {
        let balance = &self.balance;
        let scored = balance.samples_scored.map(|count| {
            format!(
                "{}, each with the score that its tokens ask for",
                counted(count, "scored sample")
            )
        });
        let lines = [
            format!(
                "{} units enqueued = {} completed + {} in the system + {} dead, expired or \
                 cancelled",
                thousands(balance.units_enqueued),
                thousands(balance.samples_completed),
                thousands(balance.units_in_system),
                balance.units_dead + balance.units_expired + balance.units_cancelled,
            ),
            format!(
                "{} sealed, {} failed; {}",
                counted(balance.groups_sealed, "group"),
                balance.groups_failed,
                self.how_checked(),
            ),
            format!(
                "policy version {}, {}, {}",
                self.status.version,
                self.updates(),
                counted(self.scale_decisions, "scaling decision"),
            ),
        ];
        lines.into_iter().chain(self.resizes()).chain(scored).collect()
    }

    fn resizes(&self) -> Option<String> {
        let sizes = self.trainer_sizes.iter().map(|size| counted((*size).into(), "node"));
        let sizes: Vec<String> = sizes.collect();
        let was_asked = "between two updates, by the resize protocol";
        (!sizes.is_empty())
            .then(|| format!("the trainer came to {}, {was_asked}", sizes.join(", ")))
    }

    /// What the verdict rests on.
    fn how_checked(&self) -> &'static str {
        match self.outside {
            None => "every sample compared token by token with an unbroken run",
            Some(_) => "checked by the queue's own counters and raw units alone",
        }
    }

    fn updates(&self) -> String {
        match &self.outside {
            None => counted(self.balance.verified_updates, "verified update"),
            Some(trainer) => counted(trainer.steps, "trainer step"),
        }
    }

    /// Where a run that stays can be looked at.
    fn whereabouts(&self) -> Vec<String> {
        let Some(trainer) = &self.outside else { return Vec::new() };
        vec!["stays in Redis; to look at it:".to_owned(), format!("  {}", trainer.how_to_look)]
    }

    fn losses(&self) -> Vec<String> {
        vec![format!(
            "{} handed back before their node died, {} found by their expired lease",
            counted(self.units_handed_back(), "unit"),
            thousands(self.status.lease_expiries),
        )]
    }

    fn tokens(&self) -> Vec<String> {
        let tokens = &self.status.tokens;
        let saved = tokens.preserved as f64 / self.speed_tokens_per_second;
        vec![
            format!(
                "{} generated = {} accepted + {} in the system + {} wasted",
                thousands(tokens.generated),
                thousands(self.balance.tokens_accepted),
                thousands(self.balance.tokens_in_system),
                thousands(tokens.wasted_total()),
            ),
            format!(
                "{} saved from lost nodes and continued elsewhere: {saved:.0} s of generation \
                 not repeated",
                thousands(tokens.preserved),
            ),
        ]
    }

    fn cost(&self) -> Vec<String> {
        let parts: Vec<String> = self
            .capacity
            .iter()
            .map(|part| {
                format!(
                    "{:.0} node-seconds {} ${:.2}",
                    part.node_seconds, part.market, part.dollars
                )
            })
            .collect();
        let (updates, noun) = match &self.outside {
            None => (self.balance.verified_updates, "verified update"),
            Some(trainer) => (trainer.steps, "step"),
        };
        let each = match updates {
            0 => String::new(),
            _ => format!("; ${:.3} per {noun}", self.dollars() / updates as f64),
        };
        vec![format!("{}{each} (the demo policy's prices)", parts.join(", "))]
    }
}

/// Where the queue's own counters differ from the trainer's books.
pub fn disagreements(balance: &Balance, status: &ShardStatus) -> Vec<String> {
    let tokens = &status.tokens;
    let parts = balance.tokens_accepted + tokens.wasted_total() + balance.tokens_in_system;
    let pairs = [
        ("units enqueued", balance.units_enqueued, status.enqueued),
        ("samples completed", balance.samples_completed, status.completed),
        ("units dead", balance.units_dead, status.dead),
        ("units expired", balance.units_expired, status.expired),
        ("units cancelled", balance.units_cancelled, status.cancelled),
        ("units in the system", balance.units_in_system, status.in_system()),
        ("tokens accepted", balance.tokens_accepted, tokens.accepted),
        ("tokens generated", parts, tokens.generated),
    ];
    pairs
        .into_iter()
        .filter(|(_, books, counters)| books != counters)
        .map(|(what, books, counters)| format!("{what}: books {books}, queue {counters}"))
        .collect()
}
