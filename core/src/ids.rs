//! Names and numbers that identify things: runs, groups, units, holders, tokens, versions.
//!
//! Every constructor checks its text once, so the rest of the program never meets a bad name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Longest run, group or replica name, in characters.
pub const NAME_LIMIT: usize = 64;

/// Longest node name, in characters: the limit of a Kubernetes node name (RFC 1123 subdomain).
pub const NODE_NAME_LIMIT: usize = 253;

/// Why a text is not a valid name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum IdError {
    /// The text does not match the allowed characters or length.
    #[error("{what} must match {pattern}, got {text:?}")]
    Invalid {
        /// What was being named, such as `run id`.
        what: &'static str,
        /// The pattern that the text has to match.
        pattern: &'static str,
        /// The offending text.
        text: String,
    },
}

fn is_plain_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    !text.is_empty() && text.len() <= NAME_LIMIT && text.chars().all(allowed)
}

fn is_node_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    !text.is_empty() && text.len() <= NODE_NAME_LIMIT && text.chars().all(allowed)
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $what:literal, $pattern:literal, $check:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                if $check(text) {
                    return Ok(Self(text.to_owned()));
                }
                Err(IdError::Invalid { what: $what, pattern: $pattern, text: text.to_owned() })
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;

            fn try_from(text: String) -> Result<Self, IdError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name_type!(
    /// One reinforcement-learning run: the `metadata.name` of its fleet policy.
    RunId, "run id", "[A-Za-z0-9_-]{1,64}", is_plain_name
);
name_type!(
    /// One prompt group: the n samples of one prompt. Unique within a run and data-set epoch.
    GroupId, "group id", "[A-Za-z0-9_-]{1,64}", is_plain_name
);
name_type!(
    /// What is drained, counted and paid as one: an EP group, or one node with its engines.
    ReplicaId, "replica id", "[A-Za-z0-9._-]{1,253}", is_node_name
);
name_type!(
    /// One start of a trainer: each start takes another one, at random.
    Incarnation, "incarnation", "[A-Za-z0-9_-]{1,64}", is_plain_name
);
name_type!(
    /// A Kubernetes node.
    NodeName, "node name", "[A-Za-z0-9._-]{1,253}", is_node_name
);

impl From<&NodeName> for ReplicaId {
    /// A replica of one node carries the name of that node.
    fn from(node: &NodeName) -> Self {
        Self(node.0.clone())
    }
}

/// One sample slot of a prompt group; written `group_id.slot`, the slot as four hex digits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UnitId {
    /// The prompt group that the slot belongs to.
    pub group: GroupId,
    /// The slot, from 0 up to the size of the group.
    pub slot: u16,
}

impl fmt::Display for UnitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:04x}", self.group, self.slot)
    }
}

impl FromStr for UnitId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let invalid = || IdError::Invalid {
            what: "unit id",
            pattern: "<group id>.<slot as four hex digits>",
            text: text.to_owned(),
        };
        let (group, slot) = text.rsplit_once('.').ok_or_else(invalid)?;
        if slot.len() != 4 {
            return Err(invalid());
        }
        let slot = u16::from_str_radix(slot, 16).map_err(|_| invalid())?;
        Ok(Self { group: group.parse()?, slot })
    }
}

impl TryFrom<String> for UnitId {
    type Error = IdError;

    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

impl From<UnitId> for String {
    fn from(unit: UnitId) -> String {
        unit.to_string()
    }
}

/// Who holds a work lease: `<node>/<boot id>/<process uuid>`.
///
/// The boot id tells a rebooted node from the old one, the process id a restarted agent.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Holder {
    /// The node that the process runs on.
    pub node: NodeName,
    /// The boot of that node.
    pub boot_id: String,
    /// The process on that boot.
    pub process: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.node, self.boot_id, self.process)
    }
}

impl FromStr for Holder {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let invalid = || IdError::Invalid {
            what: "holder",
            pattern: "<node>/<boot id>/<process uuid>",
            text: text.to_owned(),
        };
        let mut parts = text.split('/');
        let (Some(node), Some(boot_id), Some(process), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(invalid());
        };
        if !is_plain_name(boot_id) || !is_plain_name(process) {
            return Err(invalid());
        }
        Ok(Self { node: node.parse()?, boot_id: boot_id.to_owned(), process: process.to_owned() })
    }
}

impl TryFrom<String> for Holder {
    type Error = IdError;

    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

impl From<Holder> for String {
    fn from(holder: Holder) -> String {
        holder.to_string()
    }
}

/// A number that rises with each grant of a lease; the queue checks it on every write.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct FencingToken(pub u64);

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The version of the policy's weights. Starts at 0 and never falls within a run.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct PolicyVersion(pub u64);

impl PolicyVersion {
    /// Reads an engine's weights label: decimal digits, anything else is an unknown version.
    ///
    /// `+7`, `07` and versions of 2^53 or more are unknown too: Redis scripts count in doubles.
    pub fn from_weights_label(label: &str) -> Option<Self> {
        let version: u64 = label.parse().ok()?;
        let is_canonical = version.to_string() == label;
        (is_canonical && version < (1 << 53)).then_some(Self(version))
    }
}

impl fmt::Display for PolicyVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_id_survives_its_own_text() {
        let unit: UnitId = "g-1.00ff".parse().expect("valid");
        assert_eq!(unit.slot, 255);
        assert_eq!(unit.to_string(), "g-1.00ff");
    }

    #[test]
    fn names_with_dots_braces_or_no_text_are_refused() {
        for text in ["", "a.b", "{a}", "a b", &"x".repeat(65)] {
            assert!(text.parse::<RunId>().is_err(), "{text:?} must be refused");
            assert!(format!("{text}.0000").parse::<UnitId>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn holder_has_exactly_three_parts() {
        let holder: Holder = "ip-10-0-0-1.ec2.internal/b00t/4f".parse().expect("valid");
        assert_eq!(holder.node.as_str(), "ip-10-0-0-1.ec2.internal");
        for text in ["a", "a/b", "a/b/c/d", "a//c", "/b/c"] {
            assert!(text.parse::<Holder>().is_err(), "{text:?} must be refused");
        }
    }

    #[test]
    fn only_plain_decimal_weights_labels_are_versions() {
        assert_eq!(PolicyVersion::from_weights_label("12"), Some(PolicyVersion(12)));
        for label in ["default", "", "+7", "07", "-1", "7.0", "9007199254740992"] {
            assert_eq!(PolicyVersion::from_weights_label(label), None, "{label:?}");
        }
    }
}
