//! Watches the instance metadata service for what is going to happen to the node.
//!
//! One loop per source, so that a slow path never delays another. A loop never ends: a service
//! that is away, slow or mad costs a bounded pause, and its trouble is logged when it begins and
//! when it ends, not at every read.

mod client;
mod identity;
mod token;

use std::time::Duration;

use ebbtide_core::maintenance::{next_event, parse_scheduled_events};
use ebbtide_core::notice::{
    Announcement, NoticeError, parse_instance_action, parse_rebalance, parse_target_lifecycle,
};
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::client::Backoff;
use futures::FutureExt;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

pub use client::{ImdsClient, ImdsError};

use crate::pulse::Loop;
use crate::rhythm::all_of;
use crate::shared::Shared;

/// Most that the pace of a source is stretched while it fails: a notice may come any moment.
const FAILURE_STRETCH: u32 = 4;

/// What is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Source {
    /// `spot/instance-action`.
    Spot,
    /// `events/recommendations/rebalance`.
    Rebalance,
    /// `autoscaling/target-lifecycle-state`.
    Lifecycle,
    /// `events/maintenance/scheduled`.
    Maintenance,
}

impl Source {
    pub(crate) const ALL: [Self; 4] =
        [Self::Spot, Self::Rebalance, Self::Lifecycle, Self::Maintenance];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Spot => "spot",
            Self::Rebalance => "rebalance",
            Self::Lifecycle => "lifecycle",
            Self::Maintenance => "maintenance",
        }
    }

    fn path(self) -> &'static str {
        match self {
            Self::Spot => "/latest/meta-data/spot/instance-action",
            Self::Rebalance => "/latest/meta-data/events/recommendations/rebalance",
            Self::Lifecycle => "/latest/meta-data/autoscaling/target-lifecycle-state",
            Self::Maintenance => "/latest/meta-data/events/maintenance/scheduled",
        }
    }

    /// `leaves_early`: whether a node with degraded hardware does.
    fn parse(self, body: &str, leaves_early: bool) -> Result<Option<Announcement>, NoticeError> {
        match self {
            Self::Spot => parse_instance_action(body).map(Some),
            Self::Rebalance => parse_rebalance(body).map(Some),
            Self::Lifecycle => parse_target_lifecycle(body),
            Self::Maintenance => Ok(next_event(&parse_scheduled_events(body)?, leaves_early)),
        }
    }
}

/// How a read came out, as a metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Nothing is planned.
    Nothing,
    /// Something is.
    Something,
    /// It did not answer properly.
    Failed,
    /// The token call hangs while reads answer: the hop limit is too low.
    HopLimit,
    /// The body says nothing that is known.
    Unreadable,
}

impl Answer {
    pub(crate) const ALL: [Self; 5] =
        [Self::Nothing, Self::Something, Self::Failed, Self::HopLimit, Self::Unreadable];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Something => "something",
            Self::Failed => "failed",
            Self::HopLimit => "hop_limit",
            Self::Unreadable => "unreadable",
        }
    }
}

/// One look at a source.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sighting {
    pub(crate) source: Source,
    /// What it announces; `None` when nothing is planned.
    pub(crate) announcement: Option<Announcement>,
    /// When it was seen, on the node's wall clock.
    pub(crate) wall: UnixMillis,
    /// The same moment on the monotonic clock.
    pub(crate) at: Instant,
}

/// Watches everything for as long as it is polled.
pub(crate) async fn watch(shared: &Shared, imds: &ImdsClient, sightings: mpsc::Sender<Sighting>) {
    let pace = shared.config.pace;
    let every = |source| match source {
        Source::Spot => pace.spot_poll,
        Source::Rebalance => pace.rebalance_poll,
        Source::Lifecycle => pace.lifecycle_poll,
        Source::Maintenance => pace.maintenance_poll,
    };
    let sources = Source::ALL.into_iter();
    let looks = sources.map(|it| watch_source(shared, imds, it, every(it), &sightings).boxed());
    all_of(looks.chain([identity::learn(shared, imds).boxed()])).await;
}

async fn watch_source(
    shared: &Shared,
    imds: &ImdsClient,
    source: Source,
    every: Duration,
    sightings: &mpsc::Sender<Sighting>,
) {
    let mut look_at = Instant::now();
    let mut backoff = Backoff::new(every / 4, every * FAILURE_STRETCH);
    let mut is_unreadable = false;
    loop {
        sleep_until(look_at).await;
        look_at = shared.rhythm.next(every);
        if source == Source::Spot {
            shared.pulses.beat(Loop::SpotPoll, Instant::now());
        }
        let trouble = match look(imds, source, shared.config.drain.leave_degraded).await {
            Ok(announcement) => {
                let answer = announcement.map_or(Answer::Nothing, |_| Answer::Something);
                shared.metrics.imds_read(source, answer);
                if backoff.failures() > 0 {
                    tracing::info!(source = source.as_str(), "instance metadata is back");
                    backoff.reset();
                }
                is_unreadable = false;
                let (wall, at) = ((shared.wall_clock)(), Instant::now());
                // Nobody listens any more only when the agent ends.
                let _ = sightings.send(Sighting { source, announcement, wall, at }).await;
                continue;
            }
            Err(trouble) => trouble,
        };
        shared.metrics.imds_read(source, trouble.answer());
        // A body that makes no sense came from a service that works: it is asked at the same pace.
        let was_told = match trouble {
            Trouble::Notice(_) => std::mem::replace(&mut is_unreadable, true),
            Trouble::Read(_) => backoff.failures() > 0,
        };
        if !was_told {
            tracing::warn!(source = source.as_str(), %trouble, "instance metadata not read");
        }
        if matches!(trouble, Trouble::Read(_)) {
            sleep(backoff.next_pause()).await;
        }
    }
}

/// Why a look brought nothing.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Read(#[from] ImdsError),
    #[error(transparent)]
    Notice(#[from] NoticeError),
}

impl Trouble {
    fn answer(&self) -> Answer {
        match self {
            Self::Read(ImdsError::HopLimit) => Answer::HopLimit,
            Self::Read(_) => Answer::Failed,
            Self::Notice(_) => Answer::Unreadable,
        }
    }
}

async fn look(
    imds: &ImdsClient,
    source: Source,
    leaves_early: bool,
) -> Result<Option<Announcement>, Trouble> {
    match imds.read(source.path()).await? {
        Some(body) => Ok(source.parse(&body, leaves_early)?),
        None => Ok(None),
    }
}
