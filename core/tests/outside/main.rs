//! Everything that comes from outside, read: laws that hold for every body, whatever befell it.
//!
//! A documented body keeps its meaning or is refused, and the refusal says what is wrong; no body
//! panics. `tests/run --long` tries a thousand times as many.

#![allow(clippy::unwrap_used, reason = "tests may unwrap")]

mod bytes;
mod deadlines;
mod documented;
mod json;
mod laws;
mod mutation;
mod names;
mod texts;

/// How many cases a property is tried with.
#[allow(
    clippy::disallowed_methods,
    reason = "how long the tests run is asked of them from outside"
)]
fn cases(quick: u32) -> proptest::test_runner::Config {
    let is_long = std::env::var("EBBTIDE_TEST_LONG").is_ok_and(|value| value == "1");
    let factor = if is_long { 1000 } else { 1 };
    proptest::test_runner::Config::with_cases(quick * factor)
}
