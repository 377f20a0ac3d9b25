//! Which engine gets which unit: the samples of a prompt go to the same one, for its prefix cache.
//!
//! Work is leased for all engines with the same weights together, so that siblings, which lie side
//! by side in the ready queue, come in one call. A group goes where its samples went before, also
//! when one comes back after a hand-back; a new one to the engine with the most room. A group that
//! does not fit is shared out: an idle engine costs more than a prompt that is computed twice.

use std::collections::{BTreeMap, HashMap, VecDeque};

use ebbtide_core::ids::GroupId;

/// Groups whose engine is remembered: as many as 8 engines hold of two samples each at 1,024
/// sequences.
const GROUPS_MAX: usize = 4096;

/// Room of an engine for more units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    /// Its number on the node.
    pub(super) engine: usize,
    /// Units that it may be given.
    pub(super) units: usize,
}

/// Where the samples of each group went last.
#[derive(Debug, Default)]
pub(super) struct Homes {
    engines: HashMap<GroupId, usize>,
    /// The oldest first.
    order: VecDeque<GroupId>,
}

impl Homes {
    /// The engine of each unit, given their groups in the order in which they were granted. More
    /// units than there is room for are shared out all the same: they are held already. There must
    /// be an engine.
    pub(super) fn place(&mut self, groups: &[&GroupId], mut rooms: Vec<Room>) -> Vec<usize> {
        let mut counts: BTreeMap<&GroupId, usize> = BTreeMap::new();
        for group in groups {
            *counts.entry(group).or_default() += 1;
        }
        let mut placed: HashMap<&GroupId, VecDeque<usize>> = HashMap::new();
        for group in groups {
            let Some(count) = counts.remove(group) else { continue };
            let engines = (0..count).map(|_| self.place_one(group, &mut rooms)).collect();
            placed.insert(group, engines);
        }
        let next = |group: &&GroupId| placed.get_mut(*group).and_then(VecDeque::pop_front);
        groups.iter().filter_map(next).collect()
    }

    fn place_one(&mut self, group: &GroupId, rooms: &mut [Room]) -> usize {
        let home = self.engines.get(group).copied();
        let at_home = rooms.iter().position(|room| Some(room.engine) == home && room.units > 0);
        let largest = || {
            // The first of equals.
            let by_room = rooms.iter().enumerate().rev();
            by_room.max_by_key(|(_, room)| room.units).map_or(0, |(index, _)| index)
        };
        let room = &mut rooms[at_home.unwrap_or_else(largest)];
        room.units = room.units.saturating_sub(1);
        let engine = room.engine;
        self.remember(group, engine);
        engine
    }

    fn remember(&mut self, group: &GroupId, engine: usize) {
        if self.engines.insert(group.clone(), engine).is_some() {
            return;
        }
        self.order.push_back(group.clone());
        if self.order.len() > GROUPS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.engines.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(name: &str) -> GroupId {
        name.parse().expect("valid")
    }

    fn rooms<const N: usize>(units: [usize; N]) -> Vec<Room> {
        units.into_iter().enumerate().map(|(engine, units)| Room { engine, units }).collect()
    }

    /// Places units of groups, each named by a letter.
    fn place<const N: usize>(homes: &mut Homes, groups: &str, units: [usize; N]) -> Vec<usize> {
        let ids: Vec<GroupId> = groups.chars().map(|letter| id(&letter.to_string())).collect();
        homes.place(&ids.iter().collect::<Vec<_>>(), rooms(units))
    }

    #[test]
    fn siblings_go_to_one_engine_and_groups_are_shared_out() {
        let mut homes = Homes::default();
        assert_eq!(place(&mut homes, "aaaabbbb", [8, 8]), [0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(place(&mut homes, "abab", [4, 4]), [0, 1, 0, 1], "whatever comes back");
    }

    #[test]
    fn group_that_fits_nowhere_is_shared_out_and_goes_on_where_it_went_last() {
        let mut homes = Homes::default();
        assert_eq!(place(&mut homes, "aaaaa", [2, 3]), [1, 1, 1, 0, 0]);
        assert_eq!(place(&mut homes, "a", [1, 9]), [0]);
        assert_eq!(place(&mut homes, "a", [0, 1]), [1], "an idle engine waits for nobody");
    }

    #[test]
    fn engine_that_is_no_longer_given_work_loses_its_groups() {
        let mut homes = Homes::default();
        assert_eq!(place(&mut homes, "a", [5, 1]), [0]);
        let only_the_other = vec![Room { engine: 1, units: 1 }];
        assert_eq!(homes.place(&[&id("a")], only_the_other), [1]);
        assert_eq!(place(&mut homes, "a", [5, 1]), [1]);
    }

    #[test]
    fn only_so_many_groups_are_remembered() {
        let mut homes = Homes::default();
        for n in 0..2 * GROUPS_MAX {
            homes.place(&[&id(&format!("g{n}"))], rooms([1]));
        }
        assert_eq!((homes.engines.len(), homes.order.len()), (GROUPS_MAX, GROUPS_MAX));
    }

    proptest! {
        #[test]
        fn every_unit_gets_an_engine_and_no_engine_more_than_its_room(
            groups in proptest::collection::vec("[a-e]", 0..40),
            units in proptest::collection::vec(0_usize..12, 1..5),
        ) {
            let ids: Vec<GroupId> = groups.iter().map(|group| id(group)).collect();
            let rooms: Vec<Room> = units
                .iter()
                .enumerate()
                .map(|(engine, units)| Room { engine, units: *units })
                .collect();
            let placed = Homes::default().place(&ids.iter().collect::<Vec<_>>(), rooms);
            prop_assert_eq!(placed.len(), ids.len());
            if ids.len() <= units.iter().sum() {
                for (engine, units) in units.iter().enumerate() {
                    prop_assert!(placed.iter().filter(|to| **to == engine).count() <= *units);
                }
            }
        }
    }
}
