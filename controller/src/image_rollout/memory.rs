//! Leaders' pods in this process.

use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::{GroupError, GroupPods, LeaderPod};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct MemoryGroups {
    pods: Mutex<Vec<LeaderPod>>,
}

impl MemoryGroups {
    pub(super) fn pods(&self) -> MutexGuard<'_, Vec<LeaderPod>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl GroupPods for MemoryGroups {
    async fn leaders(&self) -> Result<Vec<LeaderPod>, GroupError> {
        Ok(self.pods().clone())
    }

    async fn tell(
        &self,
        pod: &LeaderPod,
        is_open: bool,
        reason: &str,
        _message: &str,
    ) -> Result<(), GroupError> {
        for known in self.pods().iter_mut().filter(|known| known.uid == pod.uid) {
            (known.is_open, known.told) = (is_open, Some(reason.to_owned()));
        }
        Ok(())
    }
}
