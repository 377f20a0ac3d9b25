//! How far the tokens of a run are behind its policy, by the place where they are.

use std::collections::BTreeMap;

use ebbtide_core::ids::PolicyVersion;
use ebbtide_core::staleness::lag;
use ebbtide_queue::state::{SlotState, UnitSnapshot};
use serde_json::{Value, json};

use crate::table::Table;

/// Columns of the histogram; what lags more is in the last one.
const COLUMNS: u64 = 10;

/// Units by their lag: policy versions since their oldest token.
type Histogram = BTreeMap<u64, u64>;

/// The lag of all units that have tokens.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lags {
    in_queue: Histogram,
    in_flight: Histogram,
    complete: Histogram,
    sealed: Histogram,
}

impl Lags {
    /// Counts units; one without tokens has no lag.
    pub fn of(units: &[UnitSnapshot], current: PolicyVersion) -> Self {
        let mut lags = Self::default();
        for unit in units {
            let place = match unit.state {
                _ if unit.is_sealed => &mut lags.sealed,
                SlotState::Enqueued => &mut lags.in_queue,
                SlotState::Leased | SlotState::Streaming => &mut lags.in_flight,
                SlotState::Completed => &mut lags.complete,
                SlotState::Dead | SlotState::Expired | SlotState::Cancelled => continue,
            };
            if let Some(versions) = unit.versions {
                *place.entry(lag(current, versions.first)).or_default() += 1;
            }
        }
        lags
    }

    fn places(&self) -> [(&'static str, &'static str, &Histogram); 4] {
        [
            ("in queue", "inQueue", &self.in_queue),
            ("in flight", "inFlight", &self.in_flight),
            ("complete, not sealed", "completeNotSealed", &self.complete),
            ("sealed", "sealed", &self.sealed),
        ]
    }

    /// For machines: units by lag, for each place.
    pub fn to_json(&self) -> Value {
        let histogram = |histogram: &Histogram| -> Value {
            histogram.iter().map(|(lag, units)| (lag.to_string(), json!(units))).collect()
        };
        self.places()
            .into_iter()
            .map(|(_, key, units)| (key.to_owned(), histogram(units)))
            .collect()
    }

    /// For people: a row for each place, a column for each lag; nothing without tokens.
    pub fn to_lines(&self) -> Vec<String> {
        let highest = self.places().iter().filter_map(|(_, _, units)| units.keys().max()).max();
        let Some(highest) = highest else { return Vec::new() };
        let last = (*highest).min(COLUMNS - 1);
        let title = |lag: u64| {
            let more = if lag == last && *highest > last { "+" } else { "" };
            format!(">{lag}{more}")
        };
        let titles: Vec<String> =
            std::iter::once("versions behind".to_owned()).chain((0..=last).map(title)).collect();
        let mut table = Table::new(titles.iter().map(String::as_str));
        for (name, _, units) in self.places() {
            let count = |lag: u64| -> u64 {
                if lag < last {
                    units.get(&lag).copied().unwrap_or(0)
                } else {
                    units.range(last..).map(|(_, count)| count).sum()
                }
            };
            let shown = |count: u64| if count == 0 { "·".to_owned() } else { count.to_string() };
            table.row(
                std::iter::once(name.to_owned()).chain((0..=last).map(|lag| shown(count(lag)))),
            );
        }
        table.to_lines()
    }
}
