//! The steps of a drain plan, for the log: one line for each, with its deadline and its reason.

use std::time::Duration;

use ebbtide_core::drain::{DrainPlan, UnitDecision, Verdict};

/// Steps of one plan that have a line of their own: 64 = one page. The rest is one line together.
const LINES_MAX: usize = 64;

/// Logs what is done now. A unit that goes on is told once, in the first plan.
pub(super) fn log(plan: &DrainPlan, is_first: bool, remaining: Duration) {
    let (told, untold) = steps(plan, is_first);
    if !told.is_empty() {
        let (handed_back, kept) = (plan.handed_back().count(), plan.kept().count());
        let remaining_ms = remaining.as_millis() as u64;
        tracing::info!(handed_back, kept, remaining_ms, "drain plan");
    }
    for step in told {
        tracing::info!(
            unit = %step.unit,
            step = step.verdict.as_str(),
            due_ms = step.due_in.as_millis() as u64,
            tokens_left = step.tokens_left,
            why = %step.verdict,
            "drain step"
        );
    }
    if !untold.is_empty() {
        let handed_back = untold.iter().filter(|it| is_hand_back(it)).count();
        let kept = untold.len() - handed_back;
        tracing::info!(handed_back, kept, "further drain steps");
    }
}

/// The steps with a line of their own, and the others.
fn steps(plan: &DrainPlan, is_first: bool) -> (Vec<&UnitDecision>, Vec<&UnitDecision>) {
    let is_news = |step: &&UnitDecision| is_first || is_hand_back(step);
    let mut told: Vec<&UnitDecision> = plan.decisions.iter().filter(is_news).collect();
    let untold = told.split_off(told.len().min(LINES_MAX));
    (told, untold)
}

fn is_hand_back(step: &UnitDecision) -> bool {
    matches!(step.verdict, Verdict::HandBack(_))
}

#[cfg(test)]
mod tests {
    use ebbtide_core::drain::{DrainWindow, InFlightUnit, ResponseLengths, plan_drain};
    use ebbtide_core::ids::UnitId;

    use super::*;

    /// As many units that finish, and as many that do not.
    fn plan(kept: u16, handed_back: u16) -> DrainPlan {
        let units = (0..kept + handed_back).map(|slot| InFlightUnit {
            unit: UnitId { group: "g".parse().expect("valid"), slot },
            tokens: 0,
            max_tokens: 100,
            slow_tokens_per_second: (slot < kept).then_some(100.0),
        });
        let units: Vec<InFlightUnit> = units.collect();
        let (remaining, reserve) = (Duration::from_secs(120), Duration::from_secs(10));
        plan_drain(&units, &ResponseLengths::default(), DrainWindow { remaining, reserve })
    }

    fn counts(plan: &DrainPlan, is_first: bool) -> (usize, usize) {
        let (told, untold) = steps(plan, is_first);
        (told.len(), untold.len())
    }

    #[test]
    fn each_step_has_a_line_once_and_many_are_summed_up() {
        assert_eq!(counts(&plan(3, 2), true), (5, 0));
        assert_eq!(counts(&plan(3, 2), false), (2, 0), "what goes on was told");
        assert_eq!(counts(&plan(0, 0), true), (0, 0));
        assert_eq!(counts(&plan(300, 500), true), (LINES_MAX, 800 - LINES_MAX));
        assert_eq!(counts(&plan(300, 500), false), (LINES_MAX, 500 - LINES_MAX));
    }
}
