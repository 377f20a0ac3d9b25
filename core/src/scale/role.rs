//! The worker groups that are sized between two bounds.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A worker group that is sized, in the order in which they are planned: what the others need
/// follows from the rollouts.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It generates.
    #[default]
    Rollout,
    /// It scores.
    Reward,
    /// It answers the rollouts as their environment or their tools.
    Environment,
}

impl Role {
    /// All of them, the rollouts first.
    pub const ALL: [Self; 3] = [Self::Rollout, Self::Reward, Self::Environment];

    /// Those that serve the rollouts.
    pub const SERVICES: [Self; 2] = [Self::Reward, Self::Environment];

    /// The word in policies, records, metrics and journals.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rollout => "rollout",
            Self::Reward => "reward",
            Self::Environment => "environment",
        }
    }

    /// Whether it is the rollouts.
    pub fn is_rollout(&self) -> bool {
        *self == Self::Rollout
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
