//! `spec.pools`: where nodes come from.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use self::provider::{
    FleetLaunch, Provider, ProviderKind, ScaleTarget, ScaledKind, WorkersTemplate,
};
use super::kinds::{Named, Pattern, choice, text};
use super::numbers::{decimal, number};
use super::reservation::Reservation;
use super::section::Section;

mod provider;

/// Most pools; the planner is measured with 100.
pub const POOLS_LIMIT: usize = 128;

/// Most nodes of one pool; the planner is measured with 10,000 in all.
const NODES_LIMIT: u32 = 10_000;

/// Dearest node that is taken for meant. Fifty times the price of the largest GPU instances.
const NODE_PRICE_MAX_DOLLARS: f64 = 10_000.0;

/// How capacity is bought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Market {
    /// Interruptible, with two minutes of notice at best.
    Spot,
    /// Kept until it is given back.
    OnDemand,
}

impl Market {
    /// The wire name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Spot => "spot",
            Self::OnDemand => "on_demand",
        }
    }
}

/// One capacity pool: instance type × zone × market.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    /// `name`: required; unique in the policy.
    pub name: PoolName,
    /// `provider`: required; `asg` comes with `autoScalingGroup`, `fleet`, `scale` and `workers`
    /// with a section of their name.
    pub provider: Provider,
    /// `market`: required, `spot` or `onDemand`.
    pub market: Market,
    /// `instanceType`: required for `asg` and `fleet`.
    pub instance_type: Option<InstanceType>,
    /// `zone`: required for `fleet`; none is wherever the provider puts it.
    pub zone: Option<Zone>,
    /// `maxNodes`: required, 1 to 10000.
    pub max_nodes: u32,
    /// `dollarsPerNodeHour`: 0 to 10000; none is an unknown price, never a price of zero.
    pub dollars_per_node_hour: Option<f64>,
    /// `reservation`: for `market: onDemand`; none is capacity that is bought as it comes.
    pub reservation: Option<Reservation>,
}

/// A name that does not have the form of its kind.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text:?} must {form}")]
pub struct NameError {
    text: String,
    form: &'static str,
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $form:literal, $regex:literal, $limit:literal,
     $example:literal, $is_valid:expr) => {
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

        impl Pattern for $name {
            const FORM: &'static str = $form;
            const EXAMPLE: &'static str = $example;
            const REGEX: &'static str = $regex;
            const LENGTH_LIMIT: usize = $limit;
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                let is_valid: fn(&str) -> bool = $is_valid;
                if is_valid(text) {
                    return Ok(Self(text.to_owned()));
                }
                Err(NameError { text: text.to_owned(), form: $form })
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(text: String) -> Result<Self, NameError> {
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
    /// The name of a pool within its policy.
    PoolName,
    "match [A-Za-z0-9_-]{1,64}",
    "^[A-Za-z0-9_-]{1,64}$",
    64,
    "spot-a",
    |text| consists_of(text, 64, |c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
);
name_type!(
    /// The name of an EC2 Auto Scaling group.
    AutoScalingGroupName,
    "be 1 to 255 printable ASCII characters without a colon",
    "^[ -9;-~]{1,255}$",
    255,
    "rollout-spot-a",
    |text| consists_of(text, 255, |c| matches!(c, ' '..='~') && c != ':')
);
name_type!(
    /// The name of a lifecycle hook of EC2 Auto Scaling.
    LifecycleHookName,
    "match [A-Za-z0-9_/-]{1,255}",
    "^[A-Za-z0-9_/-]{1,255}$",
    255,
    "drain",
    |text| consists_of(text, 255, |c| c.is_ascii_alphanumeric() || matches!(c, '_' | '/' | '-'))
);
name_type!(
    /// An EC2 instance type.
    InstanceType,
    "match [a-z0-9.-]{1,64}",
    "^[a-z0-9.-]{1,64}$",
    64,
    "p5en.48xlarge",
    |text| consists_of(text, 64, |c| is_lower(c) || matches!(c, '.' | '-'))
);
name_type!(
    /// The id of an EC2 Capacity Reservation; a Capacity Block has one too.
    ReservationId,
    "match cr-[0-9a-f]{1,32}",
    "^cr-[0-9a-f]{1,32}$",
    35,
    "cr-0123456789abcdef0",
    |text| text.strip_prefix("cr-").is_some_and(|id| {
        consists_of(id, 32, |c| matches!(c, '0'..='9' | 'a'..='f'))
    })
);
name_type!(
    /// An availability zone.
    Zone,
    "match [a-z0-9-]{1,64}",
    "^[a-z0-9-]{1,64}$",
    64,
    "us-east-2a",
    |text| consists_of(text, 64, |c| is_lower(c) || c == '-')
);

name_type!(
    /// The name of a Kubernetes object.
    ObjectName,
    "match [a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?",
    "^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$",
    253,
    "rollout",
    |text| is_object_name(text, 253, '.')
);
name_type!(
    /// The name of a Kubernetes namespace.
    NamespaceName,
    "match [a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?",
    "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
    63,
    "training",
    |text| is_object_name(text, 63, '-')
);
name_type!(
    /// The name of an EC2 launch template, or its id.
    LaunchTemplateName,
    "match [A-Za-z0-9()./_-]{3,128}",
    "^[A-Za-z0-9()./_-]{3,128}$",
    128,
    "rollout-spot",
    |text| text.len() >= 3
        && consists_of(text, 128, |c| c.is_ascii_alphanumeric() || "()./_-".contains(c))
);
name_type!(
    /// The version of an EC2 launch template.
    TemplateVersion,
    "be a number, $Default or $Latest",
    "^([0-9]{1,9}|[$]Default|[$]Latest)$",
    9,
    "$Default",
    |text| matches!(text, "$Default" | "$Latest") || consists_of(text, 9, |c| c.is_ascii_digit())
);
name_type!(
    /// A subnet of a VPC.
    SubnetId,
    "match subnet-[0-9a-f]{8,17}",
    "^subnet-[0-9a-f]{8,17}$",
    24,
    "subnet-0123456789abcdef0",
    |text| text.strip_prefix("subnet-").is_some_and(|id| {
        id.len() >= 8 && consists_of(id, 17, |c| c.is_ascii_hexdigit() && !c.is_ascii_uppercase())
    })
);

/// A name as Kubernetes has them; `also` may stand within it, beside the dash.
fn is_object_name(text: &str, limit: usize, also: char) -> bool {
    let ends_well = text.starts_with(is_lower) && text.ends_with(is_lower);
    ends_well && consists_of(text, limit, |c| is_lower(c) || c == '-' || c == also)
}

fn consists_of(text: &str, limit: usize, is_allowed: impl Fn(char) -> bool) -> bool {
    (1..=limit).contains(&text.len()) && text.chars().all(is_allowed)
}

fn is_lower(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

impl Named for Market {
    const NAMES: &'static [(&'static str, Self)] =
        &[("spot", Self::Spot), ("onDemand", Self::OnDemand)];
}

impl Pool {
    /// Whether two pools differ only in their zone, so that one is as good as the other.
    pub fn is_like(&self, other: &Self) -> bool {
        let is_reserved = self.reservation.is_some() || other.reservation.is_some();
        let is_same = self.market == other.market && self.instance_type == other.instance_type;
        is_same && !is_reserved
    }

    pub(super) fn read(pool: &mut Section<'_, '_>) -> Self {
        Self {
            provider: provider::read_provider(pool),
            name: pool.required("name", text()),
            market: pool.required("market", choice()),
            instance_type: pool.optional("instanceType", text()),
            zone: pool.optional("zone", text()),
            max_nodes: pool.required("maxNodes", number(1..=NODES_LIMIT)),
            dollars_per_node_hour: pool
                .optional("dollarsPerNodeHour", decimal(0.0..=NODE_PRICE_MAX_DOLLARS, "dollars")),
            reservation: pool.optional_section("reservation", Reservation::read),
        }
    }
}
