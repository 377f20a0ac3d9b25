//! What a service sees of the rest of the run.

use serde::{Deserialize, Serialize};

/// What a service (scorers, environments) sees of the rollouts that it serves.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceView {
    /// What the rollouts are about to be as a multiple of those at work, at least 1, in hundredths.
    pub rollout_growth: f64,
    /// Whether the rollouts stand still for their weights.
    pub is_paused: bool,
    /// Whether the service is what limits the iteration.
    pub limits_run: bool,
    /// Whether its source tells what is worked on, not only what waits.
    pub tells_in_flight: bool,
}

impl Default for ServiceView {
    fn default() -> Self {
        Self { rollout_growth: 1.0, is_paused: false, limits_run: false, tells_in_flight: true }
    }
}
