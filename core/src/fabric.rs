//! The verdict on a node's fabric, as recorded with every token that the node generated.

use serde::{Deserialize, Serialize};

/// Whether expert traffic really takes the path that the policy asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FabricVerdict {
    /// The policy asks for no fabric on this node.
    #[default]
    NotApplicable,
    /// The required path is in use.
    Passed,
    /// Another, slower path is in use.
    Failed,
    /// It has not been found out yet.
    Unknown,
}

impl FabricVerdict {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotApplicable => "not_applicable",
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }

    /// Whether a node with this verdict may admit work.
    pub fn admits_work(self) -> bool {
        matches!(self, Self::NotApplicable | Self::Passed)
    }
}
