//! What is told on a stream of notices: the difference between what was told last and what is.
//!
//! Nothing is queued for a worker, so that a slow one costs no memory, and one that connects again
//! is told everything that stands. Pure: the moments are arguments.

use std::collections::BTreeMap;

use ebbtide_core::ids::{FencingToken, UnitId};
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::command::HandBackCause;
use serde::Serialize;
use tokio::time::Instant;

use super::answers::{left_until, millis_until, stage_word};
use crate::workers::{LeaseKey, NodeNotice, UnitState, UnitView, View};

/// One event of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(super) enum Event {
    /// Everything, when the stream begins.
    State(StateWords),
    /// Something happens to the node.
    Notice(NoticeWords),
    /// These units must be handed back.
    Release(ReleaseWords),
    /// These may finish.
    Keep(KeepWords),
    /// Work is leased again.
    Reopened {},
}

impl Event {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::State(_) => "state",
            Self::Notice(_) => "notice",
            Self::Release(_) => "release",
            Self::Keep(_) => "keep",
            Self::Reopened {} => "reopened",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct StateWords {
    /// `open` or `closed`.
    gate: &'static str,
    closed_for: Vec<&'static str>,
    notice: Option<NoticeWords>,
    units: Vec<UnitWords>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct NoticeWords {
    kind: Option<&'static str>,
    reason: &'static str,
    deadline_ms: Option<UnixMillis>,
    remaining_ms: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct UnitWords {
    unit: UnitId,
    fencing_token: FencingToken,
    stage: &'static str,
    tokens: u32,
    /// `working`, `keep` or `release`.
    state: &'static str,
    remaining_ms: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct ReleaseWords {
    units: Vec<KeyWords>,
    reason: &'static str,
    by_ms: UnixMillis,
    remaining_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct KeepWords {
    units: Vec<KeyWords>,
    until_ms: UnixMillis,
    remaining_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct KeyWords {
    unit: UnitId,
    fencing_token: FencingToken,
}

/// The same moment on both clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clocks {
    pub(super) now: Instant,
    pub(super) wall: UnixMillis,
}

impl Clocks {
    fn wall_at(self, moment: Instant) -> UnixMillis {
        self.wall.plus(left_until(moment, self.now))
    }
}

/// What has to be told, in this order.
pub(super) fn events(told: Option<&View>, view: &View, clocks: Clocks) -> Vec<Event> {
    let mut events = Vec::new();
    if told.is_none() {
        events.push(Event::State(state_words(view, clocks)));
    }
    let known = told.and_then(|told| told.notice);
    if let Some(notice) = view.notice.filter(|notice| is_news(known, *notice)) {
        events.push(Event::Notice(notice_words(notice, clocks)));
    }
    let known: BTreeMap<&LeaseKey, UnitState> =
        told.into_iter().flat_map(|told| &told.units).map(|unit| (&unit.key, unit.state)).collect();
    let mut releases: BTreeMap<(Instant, HandBackCause), Vec<KeyWords>> = BTreeMap::new();
    let mut kept: BTreeMap<Instant, Vec<KeyWords>> = BTreeMap::new();
    for UnitView { key, state, .. } in &view.units {
        if known.get(key) == Some(state) {
            continue;
        }
        match state {
            UnitState::Working => {}
            UnitState::Keep(until) => kept.entry(*until).or_default().push(key.into()),
            UnitState::Release(cause, by) => {
                releases.entry((*by, *cause)).or_default().push(key.into());
            }
        }
    }
    events.extend(releases.into_iter().map(|((by, cause), units)| {
        let (by_ms, remaining_ms) = (clocks.wall_at(by), millis_until(by, clocks.now));
        Event::Release(ReleaseWords { units, reason: cause.as_str(), by_ms, remaining_ms })
    }));
    events.extend(kept.into_iter().map(|(until, units)| {
        let (until_ms, remaining_ms) = (clocks.wall_at(until), millis_until(until, clocks.now));
        Event::Keep(KeepWords { units, until_ms, remaining_ms })
    }));
    if view.closed_for.is_empty() && told.is_some_and(|told| !told.closed_for.is_empty()) {
        events.push(Event::Reopened {});
    }
    events
}

/// Whether a worker has to hear of it. That the notice behind a drain is gone is none of its
/// business for as long as the drain goes on.
fn is_news(known: Option<NodeNotice>, notice: NodeNotice) -> bool {
    let Some(known) = known else { return true };
    let is_sooner = match (known.deadline, notice.deadline) {
        (Some(known), Some(deadline)) => deadline < known,
        (known, deadline) => known.is_none() && deadline.is_some(),
    };
    let has_other_kind = notice.kind.is_some() && notice.kind != known.kind;
    is_sooner || has_other_kind || notice.reason != known.reason
}

pub(super) fn state_words(view: &View, clocks: Clocks) -> StateWords {
    StateWords {
        gate: if view.closed_for.is_empty() { "open" } else { "closed" },
        closed_for: view.closed_for.iter().map(|reason| reason.as_str()).collect(),
        notice: view.notice.map(|notice| notice_words(notice, clocks)),
        units: view.units.iter().map(|unit| unit_words(unit, clocks.now)).collect(),
    }
}

fn notice_words(notice: NodeNotice, clocks: Clocks) -> NoticeWords {
    NoticeWords {
        kind: notice.kind.map(|kind| kind.as_str()),
        reason: notice.reason,
        deadline_ms: notice.deadline.map(|deadline| clocks.wall_at(deadline)),
        remaining_ms: notice.deadline.map(|deadline| millis_until(deadline, clocks.now)),
    }
}

fn unit_words(view: &UnitView, now: Instant) -> UnitWords {
    let (state, by) = match view.state {
        UnitState::Working => ("working", None),
        UnitState::Keep(until) => ("keep", Some(until)),
        UnitState::Release(_, by) => ("release", Some(by)),
    };
    UnitWords {
        unit: view.key.unit.clone(),
        fencing_token: view.key.fencing_token,
        stage: stage_word(view.stage),
        tokens: view.tokens,
        state,
        remaining_ms: by.map(|by| millis_until(by, now)),
    }
}

impl From<&LeaseKey> for KeyWords {
    fn from(key: &LeaseKey) -> Self {
        Self { unit: key.unit.clone(), fencing_token: key.fencing_token }
    }
}
