//! The trainer's size, as it was asked for and confirmed.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::InstanceId;
use crate::ids::NodeName;
use crate::time::as_millis;

/// Another size that the trainer is asked for, until that is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResizeView {
    /// Nodes that it shall run on.
    pub size: u32,
    /// Names the request.
    pub generation: u64,
    /// How long ago it was asked for.
    #[serde(rename = "askedMs", with = "as_millis")]
    pub asked_for: Duration,
    /// Whether the trainer has said that it may be carried out.
    pub is_confirmed: bool,
    /// The nodes that the trainer has left, by its own word.
    pub released: Vec<ReleasedNode>,
}

/// A node that the trainer has left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReleasedNode {
    /// The node.
    pub name: NodeName,
    /// Its instance, once its agent told.
    pub instance: Option<InstanceId>,
    /// Whether AWS has announced that it takes the node.
    pub has_notice: bool,
}
