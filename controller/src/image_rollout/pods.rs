//! The pods of EP groups' leaders, as far as the controller looks at them.

use async_trait::async_trait;
use ebbtide_core::ids::ReplicaId;
use thiserror::Error;

/// Why nothing was seen or told.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GroupError {
    /// The API server said no.
    #[error("{what}: {problem}")]
    Failed {
        /// What was to be done.
        what: &'static str,
        /// What went wrong.
        problem: String,
    },
    /// It did not answer in time.
    #[error("the API server did not answer in time")]
    Silent,
}

/// The pod of a group's leader that has the gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderPod {
    /// Its name.
    pub name: String,
    /// Its UID: a successor of the same name has another one.
    pub uid: String,
    /// The LeaderWorkerSet.
    pub set: String,
    /// The group, as its agents name it.
    pub replica: ReplicaId,
    /// Which template it was made of.
    pub revision: String,
    /// Whether its containers are ready: the engine answers.
    pub answers: bool,
    /// Whether the gate is open.
    pub is_open: bool,
    /// The reason that the condition has; none as long as nobody told one.
    pub told: Option<String>,
}

/// The leaders' pods of the run.
#[async_trait]
pub trait GroupPods: Send + Sync {
    /// All that have the gate and are not on their way out.
    ///
    /// # Errors
    /// The API server does not answer, or refuses.
    async fn leaders(&self) -> Result<Vec<LeaderPod>, GroupError>;

    /// Sets the condition of a pod. One that is gone needs none.
    ///
    /// # Errors
    /// As [`GroupPods::leaders`].
    async fn tell(
        &self,
        pod: &LeaderPod,
        is_open: bool,
        reason: &str,
        message: &str,
    ) -> Result<(), GroupError>;
}

/// For controllers outside Kubernetes: there are none.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoGroups;

#[async_trait]
impl GroupPods for NoGroups {
    async fn leaders(&self) -> Result<Vec<LeaderPod>, GroupError> {
        Ok(Vec::new())
    }

    async fn tell(
        &self,
        _pod: &LeaderPod,
        _is_open: bool,
        _reason: &str,
        _message: &str,
    ) -> Result<(), GroupError> {
        Ok(())
    }
}
