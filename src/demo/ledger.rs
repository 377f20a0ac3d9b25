//! What the demo's trainer itself saw: the account that does not trust the queue's counters.
//!
//! It knows every unit that it enqueued and looks for each in what was delivered to it, in the
//! records of failed groups and in the raw state of the queue. A unit found nowhere is lost, one
//! found twice is doubled. The text of every delivered sample is compared, token by token, with
//! what its engine would have written without any interruption.

use std::collections::{BTreeMap, BTreeSet};

use ebbtide_core::ids::{GroupId, UnitId};
use ebbtide_core::sample::Sample;
use ebbtide_core::work::PromptGroup;
use ebbtide_queue::reply::{Failure, TakenGroup};
use ebbtide_queue::state::{SlotState, UnitSnapshot};

use super::samples::{self, ExpectedResponse};

/// Everything the trainer enqueued and got back.
#[derive(Default)]
pub struct Ledger {
    enqueued: BTreeMap<GroupId, PromptGroup>,
    /// How often each group was delivered, redeliveries apart.
    delivered: BTreeMap<GroupId, u32>,
    acknowledged: BTreeSet<GroupId>,
    failed: BTreeMap<GroupId, Failure>,
    /// Whether every sample must come with its score.
    expects_scores: bool,
    samples_delivered: u64,
    samples_scored: u64,
    tokens_delivered: u64,
    updates: u64,
    verified_updates: u64,
    wrong_samples: Vec<String>,
}

/// What the books say at the end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Balance {
    /// Units that the trainer enqueued.
    pub units_enqueued: u64,
    /// Samples that were finished, wherever they are now.
    pub samples_completed: u64,
    /// Delivered samples with the score that is theirs; `None` in a run without a reward stage.
    pub samples_scored: Option<u64>,
    /// Units that ended DEAD.
    pub units_dead: u64,
    /// Units that ended EXPIRED.
    pub units_expired: u64,
    /// Units that ended CANCELLED.
    pub units_cancelled: u64,
    /// Units that are ready or leased.
    pub units_in_system: u64,
    /// Units found nowhere.
    pub units_lost: Vec<UnitId>,
    /// Groups or units found twice.
    pub doubled: Vec<String>,
    /// Samples whose text is not what it should be.
    pub wrong_samples: Vec<String>,
    /// Groups delivered, or sealed and waiting.
    pub groups_sealed: u64,
    /// Groups with a failure record.
    pub groups_failed: u64,
    /// Tokens of sealed groups.
    pub tokens_accepted: u64,
    /// Tokens of units that are not in a sealed group.
    pub tokens_in_system: u64,
    /// Updates whose groups all passed.
    pub verified_updates: u64,
}

impl Balance {
    /// Whether nothing was lost, doubled or garbled, and every unit is accounted for.
    pub fn is_even(&self) -> bool {
        let found = self.samples_completed
            + self.units_dead
            + self.units_expired
            + self.units_cancelled
            + self.units_in_system;
        self.units_lost.is_empty()
            && self.doubled.is_empty()
            && self.wrong_samples.is_empty()
            && found == self.units_enqueued
    }
}

impl Ledger {
    /// Books of a run; `expects_scores` when it has a reward stage.
    pub fn new(expects_scores: bool) -> Self {
        Self { expects_scores, ..Self::default() }
    }

    /// Before a group is enqueued.
    pub fn will_enqueue(&mut self, group: &PromptGroup) {
        self.enqueued.insert(group.group_id.clone(), group.clone());
    }

    /// Groups that were enqueued.
    pub fn groups_enqueued(&self) -> u64 {
        self.enqueued.len() as u64
    }

    /// Groups that ended without reaching the trainer.
    pub fn groups_failed(&self) -> u64 {
        self.failed.len() as u64
    }

    /// Updates, and those among them that are verified.
    pub fn updates(&self) -> (u64, u64) {
        (self.updates, self.verified_updates)
    }

    /// A group arrived; gives whether it may count towards a verified update.
    pub fn receive(&mut self, taken: &TakenGroup, expected: &ExpectedResponse) -> bool {
        let id = &taken.group.group_id;
        if !taken.is_redelivered || !self.delivered.contains_key(id) {
            *self.delivered.entry(id.clone()).or_default() += 1;
            let scored =
                taken.samples.iter().filter(|sample| samples::wrong_score(sample).is_none());
            self.samples_scored += scored.count() as u64;
            self.samples_delivered += taken.samples.len() as u64;
            self.tokens_delivered += taken.samples.iter().map(|s| u64::from(s.len())).sum::<u64>();
        }
        let problem = |sample: &Sample| {
            let scored = if self.expects_scores { samples::wrong_score(sample) } else { None };
            samples::garbled(&taken.group, sample, expected).or(scored)
        };
        let problems: Vec<String> = taken.samples.iter().filter_map(problem).collect();
        let is_whole = problems.is_empty() && taken.missing_slots.is_empty();
        self.wrong_samples.extend(problems);
        is_whole && taken.samples.iter().all(|sample| samples::is_verifiable(taken, sample))
    }

    /// An update was made of these groups and acknowledged.
    pub fn update(&mut self, groups: &[GroupId], is_verified: bool) {
        self.acknowledged.extend(groups.iter().cloned());
        self.updates += 1;
        self.verified_updates += u64::from(is_verified);
    }

    /// A failure record was read; reading it again changes nothing.
    pub fn note_failure(&mut self, failure: Failure) {
        if failure.ends_group {
            self.failed.insert(failure.group.clone(), failure);
        }
    }

    /// Looks for every unit. `units` is the raw state of a queue that nobody writes to any more.
    pub fn balance(&self, units: &[UnitSnapshot]) -> Balance {
        let mut balance = Balance {
            wrong_samples: self.wrong_samples.clone(),
            verified_updates: self.verified_updates,
            groups_failed: self.failed.len() as u64,
            samples_completed: self.samples_delivered,
            samples_scored: self.expects_scores.then_some(self.samples_scored),
            tokens_accepted: self.tokens_delivered,
            groups_sealed: self.delivered.len() as u64,
            ..Balance::default()
        };
        let mut present = BTreeMap::<&GroupId, Vec<&UnitSnapshot>>::new();
        for unit in units {
            present.entry(&unit.unit.group).or_default().push(unit);
        }
        for (id, group) in &self.enqueued {
            balance.units_enqueued += u64::from(group.group_size);
            let units = present.remove(id).unwrap_or_default();
            self.place(group, &units, &mut balance);
        }
        balance.doubled.extend(present.keys().map(|id| format!("{id}: never enqueued")));
        balance
    }

    fn place(&self, group: &PromptGroup, units: &[&UnitSnapshot], balance: &mut Balance) {
        let id = &group.group_id;
        let deliveries = self.delivered.get(id).copied().unwrap_or(0);
        let failure = self.failed.get(id);
        if deliveries > 1 {
            balance.doubled.push(format!("{id}: sealed {deliveries} times"));
        }
        if deliveries > 0 && failure.is_some() {
            balance.doubled.push(format!("{id}: both delivered and failed"));
        }
        if deliveries > 0 {
            let is_open = units.iter().any(|unit| !unit.is_sealed);
            let is_left = self.acknowledged.contains(id) && !units.is_empty();
            if is_open || is_left {
                balance.doubled.push(format!("{id}: delivered and still in the queue"));
            }
            return;
        }
        if let Some(failure) = failure {
            balance.samples_completed += u64::from(failure.completed);
            balance.units_dead += u64::from(failure.dead);
            balance.units_expired += u64::from(failure.expired);
            balance.units_cancelled += u64::from(failure.cancelled);
            if !units.is_empty() {
                balance.doubled.push(format!("{id}: failed and still in the queue"));
            }
            return;
        }
        balance.groups_sealed += u64::from(units.iter().any(|unit| unit.is_sealed));
        for slot in 0..group.group_size {
            let found: Vec<_> = units.iter().filter(|unit| unit.unit.slot == slot).collect();
            match found.as_slice() {
                [] => balance.units_lost.push(group.unit_id(slot)),
                [unit] => count(unit, balance),
                _ => balance.doubled.push(format!("{}: in the queue twice", group.unit_id(slot))),
            }
        }
    }
}

fn count(unit: &UnitSnapshot, balance: &mut Balance) {
    let tokens = u64::from(unit.tokens);
    match unit.state {
        SlotState::Completed => balance.samples_completed += 1,
        SlotState::Dead => balance.units_dead += 1,
        SlotState::Expired => balance.units_expired += 1,
        SlotState::Cancelled => balance.units_cancelled += 1,
        _ => balance.units_in_system += 1,
    }
    if unit.is_sealed {
        balance.tokens_accepted += tokens;
    } else {
        balance.tokens_in_system += tokens;
    }
}

#[cfg(test)]
mod tests {
    use ebbtide_core::ids::FencingToken;
    use ebbtide_core::time::UnixMillis;
    use ebbtide_queue::command::Stage;

    use super::*;

    fn unit(slot: u16, state: SlotState, is_sealed: bool) -> UnitSnapshot {
        UnitSnapshot {
            unit: UnitId { group: "g".parse().expect("valid"), slot },
            state,
            stage: Stage::Generate,
            versions: None,
            enqueued_at: UnixMillis(0),
            leased_at: None,
            lease_deadline: None,
            tokens: 5,
            holder: None,
            fencing_token: FencingToken(1),
            attempts: 0,
            infra_attempts: 0,
            hand_backs: 0,
            is_sealed,
        }
    }

    fn ledger() -> Ledger {
        let mut ledger = Ledger::default();
        ledger.will_enqueue(&PromptGroup::new("g".parse().expect("valid"), 2, vec![1]));
        ledger
    }

    #[test]
    fn unit_that_is_nowhere_is_lost() {
        let balance = ledger().balance(&[unit(0, SlotState::Leased, false)]);
        assert_eq!(balance.units_lost.len(), 1);
        assert_eq!(balance.units_lost[0].slot, 1);
        assert!(!balance.is_even());
    }

    #[test]
    fn unit_that_is_there_twice_is_doubled() {
        let twice = [
            unit(0, SlotState::Leased, false),
            unit(0, SlotState::Enqueued, false),
            unit(1, SlotState::Completed, false),
        ];
        assert!(!ledger().balance(&twice).is_even());
    }

    #[test]
    fn units_in_every_place_are_counted_once() {
        let units = [unit(0, SlotState::Completed, false), unit(1, SlotState::Streaming, false)];
        let balance = ledger().balance(&units);
        assert!(balance.is_even(), "{balance:?}");
        assert_eq!((balance.samples_completed, balance.units_in_system), (1, 1));
        assert_eq!(balance.tokens_in_system, 10);
    }

    #[test]
    fn group_that_was_delivered_and_is_still_open_is_doubled() {
        let mut ledger = ledger();
        ledger.delivered.insert("g".parse().expect("valid"), 1);
        ledger.samples_delivered = 2;
        assert!(ledger.balance(&[]).is_even());
        let open = [unit(0, SlotState::Enqueued, false)];
        assert!(!ledger.balance(&open).is_even());
    }
}
