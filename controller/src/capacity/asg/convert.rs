//! From AWS's replies to what sizing reads. Pure.

use aws_sdk_autoscaling::types::{Activity, AutoScalingGroup, ScalingActivityStatusCode};
use aws_sdk_ec2::types::Instance;
use ebbtide_core::observation::{
    Activities, FailureKind, InstanceId, InstanceState, InstanceView, LaunchFailure, PoolSize,
};
use ebbtide_core::time::UnixMillis;

use super::remarks::{launches_nothing, remarks};
use super::{Machine, PROTECTION_TAG};
use crate::capacity::ec2::{market_of, node_of};

/// What the group was asked for; `None` when AWS does not say, which is not zero.
pub(super) fn desired(group: &AutoScalingGroup) -> Option<u32> {
    u32::try_from(group.desired_capacity()?).ok()
}

/// The size and the instances of a group; nodes and markets are filled in later. `None` when its
/// size is not known.
pub(super) fn pool_size(group: &AutoScalingGroup) -> Option<PoolSize> {
    let desired = desired(group)?;
    let instances = group.instances().iter().filter_map(|instance| {
        let id = InstanceId(instance.instance_id()?.to_owned());
        let state = lifecycle(instance.lifecycle_state().map_or("", |state| state.as_str()));
        Some(InstanceView {
            is_protected: instance.protected_from_scale_in().unwrap_or(false),
            zone: instance.availability_zone().and_then(|zone| zone.parse().ok()),
            ..InstanceView::new(id, state)
        })
    });
    let most = group.max_size().and_then(|nodes| u32::try_from(nodes).ok());
    Some(PoolSize {
        desired,
        // Where nothing is launched, more could be asked for, and would be waited for.
        limit: if launches_nothing(group) { Some(desired) } else { most },
        floor: group.min_size().and_then(|nodes| u32::try_from(nodes).ok()).unwrap_or(0),
        instances: instances.collect(),
        is_unmanaged: false,
        remarks: remarks(group),
    })
}

/// A state of an instance in its group, by AWS's word for it.
fn lifecycle(state: &str) -> InstanceState {
    match state.split(':').next().unwrap_or(state) {
        "Pending" => InstanceState::Pending,
        "InService" => InstanceState::InService,
        "Terminating" | "Terminated" => InstanceState::Terminating,
        _ => InstanceState::Aside,
    }
}

/// Failed launches, and when the newest activity began, all on AWS's clock.
pub(super) fn activities(activities: &[Activity]) -> Activities {
    let started = |activity: &Activity| {
        let millis = activity.start_time()?.to_millis().ok()?;
        u64::try_from(millis).ok().map(UnixMillis)
    };
    let failures = activities.iter().filter_map(|activity| {
        let has_failed = activity.status_code() == Some(&ScalingActivityStatusCode::Failed);
        let is_launch = !activity.description().unwrap_or("").starts_with("Terminating");
        let message = activity.status_message().unwrap_or("").to_owned();
        let kind = FailureKind::of_text(&message);
        let at = started(activity)?;
        (has_failed && is_launch).then_some(LaunchFailure { at, kind, message })
    });
    Activities {
        newest_at: activities.iter().filter_map(started).max(),
        failures: failures.collect(),
    }
}

/// What EC2 says about an instance.
pub(super) fn machine(instance: &Instance) -> Option<(InstanceId, Machine)> {
    let id = InstanceId(instance.instance_id()?.to_owned());
    Some((id, Machine { node: node_of(instance), market: market_of(instance) }))
}

/// The id of an instance whose protection from scale-in is ours.
pub(super) fn protected_by_us(instance: &Instance) -> Option<InstanceId> {
    let is_ours = instance.tags().iter().any(|tag| tag.key() == Some(PROTECTION_TAG));
    instance.instance_id().filter(|_| is_ours).map(|id| InstanceId(id.to_owned()))
}

/// Whether AWS refused because the instance is no part of a group any more.
pub(super) fn says_not_found(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    message.contains("not found") || message.contains("no managed instance")
}

#[cfg(test)]
mod tests {
    use aws_sdk_autoscaling::primitives::DateTime;

    use super::*;

    #[test]
    fn lifecycle_states_are_counted_as_the_group_counts_them() {
        let table = [
            ("Pending", true),
            ("Pending:Wait", true),
            ("InService", true),
            ("Terminating", false),
            ("Terminating:Wait", false),
            ("Terminated", false),
            ("Standby", false),
            ("Detaching", false),
            ("Warmed:Stopped", false),
        ];
        for (state, counts) in table {
            assert_eq!(lifecycle(state).counts(), counts, "{state}");
        }
    }

    /// Case T31 of autoscaling.
    #[test]
    fn size_that_aws_does_not_tell_is_unknown_and_not_zero() {
        let group = |desired| {
            let group = AutoScalingGroup::builder().auto_scaling_group_name("g");
            group.set_desired_capacity(desired).build()
        };
        assert_eq!(pool_size(&group(Some(197))).map(|size| size.desired), Some(197));
        assert_eq!(pool_size(&group(Some(0))).map(|size| size.desired), Some(0));
        for unknown in [None, Some(-1)] {
            assert_eq!((desired(&group(unknown)), pool_size(&group(unknown))), (None, None));
        }
    }

    #[test]
    fn only_failed_launches_are_failures() {
        let activity = |status, description: &str, seconds| {
            Activity::builder()
                .activity_id("a")
                .auto_scaling_group_name("g")
                .cause("c")
                .description(description)
                .start_time(DateTime::from_secs(seconds))
                .status_code(status)
                .status_message("InsufficientInstanceCapacity")
                .build()
        };
        let read = activities(&[
            activity(ScalingActivityStatusCode::Successful, "Launching a new EC2 instance", 30),
            activity(ScalingActivityStatusCode::Failed, "Launching a new EC2 instance", 20),
            activity(ScalingActivityStatusCode::Failed, "Terminating EC2 instance: i-1", 10),
        ]);
        assert_eq!(read.newest_at, Some(UnixMillis(30_000)));
        assert_eq!(read.failures.len(), 1);
        assert_eq!(read.failures[0].at, UnixMillis(20_000));
        assert_eq!(read.failures[0].kind, FailureKind::Capacity);
    }
}
