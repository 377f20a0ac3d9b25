//! Leadership: who may act, for how long, and under which generation.
//!
//! A [`LeaderLease`] campaigns in the background and publishes its standing. A reader asks
//! [`Leadership::holds_for`] before each write, so that a leader that cannot renew stops acting
//! before its lease ends. Election is not fencing: every write carries its generation as well.

mod kubernetes;
mod memory;

use std::time::Duration;

use async_trait::async_trait;
use ebbtide_core::time::UnixMillis;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use kubernetes::{KubernetesLease, LeaseTiming};
pub use memory::{MemoryCandidate, MemoryLease};

/// Milliseconds of a minute: generations begin at the minutes of the clock.
const MINUTE_MS: u64 = 60_000;

/// The leader lease as its holder sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leadership {
    /// Rises with every change of leader; at least 1, because 0 stands for agents and operators.
    pub generation: u64,
    /// When the lease ends unless it is renewed; `None` when it does not end by itself.
    pub until: Option<Instant>,
}

impl Leadership {
    /// Whether the lease is held for at least `needed` more.
    pub fn holds_for(&self, needed: Duration, now: Instant) -> bool {
        self.until.is_none_or(|until| until.saturating_duration_since(now) > needed)
    }
}

/// What publishes the standing of one candidate: `None` while it is passive.
pub type Standing = watch::Sender<Option<Leadership>>;

/// A lease that one of several candidates holds.
#[async_trait]
pub trait LeaderLease: Send + Sync {
    /// Campaigns and renews until `shutdown`, publishing every change; then gives the lease back.
    async fn campaign(&self, standing: Standing, shutdown: CancellationToken);
}

/// The only candidate there is: a controller outside Kubernetes.
#[derive(Debug, Clone, Copy)]
pub struct AlwaysLeader {
    generation: u64,
}

impl AlwaysLeader {
    /// Leads from `started_at` on. The minutes of the clock are the generation, as they are with
    /// a new Kubernetes lease, so that a restarted controller is not taken for an older one.
    pub fn new(started_at: UnixMillis) -> Self {
        Self { generation: (started_at.0 / MINUTE_MS).max(1) }
    }
}

#[async_trait]
impl LeaderLease for AlwaysLeader {
    async fn campaign(&self, standing: Standing, shutdown: CancellationToken) {
        standing.send_replace(Some(Leadership { generation: self.generation, until: None }));
        shutdown.cancelled().await;
        standing.send_replace(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn leader_stops_before_its_lease_ends() {
        let now = Instant::now();
        let leadership = Leadership { generation: 3, until: Some(now + Duration::from_secs(15)) };
        let call = Duration::from_secs(12);
        assert!(leadership.holds_for(call, now));
        assert!(!leadership.holds_for(call, now + Duration::from_secs(3)));
        assert!(!leadership.holds_for(Duration::ZERO, now + Duration::from_secs(20)));
    }

    #[test]
    fn generation_is_never_that_of_agents() {
        assert_eq!(AlwaysLeader::new(UnixMillis(0)).generation, 1);
    }
}
