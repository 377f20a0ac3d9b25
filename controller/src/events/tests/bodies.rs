//! Messages as AWS sends them, each with an id of its own.

use std::sync::atomic::{AtomicU64, Ordering};

use ebbtide_core::observation::InstanceId;
use ebbtide_core::time::UnixMillis;

use crate::controller::tests::world::paused_clock;

fn envelope(detail_type: &str, sent_at: UnixMillis, detail: &str) -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let id = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!(
        r#"{{"version":"0","id":"e-{id}","detail-type":"{detail_type}","source":"aws.ec2",
            "account":"123456789012","time":"{sent_at}","region":"us-east-2","resources":[],
            "detail":{detail}}}"#
    )
}

/// A Spot interruption warning of this moment.
pub fn spot(instance: &InstanceId) -> String {
    spot_at(instance, paused_clock())
}

/// A Spot interruption warning of a moment.
pub fn spot_at(instance: &InstanceId, sent_at: UnixMillis) -> String {
    let detail = format!(r#"{{"instance-id":"{instance}","instance-action":"terminate"}}"#);
    envelope("EC2 Spot Instance Interruption Warning", sent_at, &detail)
}

/// A rebalance recommendation.
pub fn rebalance(instance: &InstanceId) -> String {
    let detail = format!(r#"{{"instance-id":"{instance}"}}"#);
    envelope("EC2 Instance Rebalance Recommendation", paused_clock(), &detail)
}

/// A change of state.
pub fn state_change(instance: &InstanceId, state: &str) -> String {
    let detail = format!(r#"{{"instance-id":"{instance}","state":"{state}"}}"#);
    envelope("EC2 Instance State-change Notification", paused_clock(), &detail)
}

/// A page of a scheduled change.
pub fn health(
    id: &str,
    communication: &str,
    starts_at: UnixMillis,
    instances: &[&InstanceId],
) -> String {
    let entities: Vec<String> =
        instances.iter().map(|id| format!(r#"{{"entityValue":"{id}"}}"#)).collect();
    let moment: jiff::Timestamp = starts_at.to_string().parse().expect("a moment");
    let starts_at = moment.strftime("%a, %d %b %Y %H:%M:%S GMT");
    let detail = format!(
        r#"{{"service":"EC2","eventTypeCategory":"scheduledChange","eventTypeCode":"{id}",
            "communicationId":"{communication}","startTime":"{starts_at}",
            "affectedEntities":[{}]}}"#,
        entities.join(",")
    );
    envelope("AWS Health Event", paused_clock(), &detail)
}

/// A lifecycle action straight from Auto Scaling.
pub fn lifecycle(instance: &InstanceId, group: &str, token: &str) -> String {
    let sent_at = paused_clock();
    format!(
        r#"{{"LifecycleHookName":"drain","AccountId":"123456789012","RequestId":"r",
            "LifecycleTransition":"autoscaling:EC2_INSTANCE_TERMINATING",
            "AutoScalingGroupName":"{group}","Service":"AWS Auto Scaling","Time":"{sent_at}",
            "EC2InstanceId":"{instance}","LifecycleActionToken":"{token}"}}"#
    )
}
