//! Medians, percentiles, and figures by their key.

use std::collections::BTreeMap;

use serde_json::Value;

/// The middle of the values, or the mean of the two in the middle; `None` of none.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        length if length.is_multiple_of(2) => Some((values[middle - 1] + values[middle]) / 2.0),
        _ => Some(values[middle]),
    }
}

/// The smallest value that so many of a thousand of the sorted values do not exceed.
pub fn percentile(sorted: &[f64], per_thousand: usize) -> Option<f64> {
    let rank = (sorted.len() * per_thousand).div_ceil(1000);
    sorted.get(rank.max(1) - 1).copied()
}

/// Figures by the key under which machines find them; what could not be measured is there as null.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Figures(BTreeMap<String, Option<f64>>);

impl Figures {
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Option<f64>>) {
        self.0.insert(key.into(), value.into());
    }

    /// Adds all of another.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// The figure, if it was measured.
    pub fn value(&self, key: &str) -> Option<f64> {
        self.0.get(key).copied().flatten()
    }

    /// Whether it was to be measured.
    pub fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// One object; numbers are rounded to a thousandth.
    pub fn to_json(&self) -> Value {
        let rounded = |value: f64| (value * 1000.0).round() / 1000.0;
        let figures = self.0.iter();
        figures.map(|(key, value)| (key.clone(), Value::from(value.map(rounded)))).collect()
    }
}

/// Values of several rounds by key.
#[derive(Debug, Default)]
pub struct Rounds(BTreeMap<String, Vec<f64>>);

impl Rounds {
    pub fn add(&mut self, key: impl Into<String>, value: impl Into<Option<f64>>) {
        if let Some(value) = value.into() {
            self.0.entry(key.into()).or_default().push(value);
        }
    }

    /// The median of each key; of several values the first is dropped.
    pub fn medians(&self) -> BTreeMap<String, f64> {
        let kept = |values: &Vec<f64>| values[usize::from(values.len() > 1)..].to_vec();
        let medians = self.0.iter().map(|(key, values)| Some((key.clone(), median(kept(values))?)));
        medians.flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_percentiles_are_of_the_sorted_values() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
        let values: Vec<f64> = (1..=1000).map(f64::from).collect();
        for (per_thousand, expected) in [(500, 500.0), (990, 990.0), (999, 999.0)] {
            assert_eq!(percentile(&values, per_thousand), Some(expected));
        }
        assert_eq!(percentile(&[7.0], 500), Some(7.0));
        assert_eq!(percentile(&[], 500), None);
    }

    #[test]
    fn first_of_several_rounds_is_dropped() {
        let mut rounds = Rounds::default();
        for value in [100.0, 3.0, 1.0, 2.0] {
            rounds.add("several", value);
        }
        rounds.add("one", 5.0);
        rounds.add("unknown", None);
        let medians = rounds.medians();
        assert_eq!((medians["several"], medians["one"]), (2.0, 5.0));
        assert!(!medians.contains_key("unknown"));
    }

    #[test]
    fn figures_are_rounded_and_unknown_ones_are_null() {
        let mut figures = Figures::default();
        figures.set("cyclesPerSecond", 1234.56789);
        figures.set("handBack512Ms", None);
        let expected = r#"{"cyclesPerSecond":1234.568,"handBack512Ms":null}"#;
        assert_eq!(figures.to_json().to_string(), expected);
        assert!(figures.has("handBack512Ms") && figures.value("handBack512Ms").is_none());
    }
}
