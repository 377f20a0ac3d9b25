//! Why a holder gives a unit back, and how the queue keeps it.
//!
//! On the wire and in a unit's history a hand-back is one text: the word of its cause; when a drain
//! is behind it, that drain's reason and deadline follow, each after a space. So the history of a
//! unit tells a lost node from a crash long after node, drain and report are gone.

use std::fmt;

use ebbtide_core::time::UnixMillis;

/// Why a holder gives a unit back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HandBackCause {
    /// The node has an interruption notice.
    Notice,
    /// The node is being drained for another reason.
    Drain,
    /// The agent ends (an upgrade) or ended earlier.
    AgentRestart,
    /// The engine will not serve it: not ready, paused too long, wrong weights.
    Engine,
    /// The weights rose and the group restarts under the new ones.
    Weights,
    /// An operator took it from its holder.
    Operator,
}

impl HandBackCause {
    /// The word on the wire and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Notice => "notice",
            Self::Drain => "drain",
            Self::AgentRestart => "agent_restart",
            Self::Engine => "engine",
            Self::Weights => "weights",
            Self::Operator => "operator",
        }
    }
}

/// A hand-back: why, and for which drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandBack {
    /// What it is counted under.
    pub cause: HandBackCause,
    /// The drain behind it, if there is one.
    pub drain: Option<DrainBehind<'static>>,
}

impl From<HandBackCause> for HandBack {
    fn from(cause: HandBackCause) -> Self {
        Self { cause, drain: None }
    }
}

impl fmt::Display for HandBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.cause.as_str())?;
        match self.drain {
            Some(DrainBehind { reason, deadline }) => write!(f, " {reason} {}", deadline.0),
            None => Ok(()),
        }
    }
}

/// The drain behind a hand-back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainBehind<'a> {
    /// Why the node was drained: the word of its notice, else that of the drain.
    pub reason: &'a str,
    /// When it had to be empty, on the server's clock.
    pub deadline: UnixMillis,
}

impl<'a> DrainBehind<'a> {
    /// The cause and the drain that a kept hand-back tells of. One that is not written as above is
    /// taken as the word of a cause.
    pub fn of_detail(detail: &'a str) -> (&'a str, Option<Self>) {
        let words: Vec<&str> = detail.split(' ').collect();
        match (words.as_slice(), words.last().map(|word| word.parse())) {
            (&[cause, reason, _], Some(Ok(deadline))) => {
                (cause, Some(Self { reason, deadline: UnixMillis(deadline) }))
            }
            _ => (detail, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_a_hand_back_tells_its_cause_and_the_drain_behind_it() {
        let drain = DrainBehind { reason: "spot_terminate", deadline: UnixMillis(17) };
        let hand_back = HandBack { cause: HandBackCause::Notice, drain: Some(drain) };
        let kept = hand_back.to_string();
        assert_eq!(DrainBehind::of_detail(&kept), ("notice", Some(drain)));
        let plain = HandBack::from(HandBackCause::AgentRestart).to_string();
        assert_eq!(DrainBehind::of_detail(&plain), ("agent_restart", None));
        for other in ["", "drain swap", "drain swap soon", "drain swap 17 18"] {
            assert_eq!(DrainBehind::of_detail(other), (other, None));
        }
    }
}
