//! Faults of single calls and replies of an emulated engine.

use axum::http::StatusCode;

use super::events::EndFaults;

/// The faults set. Those of streams and of the whole engine live in the scheduler.
#[derive(Default)]
pub(super) struct Faults {
    /// The next so many generation calls fail with this status.
    pub(super) failing_calls: Option<(u32, StatusCode)>,
    /// What is wrong with the ends of streams.
    pub(super) ends: EndFaults,
    /// New weights labels are acknowledged and not taken over.
    pub(super) ignores_labels: bool,
    /// Weights whose place begins so cannot be loaded.
    pub(super) unreadable_weights: Option<String>,
}

impl Faults {
    /// Whether weights cannot be loaded from `place`.
    pub(super) fn refuses_weights(&self, place: &str) -> bool {
        self.unreadable_weights.as_ref().is_some_and(|beginning| place.starts_with(beginning))
    }

    /// The status with which the call that just came must fail, if it must.
    pub(super) fn take_failing_call(&mut self) -> Option<StatusCode> {
        let (left, status) = self.failing_calls?;
        self.failing_calls = (left > 1).then(|| (left - 1, status));
        (left > 0).then_some(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_next_calls_fail() {
        let mut faults =
            Faults { failing_calls: Some((2, StatusCode::BAD_GATEWAY)), ..Faults::default() };
        assert_eq!(faults.take_failing_call(), Some(StatusCode::BAD_GATEWAY));
        assert_eq!(faults.take_failing_call(), Some(StatusCode::BAD_GATEWAY));
        assert_eq!(faults.take_failing_call(), None);
    }
}
