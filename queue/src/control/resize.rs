//! The trainer's size: what it is asked for, and what it answers between two updates.
//!
//! The rules are pure; `queue/lua/control_resize.lua` states them for Redis.

use std::time::Duration;

use ebbtide_core::ids::Incarnation;
use ebbtide_core::time::UnixMillis;
use serde::{Deserialize, Serialize};

use super::{NodeNames, TrainerRecord};

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
    /// The start of the trainer that has confirmed it: a later one may work on those nodes again.
    #[serde(rename = "resize_confirmed_by", default, skip_serializing_if = "Option::is_none")]
    pub confirmed_by: Option<Incarnation>,
    /// How the newest request ended, in a word; none while it stands.
    #[serde(rename = "resize_end", default, skip_serializing_if = "Option::is_none")]
    pub end: Option<String>,
    /// When it ended, on the server's clock; set by the store.
    #[serde(rename = "resize_ended_at", default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<UnixMillis>,
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
    /// Who says so, as in the trainer's report. Without it no node can be named.
    pub incarnation: Option<Incarnation>,
}

impl ResizeRecord {
    /// Whether the trainer has confirmed what it is asked for.
    pub fn is_confirmed(&self) -> bool {
        self.size.is_some() && self.confirmed >= self.generation
    }

    /// What holds after a request at `now`; the one that stands already is not asked for anew, and
    /// nobody runs on no node.
    #[must_use]
    pub fn request(&self, size: u32, now: UnixMillis) -> Self {
        if size == 0 || self.size == Some(size) {
            return self.clone();
        }
        Self {
            size: Some(size),
            generation: self.generation + 1,
            requested_at: Some(now),
            confirmed: self.confirmed,
            ..Self::default()
        }
    }

    /// What holds after a confirmation; `None` when it changes nothing: it is about another
    /// request or size, was taken before, or comes from another trainer than `speaker`, the one
    /// that reports.
    pub fn confirm(
        &self,
        said: &ResizeConfirmation,
        speaker: Option<&Incarnation>,
    ) -> Option<Self> {
        let is_asked = self.size == Some(said.size) && self.generation == said.generation;
        let may_name = said.released.is_empty() || said.incarnation.is_some();
        let is_heard = said.incarnation.as_ref() == speaker && may_name;
        (is_asked && is_heard && !self.is_confirmed()).then(|| Self {
            confirmed: said.generation,
            released: said.released.clone(),
            confirmed_by: said.incarnation.clone(),
            ..self.clone()
        })
    }

    /// Whether what was left under the request of this generation may be terminated at `now`: the
    /// trainer that said so has not started again, was heard within `silence_limit`, and runs on no
    /// more nodes than it was asked to.
    pub fn may_release(
        &self,
        generation: u64,
        trainer: &TrainerRecord,
        silence_limit: Duration,
        now: UnixMillis,
    ) -> bool {
        let holds = self.generation == generation && self.is_confirmed();
        let fits = trainer.nodes.is_some_and(|nodes| nodes > 0 && Some(nodes) <= self.size);
        let is_its_word = self.confirmed_by.is_some() && self.confirmed_by == trainer.incarnation;
        let is_heard = now.since(trainer.heartbeat) <= silence_limit;
        holds && !self.released.is_empty() && fits && is_its_word && is_heard
    }

    /// What holds once the request of this generation is over, at `now`.
    #[must_use]
    pub fn end(&self, generation: u64, how: &str, now: UnixMillis) -> Self {
        if self.size.is_none() || self.generation != generation {
            return self.clone();
        }
        Self {
            generation,
            confirmed: self.confirmed,
            confirmed_by: self.confirmed_by.clone(),
            end: Some(how.to_owned()),
            ended_at: Some(now),
            ..Self::default()
        }
    }
}
