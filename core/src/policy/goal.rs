//! `spec.mode`, `spec.budget` and `spec.deadline`: what the controller may do and aims for.

use std::str::FromStr;

use thiserror::Error;

use super::kinds::{Named, Pattern, text};
use super::numbers::{decimal, number};
use super::section::Section;
use crate::time::UnixMillis;

/// Largest budget that is taken for meant.
const BUDGET_MAX_DOLLARS_PER_HOUR: f64 = 1e6;

/// Least budget, so that zero is not taken for "no limit".
const BUDGET_MIN_DOLLARS_PER_HOUR: f64 = 0.01;

/// Whether decisions are carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// Everything is measured, decided and shown; no capacity is changed.
    #[default]
    Observe,
    /// Decisions are carried out.
    Act,
}

impl Mode {
    /// The word of the policy.
    pub fn as_str(self) -> &'static str {
        self.name()
    }
}

impl Named for Mode {
    const NAMES: &'static [(&'static str, Self)] =
        &[("observe", Self::Observe), ("act", Self::Act)];
}

/// `spec.budget`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// `dollarsPerHour`: most that all worker groups may cost. Required, 0.01 to 1000000.
    pub dollars_per_hour: f64,
}

impl Budget {
    pub(super) fn read(budget: &mut Section<'_, '_>) -> Self {
        let range = BUDGET_MIN_DOLLARS_PER_HOUR..=BUDGET_MAX_DOLLARS_PER_HOUR;
        Self { dollars_per_hour: budget.required("dollarsPerHour", decimal(range, "dollars")) }
    }
}

/// `spec.deadline`: so many policy updates until then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpdateDeadline {
    /// `updates`: policy updates since the run began. Required, at least 1.
    pub updates: u32,
    /// `by`: the moment, written as in RFC 3339 with its offset. Required.
    pub by: UnixMillis,
}

impl UpdateDeadline {
    pub(super) fn read(deadline: &mut Section<'_, '_>) -> Self {
        Self {
            updates: deadline.required("updates", number(1..=u32::MAX)),
            by: deadline.required("by", text::<Moment>()).0,
        }
    }
}

/// A moment as RFC 3339 writes it, not before 1970.
pub(super) struct Moment(pub(super) UnixMillis);

/// A text that is not such a moment.
#[derive(Debug, Error)]
#[error("not a moment")]
pub(super) struct NotAMoment;

impl FromStr for Moment {
    type Err = NotAMoment;

    fn from_str(text: &str) -> Result<Self, NotAMoment> {
        // jiff reads more forms than the cluster does.
        let is_strict = text.as_bytes().get(10) == Some(&b'T')
            && text.as_bytes().get(16) == Some(&b':')
            && (text.ends_with('Z') || text.as_bytes().iter().rev().nth(2) == Some(&b':'));
        if !is_strict {
            return Err(NotAMoment);
        }
        let timestamp: jiff::Timestamp = text.parse().map_err(|_| NotAMoment)?;
        let millis = u64::try_from(timestamp.as_millisecond()).map_err(|_| NotAMoment)?;
        Ok(Self(UnixMillis(millis)))
    }
}

impl Pattern for Moment {
    const FORM: &'static str = "be a moment such as 2026-12-24T18:00:00Z";
    const EXAMPLE: &'static str = "2026-12-24T18:00:00Z";
    const REGEX: &'static str = "^(19[7-9][0-9]|[2-9][0-9]{3})-[0-9]{2}-[0-9]{2}T\
                                 [0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?\
                                 (Z|[+-][0-9]{2}:[0-9]{2})$";
    const LENGTH_LIMIT: usize = 64;
    const FORMAT: Option<&'static str> = Some("date-time");
}
