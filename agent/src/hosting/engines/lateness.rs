//! Engines whose weights are too old for the run: since when, and what is done about it.
//!
//! Who pushes weights is given a grace, which begins anew whenever the engine shows that somebody
//! is at work on it: a pause, another label. After it the engine gets nothing more until it has
//! loaded the run's version, or somebody has pushed it.

use std::time::Duration;

use ebbtide_core::ids::PolicyVersion;
use ebbtide_queue::client::Backoff;
use ebbtide_queue::control::VersionRecord;
use tokio::time::Instant;

use super::standing::Standing;
use super::{Condition, EngineSlot};
use crate::config::WeightsTerms;
use crate::engine::WeightsAt;

/// Bounds of the pause after a load that failed.
const LOAD_PAUSE_MIN: Duration = Duration::from_secs(5);
const LOAD_PAUSE_MAX: Duration = Duration::from_secs(300);

/// What the run asks of an engine's weights.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) published: &'a VersionRecord,
    pub(super) terms: &'a WeightsTerms,
    pub(super) run: &'a str,
}

/// Weights to load: the same version at several places, the nearest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LoadOrder {
    pub(crate) version: PolicyVersion,
    pub(crate) places: Vec<WeightsAt>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Lateness {
    /// Since when it is too old, and nobody was seen at work on it.
    since: Option<Instant>,
    /// What its weights were called when it was last looked at.
    label: Option<String>,
    told: Option<Told>,
    order: Option<LoadOrder>,
    pause: Backoff,
    next_load_at: Option<Instant>,
}

/// What is told of an engine that is too old.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Told {
    Loading(String),
    /// It cannot be brought to the run's version; why, and what to do.
    Stuck(String),
}

impl Default for Lateness {
    fn default() -> Self {
        Self {
            since: None,
            label: None,
            told: None,
            order: None,
            pause: Backoff::new(LOAD_PAUSE_MIN, LOAD_PAUSE_MAX),
            next_load_at: None,
        }
    }
}

impl Lateness {
    /// Whether its weights are too old, the grace included.
    pub(super) fn is_late(&self) -> bool {
        self.since.is_some()
    }

    pub(super) fn is_told(&self) -> bool {
        self.told.is_some()
    }

    pub(super) fn is_loading(&self) -> bool {
        matches!(self.told, Some(Told::Loading(_)))
    }

    /// What is told instead of `condition`.
    pub(super) fn told_over(&self, condition: &Condition) -> Option<Condition> {
        let is_healthy = matches!(condition, Condition::Ready(_) | Condition::Loading(_));
        match self.told.as_ref()? {
            Told::Loading(what) => Some(Condition::Loading(what.clone())),
            Told::Stuck(why) => is_healthy.then(|| Condition::NotReady(why.clone())),
        }
    }

    fn forget(&mut self) {
        *self = Self { label: self.label.take(), ..Self::default() };
    }
}

impl EngineSlot {
    /// Holds its weights against what the run asks for; tells when what is told of it has changed.
    pub(crate) fn note_run(
        &self,
        published: &VersionRecord,
        terms: &WeightsTerms,
        run: &str,
        now: Instant,
    ) -> Option<Condition> {
        let mut standing = self.standing();
        let before = standing.told();
        standing.judge_weights(Wanted { published, terms, run }, now);
        if standing.lateness.order.is_some() {
            self.load_due.notify_one();
        }
        let after = standing.told();
        (after != before).then_some(after)
    }

    /// Waits until it is to load weights.
    pub(crate) async fn load_order(&self) -> LoadOrder {
        loop {
            if let Some(order) = self.standing().lateness.order.take() {
                return order;
            }
            self.load_due.notified().await;
        }
    }

    /// Whether it may not be given what was leased for it, because it is to load weights.
    pub(crate) fn is_to_load(&self) -> bool {
        self.standing().lateness.is_loading()
    }

    /// Its load has ended.
    pub(crate) fn note_load_ended(&self, outcome: Result<(), String>, now: Instant) {
        let mut standing = self.standing();
        match outcome {
            Ok(()) => standing.lateness.forget(),
            Err(why) => {
                let pause = standing.lateness.pause.next_pause();
                standing.lateness.next_load_at = Some(now + pause);
                standing.lateness.told = Some(Told::Stuck(why));
            }
        }
    }
}

impl Standing {
    fn judge_weights(&mut self, wanted: Wanted<'_>, now: Instant) {
        if self.lateness.is_loading() {
            return;
        }
        if self.is_away() {
            // Whatever comes back is another one.
            self.lateness.forget();
            return;
        }
        let is_touched = self.facts.is_paused || self.lateness.label != self.facts.weights_label;
        self.lateness.label.clone_from(&self.facts.weights_label);
        if !self.is_too_old(wanted) {
            self.lateness.forget();
            return;
        }
        let since = *self.lateness.since.get_or_insert(now);
        if is_touched {
            self.lateness.since = Some(now);
        }
        let is_due = now.saturating_duration_since(since) >= wanted.terms.grace && !is_touched;
        if is_due && self.lateness.next_load_at.is_none_or(|at| at <= now) {
            self.bring_up(wanted);
        }
    }

    /// Whether the run gives it nothing: its weights are too old, fell, or are no version at all.
    fn is_too_old(&self, Wanted { published, terms, .. }: Wanted<'_>) -> bool {
        let Some(label) = &self.facts.weights_label else { return false };
        let is_published =
            published.version > PolicyVersion::default() || !published.uri.is_empty();
        let floor = PolicyVersion(published.version.0.saturating_sub(terms.max_lag));
        let floor = self.highest.filter(|highest| *highest <= published.version).max(Some(floor));
        is_published && PolicyVersion::from_weights_label(label) < floor
    }

    fn bring_up(&mut self, wanted: Wanted<'_>) {
        let version = wanted.published.version;
        let label = self.facts.weights_label.as_deref().unwrap_or_default();
        let what = format!("its weights are {label:?}, the run is at version {version}");
        let places = wanted.places();
        if places.is_empty() {
            self.lateness.told = Some(Told::Stuck(format!("{what}: {}", wanted.no_place())));
            return;
        }
        self.lateness.told = Some(Told::Loading(format!("{what}: it is brought to it")));
        self.lateness.order = Some(LoadOrder { version, places });
    }
}

impl Wanted<'_> {
    /// Where the engine itself may find the weights: the cache first, the store second.
    fn places(&self) -> Vec<WeightsAt> {
        let VersionRecord { version, uri, sha256, .. } = self.published;
        let cached = self.terms.cache.as_ref().map(|template| {
            let filled = template.replace("{version}", &version.to_string());
            filled.replace("{sha256}", sha256).replace("{run}", self.run)
        });
        let stored = uri.strip_prefix("file://").or_else(|| {
            let is_object = uri.starts_with("s3://");
            is_object.then_some(uri.as_str())
        });
        let places = cached.into_iter().chain(stored.map(str::to_owned));
        places.map(|place| WeightsAt { version: *version, place }).collect()
    }

    /// Why there is no place, and what to do.
    fn no_place(&self) -> String {
        let why = match self.published.uri.as_str() {
            "" => "it was published without a uri".to_owned(),
            uri => format!("engines cannot load from {uri}"),
        };
        format!(
            "nobody pushed it, and {why}; push it, publish it with a file:// or s3:// uri, or give \
             the agent --weights-cache"
        )
    }
}

#[cfg(test)]
mod tests;
