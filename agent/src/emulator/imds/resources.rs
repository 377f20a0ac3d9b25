//! The resources of the emulated IMDS: which body each path has now, if any.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

/// Paths of the service, as clients ask for them.
pub mod path {
    /// Session token (`PUT`).
    pub const TOKEN: &str = "/latest/api/token";
    /// Spot interruption notice.
    pub const SPOT_ACTION: &str = "/latest/meta-data/spot/instance-action";
    /// Spot termination time, the older form of the notice.
    pub const SPOT_TERMINATION: &str = "/latest/meta-data/spot/termination-time";
    /// Rebalance recommendation.
    pub const REBALANCE: &str = "/latest/meta-data/events/recommendations/rebalance";
    /// Scheduled maintenance events.
    pub const MAINTENANCE: &str = "/latest/meta-data/events/maintenance/scheduled";
    /// Auto Scaling target state.
    pub const TARGET_LIFECYCLE: &str = "/latest/meta-data/autoscaling/target-lifecycle-state";
    /// `spot` or `on-demand`.
    pub const LIFE_CYCLE: &str = "/latest/meta-data/instance-life-cycle";
    /// Instance id.
    pub const INSTANCE_ID: &str = "/latest/meta-data/instance-id";
    /// Instance type.
    pub const INSTANCE_TYPE: &str = "/latest/meta-data/instance-type";
    /// Availability zone.
    pub const ZONE: &str = "/latest/meta-data/placement/availability-zone";
    /// Region.
    pub const REGION: &str = "/latest/meta-data/placement/region";
    /// Identity document.
    pub const IDENTITY: &str = "/latest/dynamic/instance-identity/document";
}

/// Who the emulated instance is.
#[derive(Clone, Debug)]
pub struct InstanceIdentity {
    /// Instance id, such as `i-0123456789abcdef0`.
    pub instance_id: String,
    /// Instance type, such as `p5en.48xlarge`.
    pub instance_type: String,
    /// Availability zone, such as `us-east-2b`; the region is the zone without its last letter.
    pub availability_zone: String,
    /// Account the instance belongs to.
    pub account_id: String,
    /// How its capacity was bought.
    pub life_cycle: LifeCycle,
}

/// How an instance's capacity was bought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifeCycle {
    /// Interruptible.
    Spot,
    /// Kept until given up.
    OnDemand,
}

/// What EC2 says it will do to a Spot instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpotAction {
    /// The instance is ended.
    Terminate,
    /// The instance is stopped.
    Stop,
    /// The instance is hibernated.
    Hibernate,
}

impl InstanceIdentity {
    /// A Spot `p5en.48xlarge` with this id in this zone.
    pub fn spot(instance_id: impl Into<String>, availability_zone: impl Into<String>) -> Self {
        Self {
            instance_id: instance_id.into(),
            instance_type: "p5en.48xlarge".to_owned(),
            availability_zone: availability_zone.into(),
            account_id: "123456789012".to_owned(),
            life_cycle: LifeCycle::Spot,
        }
    }

    fn region(&self) -> &str {
        self.availability_zone.trim_end_matches(|letter: char| letter.is_ascii_lowercase())
    }

    fn document(&self) -> Value {
        json!({
            "accountId": self.account_id,
            "architecture": "x86_64",
            "availabilityZone": self.availability_zone,
            "imageId": "ami-00000000000000000",
            "instanceId": self.instance_id,
            "instanceType": self.instance_type,
            "privateIp": "127.0.0.1",
            "region": self.region(),
            "version": "2017-09-30",
        })
    }
}

/// When something is announced for.
#[derive(Clone, Copy, Debug)]
pub(super) enum NoticeTime {
    /// A fixed moment.
    At(Timestamp),
    /// The time of each read plus this much.
    Moving(Duration),
}

impl NoticeTime {
    /// As the service writes it: UTC, whole seconds.
    fn text(self, now: Timestamp) -> String {
        let time = match self {
            Self::At(time) => time,
            Self::Moving(lead) => SignedDuration::try_from(lead)
                .ok()
                .and_then(|lead| now.checked_add(lead).ok())
                .unwrap_or(Timestamp::MAX),
        };
        time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }
}

impl SpotAction {
    fn text(self) -> &'static str {
        match self {
            Self::Terminate => "terminate",
            Self::Stop => "stop",
            Self::Hibernate => "hibernate",
        }
    }
}

/// Everything that can be read; what is none is 404.
pub(super) struct Resources {
    identity: InstanceIdentity,
    pub(super) spot: Option<(SpotAction, NoticeTime)>,
    pub(super) rebalance: Option<NoticeTime>,
    pub(super) maintenance: Option<Value>,
    pub(super) target_lifecycle: Option<String>,
}

impl Resources {
    pub(super) fn new(identity: InstanceIdentity) -> Self {
        Self { identity, spot: None, rebalance: None, maintenance: None, target_lifecycle: None }
    }

    /// The body of `path`, or none when it has none now.
    pub(super) fn body(&self, path: &str, now: Timestamp) -> Option<String> {
        let identity = &self.identity;
        match path {
            path::SPOT_ACTION => self.spot.map(|(action, time)| {
                json!({ "action": action.text(), "time": time.text(now) }).to_string()
            }),
            path::SPOT_TERMINATION => match self.spot {
                Some((SpotAction::Terminate, time)) => Some(time.text(now)),
                _ => None,
            },
            path::REBALANCE => {
                self.rebalance.map(|time| json!({ "noticeTime": time.text(now) }).to_string())
            }
            path::MAINTENANCE => self.maintenance.as_ref().map(Value::to_string),
            path::TARGET_LIFECYCLE => self.target_lifecycle.clone(),
            path::LIFE_CYCLE => Some(match identity.life_cycle {
                LifeCycle::Spot => "spot".to_owned(),
                LifeCycle::OnDemand => "on-demand".to_owned(),
            }),
            path::INSTANCE_ID => Some(identity.instance_id.clone()),
            path::INSTANCE_TYPE => Some(identity.instance_type.clone()),
            path::ZONE => Some(identity.availability_zone.clone()),
            path::REGION => Some(identity.region().to_owned()),
            path::IDENTITY => Some(identity.document().to_string()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resources() -> Resources {
        Resources::new(InstanceIdentity::spot("i-0abc", "us-east-2b"))
    }

    #[test]
    fn nothing_planned_has_no_body() {
        for path in [
            path::SPOT_ACTION,
            path::SPOT_TERMINATION,
            path::REBALANCE,
            path::MAINTENANCE,
            path::TARGET_LIFECYCLE,
        ] {
            assert_eq!(resources().body(path, Timestamp::UNIX_EPOCH), None, "{path}");
        }
    }

    #[test]
    fn spot_notice_reads_as_documented() {
        let mut resources = resources();
        let time: Timestamp = "2017-09-18T08:22:00Z".parse().unwrap();
        resources.spot = Some((SpotAction::Terminate, NoticeTime::At(time)));
        let body = resources.body(path::SPOT_ACTION, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(body, r#"{"action":"terminate","time":"2017-09-18T08:22:00Z"}"#);
    }

    #[test]
    fn moving_notice_is_told_from_the_time_of_the_read() {
        let moving = NoticeTime::Moving(Duration::from_secs(90));
        assert_eq!(moving.text(Timestamp::UNIX_EPOCH), "1970-01-01T00:01:30Z");
    }

    #[test]
    fn region_is_the_zone_without_its_letter() {
        assert_eq!(resources().body(path::REGION, Timestamp::UNIX_EPOCH).unwrap(), "us-east-2");
    }
}
