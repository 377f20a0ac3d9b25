//! Everything that is wrong with a policy, each thing once and with its place.
//!
//! One mistake gives one error: a path that has been complained about is *faulty*, and no rule
//! that needs its value is asked.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::located::Position;
use super::outline::Outline;

/// One mistake in a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyError {
    /// Where it stands.
    pub at: Position,
    /// The key, such as `spec.queue.lease`; empty when the text as a whole is meant.
    pub path: String,
    /// What was expected and what came, beginning with the path.
    pub message: String,
}

/// All mistakes of one policy, in the order of the text; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyErrors {
    file_name: String,
    errors: Vec<PolicyError>,
}

impl PolicyErrors {
    /// The name under which the text was given.
    pub fn file_name(&self) -> &str {
        &self.file_name
    }

    /// The mistakes, in the order of the text.
    pub fn errors(&self) -> &[PolicyError] {
        &self.errors
    }
}

impl fmt::Display for PolicyErrors {
    /// One line for each mistake: `spec.queue.lease must be … (policies/grpo.yaml:14:11)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            let line_break = if index == 0 { "" } else { "\n" };
            write!(f, "{line_break}{} ({}:{})", error.message, self.file_name, error.at)?;
        }
        Ok(())
    }
}

impl std::error::Error for PolicyErrors {}

/// What the walk over the text has found so far.
#[derive(Default)]
pub(super) struct Report {
    errors: Vec<PolicyError>,
    faulty: BTreeSet<String>,
    positions: BTreeMap<String, Position>,
    outline: Option<Outline>,
}

impl Report {
    /// A report of a walk over no text, which notes what it asks for.
    pub fn of_outline() -> Self {
        Self { outline: Some(Outline::default()), ..Self::default() }
    }

    /// Where the walk notes what it asks for, if it is to.
    pub fn outline(&mut self) -> Option<&mut Outline> {
        self.outline.as_mut()
    }

    /// What the walk asked for.
    pub fn into_outline(self) -> Outline {
        self.outline.unwrap_or_default()
    }

    /// Notes that the text has a value for `path`.
    pub fn saw(&mut self, path: &str, at: Position) {
        self.positions.insert(path.to_owned(), at);
    }

    /// Where the value of `path` stands, if the text has one.
    pub fn position(&self, path: &str) -> Option<Position> {
        self.positions.get(path).copied()
    }

    /// Records a mistake; `complaint` goes on where the path ends: `must be …, got …`.
    pub fn complain(&mut self, path: &str, at: Position, complaint: impl fmt::Display) {
        let message =
            if path.is_empty() { complaint.to_string() } else { format!("{path} {complaint}") };
        self.errors.push(PolicyError { at, path: path.to_owned(), message });
        self.mark_faulty(path);
    }

    /// Records a mistake of the text itself, whatever the key.
    pub fn complain_about_text(&mut self, at: Position, message: String) {
        self.errors.push(PolicyError { at, path: String::new(), message });
    }

    /// Keeps rules from using `path`, whose mistake is reported elsewhere.
    pub fn mark_faulty(&mut self, path: &str) {
        self.faulty.insert(path.to_owned());
    }

    /// Whether `path`, or something that it is part of, was complained about.
    pub fn is_faulty(&self, path: &str) -> bool {
        let ends = path.match_indices(['.', '[']).map(|(index, _)| index);
        [0].into_iter()
            .chain(ends)
            .chain([path.len()])
            .any(|end| self.faulty.contains(&path[..end]))
    }

    /// Asks a rule about `path` that also needs the values of `others`.
    ///
    /// Nothing is asked when one of them is faulty. The complaint stands at the first of them that
    /// the text has, since the others are defaults.
    pub fn demand(
        &mut self,
        holds: bool,
        path: &str,
        others: &[&str],
        complaint: impl FnOnce() -> String,
    ) {
        let is_known = |path: &&str| !self.is_faulty(path);
        if holds || !is_known(&path) || !others.iter().all(is_known) {
            return;
        }
        let mut paths = std::iter::once(path).chain(others.iter().copied());
        let at = paths.find_map(|path| self.position(path)).unwrap_or(Position::START);
        self.complain(path, at, complaint());
    }

    /// The mistakes in the order of the text, or `Ok` when there is none.
    pub fn close(mut self, file_name: &str) -> Result<(), PolicyErrors> {
        if self.errors.is_empty() {
            return Ok(());
        }
        self.errors.sort_by(|a, b| (a.at, &a.path).cmp(&(b.at, &b.path)));
        Err(PolicyErrors { file_name: file_name.to_owned(), errors: self.errors })
    }
}
