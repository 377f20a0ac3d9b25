//! Laws of the fleet policy.

mod contradictions;
mod documents;
mod explained;
mod keys;
mod laws;
mod mistakes;
mod resource;
mod rules;
mod shipped;

pub(super) use self::contradictions::SHORTEST;
use super::{FleetPolicy, PolicyErrors};

/// The shortest policy with more lines at its end, and with `from` replaced by `to` for each edit.
pub(super) fn shortest_with(more: &str, edits: &[(&str, &str)]) -> String {
    let mut text = format!("{SHORTEST}{more}");
    for (from, to) in edits {
        assert!(text.contains(from), "nothing to replace: {from:?}");
        text = text.replace(from, to);
    }
    text
}

pub(super) fn parse(text: &str) -> Result<FleetPolicy, PolicyErrors> {
    FleetPolicy::parse(text, "p.yaml")
}

/// The lines of the report; none when the policy is valid.
pub(super) fn complaints(text: &str) -> Vec<String> {
    match parse(text) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.to_string().lines().map(str::to_owned).collect(),
    }
}

/// Asserts that each text has exactly one mistake, reported as expected.
pub(super) fn assert_each_has_one<'a>(table: impl IntoIterator<Item = (String, &'a str)>) {
    let rows = table.into_iter().map(|(text, expected)| (complaints(&text), expected, text));
    let wrong: Vec<_> = rows.filter(|(found, expected, _)| found != &[*expected]).collect();
    let shown = wrong.iter().map(|(found, expected, text)| {
        format!("expected: {expected}\nfound:    {}\nin\n{text}", found.join("\n          "))
    });
    assert!(wrong.is_empty(), "{}", shown.collect::<Vec<_>>().join("\n"));
}
