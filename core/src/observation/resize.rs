//! The trainer's size, as it was asked for and confirmed, and how that ended.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::InstanceId;
use crate::ids::NodeName;
use crate::time::as_millis;

/// Another size that the trainer is asked for, until that is over. At the size that it has, it is
/// asked which nodes of its pool it does not run on.
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
    /// Whether the trainer has started again since it confirmed: what it has left then it may work
    /// on now.
    #[serde(default)]
    pub has_restarted: bool,
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
    /// Whether its agent has reported, as one of a node of the trainer.
    #[serde(default)]
    pub is_trainers: bool,
}

/// The last request, once it is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndedResize {
    /// How it ended.
    pub how: ResizeEnd,
    /// How long ago, at most [`Self::AGO_MAX`].
    #[serde(rename = "endedMs", with = "as_millis")]
    pub ago: Duration,
}

impl EndedResize {
    /// What ended longer ago says nothing more by its age, which then stands still in the journal.
    pub const AGO_MAX: Duration = Duration::from_hours(1);
}

/// How a request for another size ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResizeEnd {
    /// The trainer runs on as many nodes.
    Done,
    /// The trainer did not confirm it in time.
    NotConfirmed,
    /// The trainer confirmed it and did not take the nodes in time.
    NotTaken,
    /// The trainer runs on more nodes than it confirmed, or has started again since.
    TakenBack,
    /// The trainer named nodes that its pool does not have.
    NotInPool,
    /// What the trainer has left was not terminated in time.
    NotReleased,
    /// The policy does not allow the size any more.
    NotLegal,
    /// The budget does not pay for it any more.
    TooDear,
    /// The run has ended.
    RunEnded,
}

impl ResizeEnd {
    const ALL: [Self; 9] = [
        Self::Done,
        Self::NotConfirmed,
        Self::NotTaken,
        Self::TakenBack,
        Self::NotInPool,
        Self::NotReleased,
        Self::NotLegal,
        Self::TooDear,
        Self::RunEnded,
    ];

    /// Its word on record.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::NotConfirmed => "not_confirmed",
            Self::NotTaken => "not_taken",
            Self::TakenBack => "taken_back",
            Self::NotInPool => "not_in_pool",
            Self::NotReleased => "not_released",
            Self::NotLegal => "not_legal",
            Self::TooDear => "too_dear",
            Self::RunEnded => "run_ended",
        }
    }

    /// The end of this word; `None` of one that another version wrote.
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|end| end.as_str() == word)
    }

    /// Whether the trainer, or what it named, is why it came to nothing: the same request would
    /// come to nothing again for a while.
    pub fn is_the_trainers(self) -> bool {
        match self {
            Self::NotConfirmed
            | Self::NotTaken
            | Self::TakenBack
            | Self::NotInPool
            | Self::NotReleased => true,
            Self::Done | Self::NotLegal | Self::TooDear | Self::RunEnded => false,
        }
    }
}

impl fmt::Display for ResizeEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Done => "it runs on so many",
            Self::NotConfirmed => "it did not confirm in time",
            Self::NotTaken => "it confirmed, and did not take its nodes in time",
            Self::TakenBack => {
                "it runs on more nodes than it confirmed, or has started again since: what it \
                 named stays"
            }
            Self::NotInPool => "it named nodes that its pool does not have",
            Self::NotReleased => "what it has left was not terminated in time, and stays",
            Self::NotLegal => "the policy does not allow that size any more",
            Self::TooDear => "the budget does not pay for that size any more",
            Self::RunEnded => "the run has ended",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_on_record_is_that_of_the_journal() {
        for end in ResizeEnd::ALL {
            assert_eq!(serde_json::to_value(end).expect("a word"), end.as_str());
            assert_eq!(ResizeEnd::of_word(end.as_str()), Some(end));
        }
        assert_eq!(ResizeEnd::of_word("postponed"), None);
    }
}
