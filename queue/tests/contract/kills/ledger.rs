//! What the queue has acknowledged, and what of it is not there any more.

use std::collections::{HashMap, HashSet};

use ebbtide_core::ids::{GroupId, UnitId};
use ebbtide_core::work::PromptGroup;
use ebbtide_queue::reply::{Grant, TakenGroup};
use ebbtide_queue::state::{SlotState, UnitSnapshot};

use crate::worlds::is_whole;

/// A group that was acknowledged, until its trainer has finished with it.
struct Open {
    group: PromptGroup,
    deliveries: u32,
    /// Its trainer has asked for it to be deleted, and may not have been answered.
    may_be_gone: bool,
}

/// Kept by those who make the load.
#[derive(Default)]
pub struct Ledger {
    open: HashMap<GroupId, Open>,
    completed: HashSet<UnitId>,
    /// Tokens that were acknowledged with a hand-back.
    handed_back: HashMap<UnitId, u32>,
    pub counts: Counts,
    pub losses: Losses,
}

/// Acknowledged so far.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    pub enqueued: u64,
    pub completed: u64,
    pub handed_back: u64,
    pub acknowledged_groups: u64,
}

impl Counts {
    /// All acknowledged writes together.
    pub fn writes(&self) -> u64 {
        self.enqueued + self.completed + self.handed_back + self.acknowledged_groups
    }
}

/// Acknowledged and not there any more.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Losses {
    pub enqueued: u64,
    pub completed: u64,
    pub handed_back: u64,
    /// Groups that a trainer was handed twice as new ones.
    pub published_twice: u64,
    /// Samples whose tokens are not those of an unbroken run.
    pub broken_samples: u64,
    /// The first few of them.
    pub examples: Vec<String>,
}

impl Losses {
    fn note(&mut self, what: fn(&mut Self) -> &mut u64, example: String) {
        *what(self) += 1;
        if self.examples.len() < 10 {
            self.examples.push(example);
        }
    }
}

impl Ledger {
    pub fn note_enqueued(&mut self, group: PromptGroup) {
        self.counts.enqueued += u64::from(group.group_size);
        self.open.insert(group.group_id.clone(), Open { group, deliveries: 0, may_be_gone: false });
    }

    pub fn note_completed(&mut self, unit: &UnitId) {
        // The trainer may have been faster.
        if self.open.get(&unit.group).is_some_and(|open| !open.may_be_gone) {
            self.completed.insert(unit.clone());
        }
        self.counts.completed += 1;
    }

    pub fn note_handed_back(&mut self, unit: &UnitId, tokens: u32) {
        // Others may have finished it since.
        if self.open.get(&unit.group).is_some_and(|open| !open.may_be_gone) {
            self.handed_back.insert(unit.clone(), tokens);
        }
        self.counts.handed_back += 1;
    }

    /// A grant must not undo what was acknowledged.
    pub fn note_granted(&mut self, grant: &Grant) {
        let unit = &grant.unit;
        if self.completed.remove(unit) {
            self.losses.note(|it| &mut it.completed, format!("{unit} is granted again"));
        }
        let stored = grant.partial.last().map_or(0, |chunk| chunk.end());
        self.compare_tokens(unit, stored);
    }

    fn compare_tokens(&mut self, unit: &UnitId, stored: u32) {
        let Some(known) = self.handed_back.get_mut(unit).filter(|known| **known > stored) else {
            return;
        };
        let example = format!("{unit} was handed back with {known} tokens and has {stored}");
        *known = stored;
        self.losses.note(|it| &mut it.handed_back, example);
    }

    pub fn note_taken(&mut self, taken: &TakenGroup, tokens: u32) {
        let id = &taken.group.group_id;
        for sample in &taken.samples {
            if !is_whole(sample) || sample.len() != tokens {
                self.losses.note(|it| &mut it.broken_samples, sample.unit.to_string());
            }
        }
        if taken.samples.len() != usize::from(taken.group.group_size) {
            self.losses.note(|it| &mut it.broken_samples, id.to_string());
        }
        let deliveries = match self.open.get_mut(id) {
            Some(open) => {
                open.deliveries += u32::from(!taken.is_redelivered || open.deliveries == 0);
                open.deliveries
            }
            // Its trainer has finished with it.
            None => 1 + u32::from(!taken.is_redelivered),
        };
        if deliveries > 1 {
            self.losses.note(|it| &mut it.published_twice, id.to_string());
        }
    }

    /// From now on the groups may be gone.
    pub fn note_acknowledging(&mut self, groups: &[GroupId]) {
        for id in groups {
            let Some(open) = self.open.get_mut(id) else { continue };
            open.may_be_gone = true;
            for unit in open.group.unit_ids() {
                self.completed.remove(&unit);
                self.handed_back.remove(&unit);
            }
        }
    }

    pub fn note_acknowledged(&mut self, groups: &[GroupId]) {
        for id in groups {
            self.counts.acknowledged_groups += u64::from(self.open.remove(id).is_some());
        }
    }

    pub fn open_groups(&self) -> usize {
        self.open.len()
    }

    /// Compares everything with what is stored while nobody writes. Answers the groups that are
    /// lost, and forgets what is lost, so that it is counted once.
    pub fn compare(&mut self, units: &[UnitSnapshot]) -> Vec<PromptGroup> {
        let stored: HashMap<&UnitId, &UnitSnapshot> =
            units.iter().map(|unit| (&unit.unit, unit)).collect();
        let mut lost = Vec::new();
        for open in self.open.values() {
            let is_missing = |unit| !stored.contains_key(&unit);
            if !open.may_be_gone && open.group.unit_ids().any(is_missing) {
                lost.push(open.group.clone());
            }
        }
        for group in &lost {
            self.losses.enqueued += u64::from(group.group_size) - 1;
            self.losses.note(|it| &mut it.enqueued, format!("{} is lost", group.group_id));
            for unit in group.unit_ids() {
                self.completed.remove(&unit);
                self.handed_back.remove(&unit);
            }
        }
        let is_undone = |unit: &&UnitId| stored[*unit].state != SlotState::Completed;
        let undone: Vec<UnitId> = self.completed.iter().filter(is_undone).cloned().collect();
        for unit in undone {
            self.completed.remove(&unit);
            self.losses.note(|it| &mut it.completed, format!("{unit} is open again"));
        }
        let handed_back: Vec<UnitId> = self.handed_back.keys().cloned().collect();
        for unit in handed_back {
            self.compare_tokens(&unit, stored[&unit].tokens);
        }
        lost
    }
}
