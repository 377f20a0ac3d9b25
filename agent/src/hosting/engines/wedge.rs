//! Since when an engine hangs or fails although its process is there: what an operator would call
//! wedged.
//!
//! One that never answered is starting. Weights that are no version, a wrong model and missing
//! abilities are no wedge: the same engine would come back with them.

use std::time::Duration;

use tokio::time::Instant;

use super::EngineSlot;
use super::standing::Standing;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Wedge {
    /// Good probes so far.
    answers: u64,
    /// Since when it answers no probe.
    away_since: Option<Instant>,
    /// When it failed in service first, without a token since then; and last.
    failing: Option<(Instant, Instant)>,
}

impl Wedge {
    /// A probe was good.
    pub(super) fn note_answer(&mut self) {
        self.answers += 1;
        self.away_since = None;
    }

    /// Probes fail, often enough to tell. Whatever comes back may be another one.
    pub(super) fn note_away(&mut self, now: Instant) {
        self.away_since.get_or_insert(now);
        self.failing = None;
    }

    /// It failed in service; `was_on_trial`: and had brought no token since the time before.
    pub(super) fn note_failed(&mut self, was_on_trial: bool, now: Instant) {
        let first = self.failing.filter(|_| was_on_trial).map_or(now, |(first, _)| first);
        self.failing = Some((first, now));
    }
}

impl Standing {
    fn wedged_for(
        &self,
        pause_limit: Duration,
        is_on_trial: bool,
        now: Instant,
    ) -> Option<(Duration, &'static str)> {
        if self.has_never_answered() || self.lateness.is_loading() {
            return None;
        }
        let away = self.wedge.away_since.map(|since| now.saturating_duration_since(since));
        let paused = self.paused_for(now).and_then(|paused| paused.checked_sub(pause_limit));
        // It counts until its last failure: with nothing to do, nobody knows if it still fails.
        let failing = self.wedge.failing.filter(|_| is_on_trial);
        let failing = failing.map(|(first, last)| last.saturating_duration_since(first));
        let all = [
            (away, "answers no probe"),
            (failing, "fails every call"),
            (paused, "was left paused"),
        ];
        let longest = all.into_iter().filter_map(|(time, why)| Some((time?, why)));
        longest.max_by_key(|(time, _)| *time)
    }
}

impl EngineSlot {
    /// Good probes so far.
    pub(crate) fn answers(&self) -> u64 {
        self.standing().wedge.answers
    }

    /// How long it has hung or failed, and how, if it does.
    pub(crate) fn wedged_for(&self, now: Instant) -> Option<(Duration, &'static str)> {
        self.standing().wedged_for(self.pause_limit, self.is_on_trial(), now)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{away, facts, paused, slot};
    use super::*;
    use crate::hosting::engines::standing::PROBE_FAILURES_LIMIT;

    const STEP: Duration = Duration::from_secs(60);

    fn be_away(slot: &EngineSlot, at: Instant) {
        for _ in 0..PROBE_FAILURES_LIMIT {
            slot.note_probe(Err(away()), at);
        }
    }

    #[tokio::test]
    async fn engine_that_never_answered_is_starting_however_long_it_takes() {
        let (slot, now) = (slot(), Instant::now());
        be_away(&slot, now);
        assert_eq!(slot.wedged_for(now + STEP * 60), None);
    }

    #[tokio::test]
    async fn engine_that_answers_no_probe_is_wedged_until_it_does() {
        let (slot, now) = (slot(), Instant::now());
        slot.note_probe(facts("7"), now);
        assert_eq!(slot.wedged_for(now), None);
        be_away(&slot, now);
        be_away(&slot, now + STEP);
        assert_eq!(slot.wedged_for(now + STEP * 2), Some((STEP * 2, "answers no probe")));
        slot.note_probe(facts("7"), now + STEP * 2);
        assert_eq!(slot.wedged_for(now + STEP * 3), None);
    }

    #[tokio::test]
    async fn engine_that_fails_every_call_is_wedged_up_to_its_last_failure() {
        let (slot, now) = (slot(), Instant::now());
        slot.note_probe(facts("7"), now);
        slot.condemn("it hangs", now);
        slot.note_probe(facts("7"), now);
        let fails_for = |time| Some((time, "fails every call"));
        assert_eq!(slot.wedged_for(now + STEP), fails_for(Duration::ZERO), "nobody has tried it");
        slot.condemn("it hangs", now + STEP);
        assert_eq!(slot.wedged_for(now + STEP), fails_for(STEP));
        slot.note_tokens();
        slot.note_probe(facts("7"), now + STEP);
        assert_eq!(slot.wedged_for(now + STEP), None);
        slot.condemn("it hangs again", now + STEP * 2);
        slot.note_probe(facts("7"), now + STEP * 2);
        assert_eq!(slot.wedged_for(now + STEP * 2), fails_for(Duration::ZERO));
    }

    #[tokio::test]
    async fn engine_that_is_left_paused_is_wedged_from_the_limit_on() {
        let (slot, now) = (slot(), Instant::now());
        slot.note_probe(paused(), now);
        assert_eq!(slot.wedged_for(now + slot.pause_limit / 2), None);
        let later = now + slot.pause_limit + STEP;
        slot.note_probe(paused(), later);
        assert_eq!(slot.wedged_for(later), Some((STEP, "was left paused")));
    }
}
