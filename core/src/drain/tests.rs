//! The plan: some drains by hand, and the laws for all of them.

use proptest::prelude::*;

use super::*;

fn unit(slot: u16, tokens: u32, speed: Option<f64>) -> InFlightUnit {
    InFlightUnit {
        unit: UnitId { group: "g".parse().expect("valid"), slot },
        tokens,
        max_tokens: 1000,
        slow_tokens_per_second: speed,
    }
}

fn window(remaining_seconds: u64) -> DrainWindow {
    DrainWindow {
        remaining: Duration::from_secs(remaining_seconds),
        reserve: Duration::from_secs(10),
    }
}

fn kept_slots(plan: &DrainPlan) -> Vec<u16> {
    plan.kept().map(|decision| decision.unit.slot).collect()
}

#[test]
fn what_finishes_in_time_is_kept_and_the_rest_goes_back_longest_first() {
    // 110 s are usable: at 10 tokens/s that is 1100 tokens, at 5 tokens/s 550.
    let units = [
        unit(0, 900, Some(10.0)),
        unit(1, 400, Some(5.0)),
        unit(2, 100, Some(5.0)),
        unit(3, 0, None),
    ];
    let plan = plan_drain(&units, &ResponseLengths::default(), window(120));
    let handed_back: Vec<u16> = plan.handed_back().map(|d| d.unit.slot).collect();
    assert_eq!(handed_back, [3, 2, 1]);
    assert_eq!(kept_slots(&plan), [0]);
}

#[test]
fn known_lengths_keep_what_the_token_limit_alone_would_not() {
    let mut lengths = ResponseLengths::default();
    (1..=100).for_each(|length| lengths.record(length * 10));
    // Longer than 500: 510 to 1000 in steps of ten; the 45th of these 50 is 950.
    assert_eq!(lengths.tokens_left(500, 10_000), 450);
    let unit = InFlightUnit { max_tokens: 10_000, ..unit(0, 500, Some(5.0)) };
    let units = std::slice::from_ref(&unit);
    assert_eq!(kept_slots(&plan_drain(units, &lengths, window(120))), [0]);
    let unknown = ResponseLengths::default();
    assert!(kept_slots(&plan_drain(units, &unknown, window(120))).is_empty());
}

#[test]
fn few_longer_responses_say_nothing() {
    let mut lengths = ResponseLengths::default();
    (0..1000).for_each(|_| lengths.record(20));
    assert_eq!(lengths.tokens_left(30, 1000), 970);
}

#[test]
fn nothing_is_kept_from_the_reserve_on() {
    let units = [unit(0, 999, Some(1e9))];
    for remaining in [0, 5, 10] {
        let plan = plan_drain(&units, &ResponseLengths::default(), window(remaining));
        let verdict = plan.decisions[0].verdict;
        assert_eq!(verdict, Verdict::HandBack(HandBackReason::NoTimeLeft), "{remaining}");
    }
}

#[test]
fn each_step_says_what_is_done_by_when_and_why() {
    let units = [unit(0, 990, Some(10.0)), unit(1, 0, Some(5.0)), unit(2, 100, None)];
    let say = |seconds| -> Vec<String> {
        let plan = plan_drain(&units, &ResponseLengths::default(), window(seconds));
        let say = |it: &UnitDecision| {
            let (slot, done, due) = (it.unit.slot, it.verdict.as_str(), it.due_in.as_secs());
            format!("{slot} {done} within {due} s: {}", it.verdict)
        };
        plan.decisions.iter().map(say).collect()
    };
    assert_eq!(
        say(120),
        [
            "1 hand_back within 0 s: it is expected to take 200.0 s, too long",
            "2 hand_back within 0 s: its speed is not known",
            "0 keep within 110 s: it is expected to finish in 1.0 s",
        ]
    );
    assert_eq!(say(10)[2], "0 hand_back within 0 s: no time is left");
}

fn any_speed() -> impl Strategy<Value = Option<f64>> {
    prop_oneof![
        4 => (0.0..500.0_f64).prop_map(Some),
        1 => Just(None),
        1 => any::<f64>().prop_map(Some),
    ]
}

fn any_units() -> impl Strategy<Value = Vec<InFlightUnit>> {
    prop::collection::vec((0..2000_u32, 1..4000_u32, any_speed()), 0..40).prop_map(|rows| {
        let numbered = rows.into_iter().zip(0_u16..);
        numbered
            .map(|((tokens, max_tokens, speed), slot)| InFlightUnit {
                max_tokens,
                ..unit(slot, tokens.min(max_tokens), speed)
            })
            .collect()
    })
}

/// Lengths as they came; more than are remembered, or next to none.
fn any_lengths() -> impl Strategy<Value = Vec<u32>> {
    prop_oneof![
        4 => prop::collection::vec(1..4000_u32, 0..80),
        1 => prop::collection::vec(1..4000_u32, 990..1200),
    ]
}

fn remembered(lengths: &[u32]) -> ResponseLengths {
    let mut remembered = ResponseLengths::default();
    lengths.iter().for_each(|length| remembered.record(*length));
    remembered
}

fn any_window() -> impl Strategy<Value = DrainWindow> {
    (0_u64..200_000, 0_u64..20_000).prop_map(|(remaining, reserve)| DrainWindow {
        remaining: Duration::from_millis(remaining),
        reserve: Duration::from_millis(reserve),
    })
}

/// The 90th percentile of the tokens left, as the contract has it, reckoned by counting: the
/// smallest length of which nine tenths of those that went on are not longer.
fn tokens_left(lengths: &[u32], unit: &InFlightUnit) -> u32 {
    let most = unit.max_tokens - unit.tokens;
    let newest = &lengths[lengths.len().saturating_sub(1000)..];
    let longer: Vec<u32> = newest.iter().copied().filter(|it| *it > unit.tokens).collect();
    if longer.len() < 10 {
        return most;
    }
    let covers = |it: u32| longer.iter().filter(|other| **other <= it).count() * 10;
    let enough = longer.iter().copied().filter(|it| covers(*it) >= longer.len() * 9);
    most.min(enough.min().expect("the longest covers all") - unit.tokens)
}

/// Whether the contract's rule keeps a unit; none where rounding decides.
fn is_kept(unit: &InFlightUnit, lengths: &[u32], window: DrainWindow) -> Option<bool> {
    let usable = window.remaining.as_secs_f64() - window.reserve.as_secs_f64();
    let speed = unit.slow_tokens_per_second.filter(|speed| speed.is_finite() && *speed > 0.0);
    let Some(speed) = speed.filter(|_| usable > 0.0) else { return Some(false) };
    let finishes_in = f64::from(tokens_left(lengths, unit)) / speed;
    ((finishes_in - usable).abs() > 1e-6).then_some(finishes_in < usable)
}

proptest! {
    #[test]
    fn unit_is_kept_exactly_when_the_rule_says_so(
        units in any_units(),
        lengths in any_lengths(),
        window in any_window(),
    ) {
        let plan = plan_drain(&units, &remembered(&lengths), window);
        prop_assert_eq!(plan.decisions.len(), units.len(), "one decision for each");
        for unit in &units {
            let decision = plan.decisions.iter().find(|it| it.unit == unit.unit).expect("one");
            prop_assert_eq!(decision.tokens_left, tokens_left(&lengths, unit));
            let kept = matches!(decision.verdict, Verdict::Keep { .. });
            let expected = is_kept(unit, &lengths, window).unwrap_or(kept);
            prop_assert_eq!(kept, expected, "{:?} {:?}", unit, window);
        }
    }

    #[test]
    fn nothing_is_planned_for_later_than_deadline_minus_reserve(
        units in any_units(),
        lengths in any_lengths(),
        window in any_window(),
    ) {
        let plan = plan_drain(&units, &remembered(&lengths), window);
        for decision in &plan.decisions {
            match decision.verdict {
                Verdict::Keep { finishes_in } => {
                    prop_assert!(finishes_in < decision.due_in);
                    prop_assert_eq!(decision.due_in + window.reserve, window.remaining);
                    continue;
                }
                Verdict::HandBack(HandBackReason::NoTimeLeft) => {
                    prop_assert!(window.remaining <= window.reserve);
                }
                Verdict::HandBack(HandBackReason::TooLong(finishes_in)) => {
                    prop_assert!(finishes_in.saturating_add(window.reserve) >= window.remaining);
                }
                Verdict::HandBack(HandBackReason::UnknownSpeed) => {}
            }
            prop_assert_eq!(decision.due_in, Duration::ZERO, "what goes back does so at once");
        }
        let too_late = DrainWindow { remaining: window.reserve, ..window };
        let plan = plan_drain(&units, &remembered(&lengths), too_late);
        prop_assert_eq!(plan.kept().count(), 0);
    }

    #[test]
    fn same_input_gives_the_same_plan_longest_first(
        units in any_units(),
        lengths in any_lengths(),
        window in any_window(),
        turn in any::<prop::sample::Index>(),
    ) {
        let lengths = remembered(&lengths);
        let plan = plan_drain(&units, &lengths, window);
        prop_assert_eq!(&plan, &plan_drain(&units, &lengths, window));
        let mut shuffled = units.clone();
        shuffled.reverse();
        shuffled.rotate_left(turn.index(units.len().max(1)));
        prop_assert_eq!(&plan, &plan_drain(&shuffled, &lengths, window));
        let left: Vec<u32> = plan.decisions.iter().map(|d| d.tokens_left).collect();
        prop_assert!(left.is_sorted_by(|a, b| a >= b));
        let back: Vec<u32> = plan.handed_back().map(|d| d.tokens_left).collect();
        prop_assert!(back.is_sorted_by(|a, b| a >= b));
    }

    /// Nor does a longer reserve, a slower unit, or company.
    #[test]
    fn tighter_deadline_never_keeps_more(
        units in any_units(),
        lengths in any_lengths(),
        window in any_window(),
        less_ms in 0_u64..200_000,
        slower in 0.0..1.0_f64,
    ) {
        let lengths = remembered(&lengths);
        let wide = plan_drain(&units, &lengths, window);
        let less = Duration::from_millis(less_ms);
        let remaining = window.remaining.saturating_sub(less);
        let sooner = DrainWindow { remaining, ..window };
        let reserved = DrainWindow { reserve: window.reserve + less, ..window };
        let slow: Vec<InFlightUnit> = units.iter().cloned().map(|it| InFlightUnit {
            slow_tokens_per_second: it.slow_tokens_per_second.map(|speed| speed * slower),
            ..it
        }).collect();
        let tight = [
            plan_drain(&units, &lengths, sooner),
            plan_drain(&units, &lengths, reserved),
            plan_drain(&slow, &lengths, window),
        ];
        for decision in tight.iter().flat_map(DrainPlan::kept) {
            prop_assert!(wide.kept().any(|other| other.unit == decision.unit));
        }
        for unit in &units {
            let alone = plan_drain(std::slice::from_ref(unit), &lengths, window);
            prop_assert!(wide.decisions.contains(&alone.decisions[0]), "{:?}", unit);
        }
    }

    /// Once what cannot finish is gone, another look at the same moment changes nothing.
    #[test]
    fn plan_of_what_was_kept_keeps_it(
        units in any_units(),
        lengths in any_lengths(),
        window in any_window(),
    ) {
        let lengths = remembered(&lengths);
        let plan = plan_drain(&units, &lengths, window);
        let is_kept = |unit: &InFlightUnit| plan.kept().any(|it| it.unit == unit.unit);
        let kept: Vec<InFlightUnit> = units.iter().filter(|it| is_kept(it)).cloned().collect();
        let again = plan_drain(&kept, &lengths, window);
        prop_assert_eq!(again.handed_back().count(), 0);
        let expected: Vec<UnitDecision> = plan.kept().cloned().collect();
        prop_assert_eq!(again.decisions, expected);
    }
}
