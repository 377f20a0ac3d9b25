//! The trainer's size: what it is asked for, and what it answers between two updates.
//!
//! The rules are pure; `queue/lua/control_resize.lua` states them for Redis.

use ebbtide_core::time::UnixMillis;
use serde::{Deserialize, Serialize};

use super::NodeNames;

/// The request for another size, as far as there is one, and what the trainer said to it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ResizeRecord {
    /// Nodes that the trainer is asked to run on; none while nothing is asked for.
    #[serde(rename = "resize_size", default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u32>,
    /// Names the newest request; a later one is larger. 0 before the first.
    #[serde(rename = "resize_generation", default)]
    pub generation: u64,
    /// When it was asked for, on the server's clock; set by the store.
    #[serde(rename = "resize_requested_at", default, skip_serializing_if = "Option::is_none")]
    pub requested_at: Option<UnixMillis>,
    /// The newest request that the trainer has confirmed; never falls.
    #[serde(rename = "confirmed_generation", default)]
    pub confirmed: u64,
    /// Nodes that the trainer has left for it: what may be terminated, and nothing else.
    #[serde(rename = "resize_released", default, skip_serializing_if = "NodeNames::is_empty")]
    pub released: NodeNames,
}

/// The trainer's word that a request may be carried out now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResizeConfirmation {
    /// The size that was asked for.
    pub size: u32,
    /// The request.
    pub generation: u64,
    /// To become smaller: the nodes that it has left. It runs on `size` nodes from now on.
    pub released: NodeNames,
}

impl ResizeRecord {
    /// Whether the trainer has confirmed what it is asked for.
    pub fn is_confirmed(&self) -> bool {
        self.size.is_some() && self.confirmed >= self.generation
    }

    /// What holds after a request at `now`; the one that stands already is not asked for anew.
    #[must_use]
    pub fn request(&self, size: u32, now: UnixMillis) -> Self {
        if self.size == Some(size) {
            return self.clone();
        }
        Self {
            size: Some(size),
            generation: self.generation + 1,
            requested_at: Some(now),
            confirmed: self.confirmed,
            released: NodeNames::default(),
        }
    }

    /// What holds after a confirmation; `None` when it changes nothing: it is about another
    /// request or size, or was taken before.
    pub fn confirm(&self, said: &ResizeConfirmation) -> Option<Self> {
        let is_asked = self.size == Some(said.size) && self.generation == said.generation;
        (is_asked && !self.is_confirmed()).then(|| Self {
            confirmed: said.generation,
            released: said.released.clone(),
            ..self.clone()
        })
    }

    /// What holds once the request of this generation is over.
    #[must_use]
    pub fn end(&self, generation: u64) -> Self {
        if self.generation != generation {
            return self.clone();
        }
        Self { size: None, requested_at: None, released: NodeNames::default(), ..self.clone() }
    }
}
