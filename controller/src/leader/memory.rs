//! A leader lease in this process: the first candidate that asks has it until it ends.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::{LeaderLease, Leadership, Standing};

/// A lease that candidates of one process compete for.
#[derive(Debug, Clone, Default)]
pub struct MemoryLease {
    generation: Arc<Mutex<u64>>,
}

impl MemoryLease {
    /// One more candidate.
    pub fn candidate(&self) -> MemoryCandidate {
        MemoryCandidate { generation: self.generation.clone() }
    }
}

/// One candidate for a [`MemoryLease`].
#[derive(Debug)]
pub struct MemoryCandidate {
    generation: Arc<Mutex<u64>>,
}

#[async_trait]
impl LeaderLease for MemoryCandidate {
    /// Dropping the campaign gives the lease back, too.
    async fn campaign(&self, standing: Standing, shutdown: CancellationToken) {
        let mut generation = tokio::select! {
            generation = self.generation.lock() => generation,
            () = shutdown.cancelled() => return,
        };
        *generation += 1;
        standing.send_replace(Some(Leadership { generation: *generation, until: None }));
        shutdown.cancelled().await;
        standing.send_replace(None);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch;

    use super::*;

    #[tokio::test]
    async fn second_candidate_waits_until_the_first_ends() {
        let lease = MemoryLease::default();
        let campaign = |candidate: MemoryCandidate| {
            let (standing, seen) = watch::channel(None);
            let shutdown = CancellationToken::new();
            let ended = shutdown.clone();
            tokio::spawn(async move { candidate.campaign(standing, ended).await });
            (seen, shutdown)
        };
        let (mut first, end_first) = campaign(lease.candidate());
        let led = first.wait_for(Option::is_some).await.expect("campaigns");
        assert_eq!(led.expect("leads").generation, 1);
        drop(led);
        let (mut second, _end_second) = campaign(lease.candidate());
        tokio::task::yield_now().await;
        assert_eq!(*second.borrow(), None);
        end_first.cancel();
        let led = second.wait_for(Option::is_some).await.expect("campaigns");
        assert_eq!(led.expect("leads").generation, 2);
    }
}
