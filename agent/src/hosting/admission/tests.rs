//! Laws of admission control, and an engine of two lines that it is to follow.

use proptest::prelude::*;

use super::*;

fn load(running: usize, waiting: usize, kv_cache_use: f64) -> EngineLoad {
    EngineLoad {
        running: Some(running as u64),
        waiting: Some(waiting as u64),
        kv_cache_use: Some(kv_cache_use),
        ..EngineLoad::default()
    }
}

fn preempting(times: u64) -> EngineLoad {
    EngineLoad { preemptions: Some(times), ..load(64, 0, 0.5) }
}

/// So many streams, all of which have begun.
fn begun(streams: usize) -> EngineHeld {
    EngineHeld { streams, begun: streams, units: streams }
}

/// An engine that runs so many sequences at once, each with a share of the KV cache.
struct Engine {
    slots: usize,
    kv_each: f64,
    streams: usize,
}

impl Engine {
    fn running(&self) -> usize {
        // A float beyond the range becomes the end of the range.
        self.streams.min(self.slots).min((1.0 / self.kv_each) as usize)
    }

    /// What it holds, once everything that it can begin has begun.
    fn held(&self) -> EngineHeld {
        EngineHeld { streams: self.streams, begun: self.running(), units: self.streams }
    }

    /// Fills it until there is no more room; returns the most that ever waited in it.
    fn fill(&mut self, control: &AdmissionControl) -> usize {
        let mut most_waiting = 0;
        loop {
            let room = control.room(self.held());
            if room == 0 {
                return most_waiting;
            }
            self.streams += room;
            most_waiting = most_waiting.max(self.streams - self.running());
        }
    }

    fn read(&self) -> EngineLoad {
        let used = self.kv_each * self.running() as f64;
        load(self.running(), self.streams - self.running(), used.min(1.0))
    }
}

/// Readings and fillings in turn, with one sequence that ends at each.
fn run(engine: &mut Engine, control: &mut AdmissionControl, readings: usize) -> usize {
    let mut most_waiting = 0;
    for _ in 0..readings {
        control.note(&engine.read(), engine.held());
        most_waiting = most_waiting.max(engine.fill(control));
        engine.streams -= 1;
    }
    most_waiting
}

#[test]
fn engine_that_does_not_tell_has_the_fixed_limit() {
    let mut control = AdmissionControl::new(64);
    assert_eq!(control.places(0), 64);
    control.note(&EngineLoad::default(), begun(0));
    (0..20).for_each(|_| control.note_miss());
    assert_eq!(control.places(3), 64);
}

#[test]
fn engine_without_a_limit_is_filled_to_the_ceiling_by_its_own_first_tokens() {
    let mut control = AdmissionControl::new(512);
    control.note(&load(0, 0, 0.0), begun(0));
    assert_eq!(control.places(0), 8, "it begins with care");
    let mut engine = Engine { slots: 10_000, kv_each: 0.000_1, streams: 0 };
    engine.fill(&control);
    assert_eq!(engine.streams, 512);
}

#[test]
fn no_more_than_the_look_ahead_ever_waits_in_an_engine() {
    for slots in [8, 64, 256] {
        let mut control = AdmissionControl::new(1024);
        control.note(&load(0, 0, 0.0), begun(0));
        let mut engine = Engine { slots, kv_each: 0.000_1, streams: 0 };
        let at_first = run(&mut engine, &mut control, 3);
        assert!(at_first <= slots / 4, "{at_first} waited before {slots} slots were seen full");
        let later = run(&mut engine, &mut control, 100);
        assert!(later <= 1 + slots / 64, "{later} waited in an engine of {slots}");
        assert!(engine.streams >= slots - 1, "it is kept full, has {}", engine.streams);
    }
}

#[test]
fn full_engine_that_has_room_again_gets_more_than_one_by_one() {
    let mut control = AdmissionControl::new(1024);
    let mut engine = Engine { slots: 8, kv_each: 0.001, streams: 0 };
    run(&mut engine, &mut control, 20);
    assert_eq!(control.pressure, Pressure::Full);
    engine.slots = 64;
    engine.fill(&control);
    assert!(engine.streams >= 64, "{}", engine.streams);
    let waiting = EngineHeld { begun: 60, ..begun(62) };
    (0..2).for_each(|_| control.note(&load(62, 0, 0.1), waiting));
    assert_eq!(control.pressure, Pressure::Open);
}

#[test]
fn engine_with_a_tight_kv_cache_is_kept_between_its_marks() {
    let mut control = AdmissionControl::new(1024);
    control.note(&load(0, 0, 0.0), begun(0));
    let mut engine = Engine { slots: 1024, kv_each: 0.01, streams: 0 };
    run(&mut engine, &mut control, 100);
    for _ in 0..100 {
        run(&mut engine, &mut control, 1);
        let used = engine.read().kv_cache_use.expect("told");
        assert!((0.75..KV_OVERFULL).contains(&used), "{used}");
    }
}

#[test]
fn preemptions_lower_the_cap_once_until_that_much_has_ended() {
    let mut control = AdmissionControl::new(64);
    control.note(&preempting(5), begun(64));
    assert_eq!(control.places(64), 64, "what was before the first reading says nothing");
    control.note(&preempting(6), begun(64));
    assert_eq!((control.places(64), control.places(10)), (56, 10));
    control.note(&preempting(7), begun(60));
    assert_eq!(control.cap, 56, "four have ended, and four are still to");
    control.note(&preempting(8), begun(56));
    assert_eq!(control.cap, 49);
    for _ in 0..20 {
        control.note(&preempting(8), begun(control.cap));
    }
    assert_eq!(control.cap, 64, "it may try again");
}

#[test]
fn engine_started_anew_counts_its_preemptions_from_the_start() {
    let mut control = AdmissionControl::new(64);
    control.note(&preempting(100), begun(64));
    control.note(&preempting(0), begun(64));
    assert_eq!(control.cap, 64);
}

#[test]
fn overfull_engine_whose_readings_fail_gets_what_it_finishes_again() {
    let mut control = AdmissionControl::new(64);
    control.note(&load(20, 0, 0.99), begun(20));
    assert_eq!(control.places(10), 10);
    (0..MISSES_LIMIT).for_each(|_| control.note_miss());
    assert_eq!(control.places(10), 18, "up to the cap");
}

#[test]
fn capacity_is_what_an_engine_bore_that_was_full_for_long() {
    let mut control = AdmissionControl::new(256);
    let full = EngineHeld { streams: 110, ..begun(100) };
    (0..READINGS_SETTLED).for_each(|_| control.note(&load(100, 10, 0.5), full));
    assert_eq!(control.capacity(), 256, "it may only be busy with prompts");
    (0..2).for_each(|_| control.note(&load(100, 10, 0.5), full));
    assert_eq!(control.capacity(), 100);
    (0..99).for_each(|_| control.note(&load(3, 0, 0.1), begun(3)));
    assert_eq!(control.capacity(), 100, "the queue was empty, which shows nothing");
    control.note(&load(120, 0, 0.5), begun(120));
    assert_eq!(control.capacity(), 120);
    (0..99).for_each(|_| control.note(&load(90, 0, 0.9), EngineHeld { streams: 92, ..begun(90) }));
    assert_eq!(control.capacity(), 90);
}

#[test]
fn engine_that_grows_while_it_is_full_has_shown_no_limit() {
    let mut control = AdmissionControl::new(256);
    for begun_now in 8..200 {
        let held = EngineHeld { streams: begun_now + 5, ..begun(begun_now) };
        control.note(&load(begun_now, 5, 0.2), held);
        assert_eq!(control.capacity(), 256);
    }
}

#[test]
fn engine_is_filled_to_what_it_bore_at_once_after_a_lull() {
    let mut control = AdmissionControl::new(256);
    control.note(&load(100, 0, 0.5), begun(100));
    let waiting = EngineHeld { streams: 120, ..begun(100) };
    (0..2).for_each(|_| control.note(&load(100, 20, 0.5), waiting));
    control.note(&load(0, 0, 0.0), begun(0));
    assert_eq!(control.places(0), 101);
}

#[test]
fn look_ahead_rests_after_a_withdrawal_longer_each_time_until_one_begins() {
    let mut control = AdmissionControl::new(256);
    let full = load(8, 1, 0.1);
    control.note(&full, begun(8));
    assert_eq!(control.places(8), 9);
    for readings in [10, 20, 40, 80, 160, 160] {
        control.note_withdrawn();
        for _ in 0..readings {
            assert_eq!(control.places(8), 8, "of {readings}");
            control.note(&load(8, 0, 0.1), begun(8));
        }
        assert_eq!((control.places(8), control.pressure), (9, Pressure::Full));
    }
    control.note(&load(9, 0, 0.1), begun(9));
    control.note_withdrawn();
    (0..10).for_each(|_| control.note(&full, begun(8)));
    assert_eq!(control.places(8), 9, "it had room for one more");
}

#[test]
fn ended_units_free_their_places_before_they_are_written() {
    let mut control = AdmissionControl::new(8);
    control.note(&load(8, 0, 0.0), begun(8));
    let room = |streams, units| control.room(EngineHeld { units, ..begun(streams) });
    assert_eq!((room(8, 8), room(5, 8), room(0, 8)), (0, 3, 8));
    assert_eq!((room(4, 14), room(0, 16)), (2, 0), "the queue has to hear of them some day");
}

fn any_load() -> impl Strategy<Value = EngineLoad> {
    let count = || proptest::option::of(0_u64..600);
    (count(), count(), proptest::option::of(0.0..1.0_f64), count()).prop_map(
        |(running, waiting, kv_cache_use, preemptions)| EngineLoad {
            running,
            waiting,
            kv_cache_use,
            preemptions,
            ..EngineLoad::default()
        },
    )
}

fn any_held() -> impl Strategy<Value = EngineHeld> {
    (0_usize..600, 0_usize..9).prop_map(|(streams, waiting)| EngineHeld {
        begun: streams.saturating_sub(waiting),
        ..begun(streams)
    })
}

fn any_history() -> impl Strategy<Value = Vec<Option<(EngineLoad, EngineHeld)>>> {
    proptest::collection::vec(proptest::option::of((any_load(), any_held())), 0..60)
}

fn after(history: &[Option<(EngineLoad, EngineHeld)>], ceiling: usize) -> AdmissionControl {
    let mut control = AdmissionControl::new(ceiling);
    for reading in history {
        match reading {
            Some((load, held)) => control.note(load, *held),
            None => control.note_miss(),
        }
    }
    control
}

proptest! {
    #[test]
    fn places_are_never_none_and_never_above_the_ceiling(
        history in any_history(), ceiling in 0_usize..600, streams in 0_usize..600,
    ) {
        let places = after(&history, ceiling).places(streams);
        prop_assert!((1..=ceiling.max(1)).contains(&places), "{}", places);
    }

    #[test]
    fn same_reading_again_and_again_comes_to_rest(
        history in any_history(), load in any_load(), held in any_held(),
    ) {
        let mut control = after(&history, 512);
        for _ in 0..64 {
            control.note(&load, held);
        }
        let at_rest = (control.cap, control.pressure);
        for _ in 0..8 {
            control.note(&load, held);
            prop_assert_eq!((control.cap, control.pressure), at_rest);
        }
    }

    #[test]
    fn short_kv_cache_never_gives_more(
        history in any_history(), kv_cache_use in KV_FULL..1.0, held in any_held(),
        waiting in 0_usize..9, streams in 0_usize..600,
    ) {
        let mut control = after(&history, 512);
        let cap = control.cap;
        control.note(&load(held.streams, waiting, kv_cache_use), held);
        prop_assert!(control.cap <= cap);
        let most = streams.max(held.begun).max(1);
        prop_assert!(control.places(streams) <= most + 1 + most / 64);
    }

    #[test]
    fn failed_readings_never_take_places_away(
        history in any_history(), misses in 0_u32..20, streams in 0_usize..600,
    ) {
        let mut control = after(&history, 512);
        let places = control.places(streams);
        (0..misses).for_each(|_| control.note_miss());
        prop_assert!(control.places(streams) >= places);
    }
}
