//! Laws of late engines: when one is brought to the run's version, and what it says until then.

use std::time::Duration;

use super::super::tests::{facts, paused, probe, slot};
use super::*;

fn terms() -> WeightsTerms {
    let cache = Some("/weights/{run}/{version}-{sha256}".to_owned());
    WeightsTerms { max_lag: 2, cache, ..WeightsTerms::default() }
}

fn published(version: u64, uri: &str) -> VersionRecord {
    let (version, uri) = (PolicyVersion(version), uri.to_owned());
    VersionRecord { version, uri, sha256: "ab".to_owned(), ..VersionRecord::default() }
}

/// Holds an engine against the run until the grace is over; returns what is told then.
fn held_against(slot: &EngineSlot, run: &VersionRecord, terms: &WeightsTerms) -> Condition {
    let now = Instant::now();
    slot.note_run(run, terms, "r", now);
    slot.note_run(run, terms, "r", now + terms.grace + Duration::from_secs(1));
    slot.condition()
}

fn take_order(slot: &EngineSlot) -> Option<LoadOrder> {
    slot.standing().lateness.order.take()
}

#[tokio::test]
async fn only_weights_that_the_run_gives_nothing_to_are_late() {
    for (label, is_late) in
        [("4", true), ("5", false), ("7", false), ("8", false), ("default", true)]
    {
        let slot = slot();
        probe(&slot, facts(label));
        held_against(&slot, &published(7, "s3://b/7"), &terms());
        assert_eq!(slot.is_to_load(), is_late, "{label}");
        assert_eq!(slot.admits(Instant::now()).is_some(), !is_late, "{label}");
    }
    let unpublished = slot();
    probe(&unpublished, facts("default"));
    held_against(&unpublished, &published(0, ""), &terms());
    assert!(!unpublished.is_to_load(), "nobody has published anything");
}

#[tokio::test]
async fn cache_comes_first_and_the_store_second() {
    for (uri, stored) in [
        ("s3://b/7", Some("s3://b/7")),
        ("file:///mnt/7", Some("/mnt/7")),
        ("https://store/7", None),
        ("", None),
    ] {
        let slot = slot();
        probe(&slot, facts("0"));
        held_against(&slot, &published(7, uri), &terms());
        let order = take_order(&slot).expect("a load is due");
        let places: Vec<&str> = order.places.iter().map(|it| it.place.as_str()).collect();
        let all: Vec<&str> = ["/weights/r/7-ab"].into_iter().chain(stored).collect();
        assert_eq!(places, all, "{uri}");
    }
}

#[tokio::test]
async fn engine_that_nobody_pushes_to_and_that_has_nowhere_to_load_from_says_what_to_do() {
    let terms = WeightsTerms { cache: None, ..terms() };
    for uri in ["", "https://store/7"] {
        let slot = slot();
        probe(&slot, facts("0"));
        let told = held_against(&slot, &published(7, uri), &terms);
        let says = |why: &str| why.contains("--weights-cache") && why.contains(uri);
        assert!(matches!(&told, Condition::NotReady(why) if says(why)), "{told:?}");
        assert_eq!((slot.admits(Instant::now()), take_order(&slot)), (None, None));
        probe(&slot, facts("6"));
        assert_eq!(held_against(&slot, &published(7, uri), &terms), {
            Condition::Ready(PolicyVersion(6))
        });
    }
}

#[tokio::test]
async fn grace_begins_anew_while_somebody_is_at_work_on_the_engine() {
    let (slot, terms, run) = (slot(), terms(), published(7, "s3://b/7"));
    let begun = Instant::now();
    let half = terms.grace * 2 / 3;
    probe(&slot, facts("0"));
    slot.note_run(&run, &terms, "r", begun);
    probe(&slot, paused());
    slot.note_run(&run, &terms, "r", begun + half);
    probe(&slot, facts("1"));
    slot.note_run(&run, &terms, "r", begun + 2 * half);
    slot.note_run(&run, &terms, "r", begun + 3 * half);
    assert!(!slot.is_to_load());
    slot.note_run(&run, &terms, "r", begun + 4 * half);
    assert!(slot.is_to_load());
}

#[tokio::test]
async fn load_that_failed_is_tried_again_after_a_pause_and_told_until_it_worked() {
    let (slot, terms, run) = (slot(), terms(), published(7, "s3://b/7"));
    probe(&slot, facts("0"));
    held_against(&slot, &run, &terms);
    assert!(take_order(&slot).is_some());
    let now = Instant::now() + Duration::from_secs(100);
    slot.note_load_ended(Err("no such bucket".to_owned()), now);
    let is_told = |told: Condition| told == Condition::NotReady("no such bucket".to_owned());
    slot.note_run(&run, &terms, "r", now + LOAD_PAUSE_MIN / 3);
    assert!(is_told(slot.condition()) && take_order(&slot).is_none());
    slot.note_run(&run, &terms, "r", now + LOAD_PAUSE_MIN);
    assert!(slot.is_to_load() && take_order(&slot).is_some());
    slot.note_load_ended(Ok(()), now);
    probe(&slot, facts("7"));
    assert_eq!(held_against(&slot, &run, &terms), Condition::Ready(PolicyVersion(7)));
}

#[tokio::test]
async fn engine_is_given_up_by_its_load_and_not_by_probes_that_it_is_deaf_to() {
    let (slot, run) = (slot(), published(7, "s3://b/7"));
    probe(&slot, facts("0"));
    held_against(&slot, &run, &terms());
    for _ in 0..3 {
        probe(&slot, Err(super::super::tests::away()));
    }
    assert!(matches!(slot.condition(), Condition::Loading(_)));
    slot.note_load_ended(Err("connection reset".to_owned()), Instant::now());
    for _ in 0..2 {
        probe(&slot, Err(super::super::tests::away()));
    }
    let told = slot.condition();
    assert!(matches!(&told, Condition::NotReady(why) if why.contains("refused")), "{told:?}");
}

#[tokio::test]
async fn weights_that_fell_are_mended_by_a_load() {
    let (slot, run) = (slot(), published(7, "s3://b/7"));
    probe(&slot, facts("7"));
    probe(&slot, facts("6"));
    held_against(&slot, &run, &terms());
    assert_eq!(take_order(&slot).map(|order| order.version), Some(PolicyVersion(7)));
}
