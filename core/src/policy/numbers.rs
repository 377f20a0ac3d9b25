//! Kinds of values that are counted or measured, each within a range.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::duration::{Written, parse_duration};
use super::kinds::{ScalarKind, Writable};
use super::located::Scalar;

fn check_range<T: PartialOrd + Copy>(
    value: T,
    range: &RangeInclusive<T>,
    show: impl Fn(T) -> String,
) -> Result<T, String> {
    if value < *range.start() {
        return Err(format!("must be at least {}, got {}", show(*range.start()), show(value)));
    }
    if value > *range.end() {
        return Err(format!("must be at most {}, got {}", show(*range.end()), show(value)));
    }
    Ok(value)
}

/// Whole numbers within a range.
pub(super) struct Number<T>(RangeInclusive<T>);

/// A whole number within `range`.
pub(super) fn number<T>(range: RangeInclusive<T>) -> Number<T> {
    Number(range)
}

impl<T: Copy + Into<u64> + TryFrom<u64>> ScalarKind for Number<T> {
    type Value = T;

    fn expected(&self) -> String {
        "a whole number".to_owned()
    }

    fn parse(&self, scalar: &Scalar) -> Result<T, String> {
        let refuse = |hint| format!("must be a whole number, got {}{hint}", scalar.in_words());
        let number: i128 = scalar.text.parse().map_err(|_| refuse(""))?;
        if scalar.is_quoted {
            return Err(refuse("; remove the quotes"));
        }
        if number.to_string() != scalar.text {
            return Err(refuse("; write it with digits alone"));
        }
        let wide = i128::from((*self.0.start()).into())..=i128::from((*self.0.end()).into());
        let number = check_range(number, &wide, |number| number.to_string())?;
        let narrow = u64::try_from(number).ok().and_then(|number| T::try_from(number).ok());
        narrow.ok_or_else(|| refuse(""))
    }

    fn stand_in(&self) -> T {
        *self.0.start()
    }

    fn schema(&self) -> Json {
        let (least, most): (u64, u64) = ((*self.0.start()).into(), (*self.0.end()).into());
        json!({ "type": "integer", "format": "int64", "minimum": least, "maximum": most })
    }
}

impl<T: Copy + Into<u64> + TryFrom<u64>> Writable for Number<T> {
    fn write(&self, value: &T) -> Json {
        let value: u64 = (*value).into();
        json!(value)
    }
}

/// Numbers with or without a fraction within a range.
pub(super) struct Decimal {
    range: RangeInclusive<f64>,
    unit: &'static str,
}

/// A number within `range`, with or without a fraction, counted in `unit`.
pub(super) fn decimal(range: RangeInclusive<f64>, unit: &'static str) -> Decimal {
    Decimal { range, unit }
}

impl ScalarKind for Decimal {
    type Value = f64;

    fn expected(&self) -> String {
        format!("a number of {}", self.unit)
    }

    fn parse(&self, scalar: &Scalar) -> Result<f64, String> {
        let is_plain = |c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | 'e' | 'E' | '+');
        let number = scalar.text.parse::<f64>().ok().filter(|number| number.is_finite());
        match number.filter(|_| !scalar.is_quoted && scalar.text.chars().all(is_plain)) {
            Some(number) => check_range(number, &self.range, |number| number.to_string()),
            None => Err(format!("must be {}, got {}", self.expected(), scalar.in_words())),
        }
    }

    fn stand_in(&self) -> f64 {
        *self.range.start()
    }

    fn schema(&self) -> Json {
        json!({
            "type": "number",
            "minimum": self.range.start(),
            "maximum": self.range.end(),
            "description": format!("In {}.", self.unit),
        })
    }
}

impl Writable for Decimal {
    fn write(&self, value: &f64) -> Json {
        json!(value)
    }
}

/// The form that [`parse_duration`] reads.
const REGEX: &str = "^([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$";

/// Longest duration that a cluster takes, in characters: four units of six digits each.
const LENGTH_LIMIT: usize = 32;

/// Durations within a range.
pub(super) struct Length(RangeInclusive<Duration>);

/// A duration within `range`, written with its unit.
pub(super) fn duration(range: RangeInclusive<Duration>) -> Length {
    Length(range)
}

impl ScalarKind for Length {
    type Value = Duration;

    fn expected(&self) -> String {
        "a duration such as 90s or 1h30m".to_owned()
    }

    fn parse(&self, scalar: &Scalar) -> Result<Duration, String> {
        let length = parse_duration(&scalar.text).map_err(|error| error.to_string())?;
        check_range(length, &self.0, |length| Written(length).to_string())
    }

    fn stand_in(&self) -> Duration {
        *self.0.start()
    }

    fn schema(&self) -> Json {
        let (least, most) = (Written(*self.0.start()), Written(*self.0.end()));
        json!({
            "type": "string",
            "pattern": REGEX,
            "minLength": 2,
            "maxLength": LENGTH_LIMIT,
            "description": format!("A duration such as 90s or 1h30m, {least} to {most}."),
            "x-kubernetes-validations": [{
                "rule": format!(
                    "duration(self) >= duration('{least}') && duration(self) <= duration('{most}')"
                ),
                "message": format!("must be {least} to {most}"),
            }],
        })
    }
}

impl Writable for Length {
    fn write(&self, value: &Duration) -> Json {
        json!(Written(*value).to_string())
    }
}
