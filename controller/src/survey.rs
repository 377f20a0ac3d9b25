//! What there is before there is a policy: Auto Scaling groups and Karpenter's node pools, as far
//! as they say what a policy has to know. Nothing is changed.

mod groups;
mod node_pools;

use ebbtide_core::policy::Market;
use thiserror::Error;

use crate::aws::AwsError;

pub use self::groups::survey_groups;
pub use self::node_pools::survey_node_pools;

/// Capacity of one kind that was found: instance type, zone and market, each as far as known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// The group or node pool.
    pub name: String,
    /// How it buys; none when it does not say, or buys both ways at once.
    pub market: Option<Market>,
    /// What it buys; none when it does not say, or buys several.
    pub instance_type: Option<String>,
    /// Where; none when in several zones, or wherever there is room.
    pub zone: Option<String>,
    /// Most nodes that it may have.
    pub max_nodes: Option<u32>,
    /// Nodes that are asked for now.
    pub desired: Option<u32>,
    /// What a policy cannot have of it, in words.
    pub remarks: Vec<String>,
}

/// Why nothing can be told.
#[derive(Debug, Error)]
pub enum SurveyError {
    /// AWS did not answer, or refused.
    #[error(transparent)]
    Aws(#[from] AwsError),
    /// There is none of this name.
    #[error("there is no {what} {name}")]
    Missing {
        /// What was looked for.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// The cluster did not answer, or refused.
    #[error("cannot read node pool {name}: {problem}")]
    Cluster {
        /// Its name.
        name: String,
        /// What went wrong.
        problem: String,
    },
}
