//! The lease protocol, explored exhaustively.
//!
//! `stateright` makes every order of every step of [`model`] up to its bounds, on the very
//! [`MemoryShard`](ebbtide_queue::memory::MemoryShard) that the contract tests hold Redis to, and
//! judges each step by the laws of [`ledger`]. "Every group can end" is shown by ending it, from
//! every situation that was reached: a path to the end that the bounds do not cut off.

mod ledger;
mod mistakes;
mod model;
mod steps;

use ebbtide_core::work::ResumePolicy;
use stateright::{Checker, HasDiscoveries, Model};
use tokio::time::Instant;

use mistakes::Mistake;
use model::{Bounds, Protocol};

/// One slot, without anybody who interferes.
const ONE_SLOT: Bounds = Bounds {
    slots: 1,
    is_scored: false,
    tokens: 1,
    grants: 2,
    ticks: 1,
    attempts: 1,
    versions: 0,
    resume_policy: ResumePolicy::ContinueMixed,
    has_operators: false,
    fail_overs: 0,
};

/// Situations on the way to a mistake; every one shows within six steps.
const MISTAKE_DEPTH: usize = 8;

fn explore(bounds: Bounds, mistake: Mistake) -> impl Checker<Protocol> {
    let mut checker = Protocol::new(bounds, mistake).checker().threads(2);
    if mistake != Mistake::None {
        checker = checker.target_max_depth(MISTAKE_DEPTH);
    }
    checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join()
}

/// Every law holds in every situation that can be reached within the bounds; in a long run within
/// the wider ones.
fn every_law_holds(bounds: Bounds, wider: Bounds) {
    let bounds = if ebbtide_harness::is_long() { wider } else { bounds };
    let began = Instant::now();
    let explored = explore(bounds, Mistake::None);
    let (states, depth) = (explored.unique_state_count(), explored.max_depth());
    let seconds = began.elapsed().as_secs_f32();
    println!("{states} states, up to {depth} steps, all explored in {seconds:.1} s: {bounds:?}");
    for (property, path) in explored.discoveries() {
        assert_eq!(property, "GroupIsPublished", "broken by {path}");
    }
    assert!(explored.discovery("GroupIsPublished").is_some(), "nothing was ever finished");
}

#[test]
fn laws_hold_for_every_order_of_calls_on_one_slot() {
    let bounds = Bounds { tokens: 2, ..ONE_SLOT };
    every_law_holds(bounds, Bounds { attempts: 2, grants: 3, ..bounds });
}

#[test]
fn laws_hold_for_every_order_of_calls_on_two_slots() {
    let bounds = Bounds { slots: 2, ticks: 0, attempts: 2, ..ONE_SLOT };
    every_law_holds(bounds, Bounds { grants: 3, ..bounds });
}

#[test]
fn laws_hold_for_every_order_of_calls_where_samples_are_scored() {
    let bounds = Bounds { is_scored: true, attempts: 2, ..ONE_SLOT };
    every_law_holds(bounds, Bounds { grants: 3, ..bounds });
}

#[test]
fn laws_hold_for_every_order_of_calls_while_the_version_rises() {
    for resume_policy in
        [ResumePolicy::ContinueMixed, ResumePolicy::RestartIfNewer, ResumePolicy::MaskOld]
    {
        let bounds = Bounds { versions: 1, ticks: 0, resume_policy, ..ONE_SLOT };
        // The third version makes the tokens of the first too old.
        every_law_holds(bounds, Bounds { versions: 3, ..bounds });
    }
}

#[test]
fn laws_hold_for_every_order_of_calls_while_operators_interfere() {
    let bounds = Bounds { has_operators: true, ticks: 0, attempts: 2, ..ONE_SLOT };
    every_law_holds(bounds, Bounds { ticks: 1, ..bounds });
}

#[test]
fn laws_hold_for_every_order_of_calls_and_a_fail_over() {
    let bounds = Bounds { fail_overs: 1, ticks: 0, ..ONE_SLOT };
    every_law_holds(bounds, Bounds { ticks: 1, ..bounds });
}

/// The exploration is worth something only if it finds what is wrong.
#[test]
fn every_mistake_is_found() {
    let fail_over = Bounds { fail_overs: 1, ticks: 0, ..ONE_SLOT };
    let again = Bounds { attempts: 2, ..ONE_SLOT };
    for (mistake, law, bounds) in [
        (Mistake::IgnoresTokens, "OnlyTheHolderWrites", again),
        (Mistake::IgnoresHolders, "OnlyTheHolderWrites", fail_over),
        (Mistake::ReapsTooEarly, "LeasesAreWhereTheyWereGranted", ONE_SLOT),
        (Mistake::ForgetsRequests, "RepeatedRequestGrantsNothingNew", again),
        (Mistake::DropsTails, "AcceptedTokensStayAndNoOthersAppear", ONE_SLOT),
        (Mistake::ForgetsGroups, "GroupIsEnqueuedOnce", ONE_SLOT),
        (Mistake::NeverReaps, "EveryGroupCanEnd", ONE_SLOT),
        (Mistake::TakesWithoutWaiting, "GroupIsPublishedOnce", fail_over),
    ] {
        let explored = explore(bounds, mistake);
        let found: Vec<&str> = explored.discoveries().into_keys().collect();
        let Some(path) = explored.discovery(law) else {
            panic!("{mistake:?} breaks {law}, found was {found:?}");
        };
        println!("{mistake:?}, after {} states: {path}", explored.unique_state_count());
    }
}
