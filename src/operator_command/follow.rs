//! Follows a drain in the control keys until it is over. Progress goes to stderr.
//!
//! The keys are read every second, and at once when somebody says that they have changed. While
//! Redis is away the drain goes on without this command, so a short absence is waited out.

use std::time::Duration;

use anyhow::Context;
use ebbtide_core::ids::ReplicaId;
use ebbtide_queue::client::{Hint, QueueError, WorkQueue};
use ebbtide_queue::control::{ClosingReport, ControlView, DrainRecord, DrainState};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use super::standing::held;
use super::words;
use crate::words::{counted, span};

/// Longest time between two looks at the keys.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Between two looks for a closing report: it comes without a hint.
const REPORT_EVERY: Duration = Duration::from_millis(250);

/// How long Redis may be silent before nobody waits for it any more.
const SILENCE_LIMIT: Duration = Duration::from_secs(20);

/// Time after a deadline in which the agents may still say what it came to.
pub const DEADLINE_MARGIN: Duration = Duration::from_secs(15);

/// How long the closing report of a drain that is over may take.
const REPORT_LIMIT: Duration = Duration::from_secs(5);

/// Closing reports among which one is looked for.
const NEWEST_REPORTS: usize = 50;

/// Which drain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Followed {
    pub replica: ReplicaId,
    pub request_id: String,
}

/// How a drain that was followed ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The agents said that nothing is held.
    Drained,
    /// Somebody took it back.
    Cancelled,
    /// Its deadline has passed without a word; units that its nodes held by their last report.
    Overdue { held: u64 },
    /// Its record is gone: the nodes were terminated, or another drain has taken its place.
    Gone,
}

impl End {
    /// The word for machines.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Drained => "drained",
            Self::Cancelled => "cancelled",
            Self::Overdue { .. } => "overdue",
            Self::Gone => "gone",
        }
    }
}

/// Where a drain stands.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Standing {
    Running { state: DrainState, held: u64, left: Duration },
    Over(End),
}

fn standing(view: &ControlView, followed: &Followed) -> Standing {
    let is_it = |drain: &&DrainRecord| {
        drain.replica == followed.replica && drain.request_id == followed.request_id
    };
    let Some(drain) = view.drains.iter().find(is_it) else { return Standing::Over(End::Gone) };
    let held = held(view, &followed.replica);
    match drain.state {
        DrainState::Drained | DrainState::Terminating => Standing::Over(End::Drained),
        DrainState::Cancelled => Standing::Over(End::Cancelled),
        _ if view.now > drain.deadline.plus(DEADLINE_MARGIN) => {
            Standing::Over(End::Overdue { held })
        }
        state => {
            let left = drain.deadline.remaining(view.now);
            Standing::Running { state, held, left }
        }
    }
}

/// Waits until the drain is over.
///
/// # Errors
/// Redis is silent for too long.
pub async fn wait_until_over(queue: &WorkQueue, followed: &Followed) -> anyhow::Result<End> {
    let mut patience = Patience::default();
    let mut told = None;
    loop {
        if let Some(view) = patience.judge(queue.view().await, Instant::now())? {
            match standing(&view, followed) {
                Standing::Over(end) => return Ok(end),
                Standing::Running { state, held, left } if told != Some((state, held)) => {
                    told = Some((state, held));
                    let (held, left) = (counted(held, "unit"), span(left));
                    eprintln!(
                        "{}: {}, {held} held, {left} left",
                        followed.replica,
                        words(&json!(state))
                    );
                }
                Standing::Running { .. } => {}
            }
        }
        // Hint or not, the keys are read again.
        let _ = timeout(LOOK_EVERY, queue.woken(Hint::Control)).await;
    }
}

/// Waits for the closing report of a drain that is over; `None` when none comes.
///
/// # Errors
/// Redis is silent for too long.
pub async fn closing_report(
    queue: &WorkQueue,
    followed: &Followed,
) -> anyhow::Result<Option<ClosingReport>> {
    report_within(queue, followed, REPORT_LIMIT).await
}

/// Waits for the closing report of a drain; `None` when none comes within `limit`.
///
/// # Errors
/// Redis is silent for too long.
pub async fn report_within(
    queue: &WorkQueue,
    followed: &Followed,
    limit: Duration,
) -> anyhow::Result<Option<ClosingReport>> {
    let is_it = |report: &ClosingReport| {
        report.replica == followed.replica && report.request_id == followed.request_id
    };
    let mut patience = Patience::default();
    let give_up = Instant::now() + limit;
    loop {
        let reports = patience.judge(queue.reports(NEWEST_REPORTS).await, Instant::now())?;
        if let Some(report) = reports.into_iter().flatten().find(is_it) {
            return Ok(Some(report));
        }
        if Instant::now() >= give_up {
            return Ok(None);
        }
        sleep(REPORT_EVERY).await;
    }
}

/// How long Redis has been silent.
#[derive(Debug, Default)]
struct Patience {
    silent_since: Option<Instant>,
}

impl Patience {
    /// The answer, or nothing while Redis may still come back.
    fn judge<T>(
        &mut self,
        answer: Result<T, QueueError>,
        now: Instant,
    ) -> anyhow::Result<Option<T>> {
        let error = match answer {
            Ok(answer) => {
                self.silent_since = None;
                return Ok(Some(answer));
            }
            Err(error) => error,
        };
        if self.silent_since.is_none() {
            eprintln!("{error}");
        }
        let silence = now - *self.silent_since.get_or_insert(now);
        if error.is_retriable() && silence < SILENCE_LIMIT {
            return Ok(None);
        }
        Err(error).context("the drain goes on without this command; see ebbtide drain --list")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator_command::node::tests::{NOW, node};
    use crate::operator_command::standing::tests::drain;

    #[test]
    fn drain_is_over_when_its_record_says_so_or_its_time_has_passed() {
        let followed =
            Followed { replica: "n1".parse().expect("valid"), request_id: drain("n1").request_id };
        let seen = |drains: Vec<DrainRecord>, after: u64| {
            let now = NOW.plus(Duration::from_secs(after));
            let nodes = vec![node("n1", "n1")];
            standing(&ControlView { now, nodes, drains, ..ControlView::default() }, &followed)
        };
        let in_state = |state| vec![DrainRecord { state, ..drain("n1") }];
        let running = |held, left| Standing::Running {
            state: DrainState::Draining,
            held,
            left: Duration::from_secs(left),
        };
        let other = DrainRecord { request_id: "another".to_owned(), ..drain("n1") };
        let table = [
            (in_state(DrainState::Draining), 0, running(4, 600)),
            (in_state(DrainState::Draining), 610, running(4, 0)),
            (in_state(DrainState::Draining), 616, Standing::Over(End::Overdue { held: 4 })),
            (in_state(DrainState::Drained), 616, Standing::Over(End::Drained)),
            (in_state(DrainState::Terminating), 5, Standing::Over(End::Drained)),
            (in_state(DrainState::Cancelled), 5, Standing::Over(End::Cancelled)),
            (vec![other], 5, Standing::Over(End::Gone)),
            (vec![], 5, Standing::Over(End::Gone)),
        ];
        for (drains, after, expected) in table {
            assert_eq!(seen(drains.clone(), after), expected, "{drains:?} after {after} s");
        }
    }

    #[test]
    fn short_silence_is_waited_out_and_a_long_one_is_not() {
        let away = || {
            Err::<(), _>(QueueError::Unavailable {
                what: "redis".to_owned(),
                problem: "away".to_owned(),
            })
        };
        let begun = Instant::now();
        let mut patience = Patience::default();
        assert_eq!(patience.judge(away(), begun).expect("waits"), None);
        let soon = begun + SILENCE_LIMIT - Duration::from_secs(1);
        assert_eq!(patience.judge(away(), soon).expect("waits"), None);
        assert_eq!(patience.judge(Ok(()), soon).expect("there"), Some(()));
        assert_eq!(patience.judge(away(), soon).expect("waits again"), None);
        let error = patience.judge(away(), soon + SILENCE_LIMIT).expect_err("long enough");
        assert!(format!("{error:#}").contains("ebbtide drain --list"), "{error:#}");
    }
}
