//! What of a group's own settings stands against its being sized here. Pure.

use aws_sdk_autoscaling::types::AutoScalingGroup;

/// Whether the group launches nothing.
pub(super) fn launches_nothing(group: &AutoScalingGroup) -> bool {
    is_suspended(group, "Launch") || group.status().is_some()
}

/// In words, for operators.
pub(super) fn remarks(group: &AutoScalingGroup) -> Vec<String> {
    let mut remarks = Vec::new();
    if is_suspended(group, "Launch") {
        remarks.push("Launch is suspended: nothing comes, so nothing more is asked for".to_owned());
    }
    if is_suspended(group, "Terminate") {
        let text = "Terminate is suspended: the group may grow to 110 % to even out its zones";
        remarks.push(text.to_owned());
    }
    if group.availability_zones().len() > 1 && !is_suspended(group, "AZRebalance") {
        let text = "AZRebalance is not suspended: the group may end busy nodes to even out its \
                    zones";
        remarks.push(text.to_owned());
    }
    if group.mixed_instances_policy().is_some() {
        let text = "it has a mixed-instances policy: market and price of its nodes are not the \
                    pool's";
        remarks.push(text.to_owned());
    }
    if let Some(status) = group.status() {
        remarks.push(format!("the group says: {status}"));
    }
    remarks
}

fn is_suspended(group: &AutoScalingGroup, process: &str) -> bool {
    let suspended = group.suspended_processes().iter();
    suspended.filter_map(|suspended| suspended.process_name()).any(|name| name == process)
}

#[cfg(test)]
mod tests {
    use aws_sdk_autoscaling::types::{MixedInstancesPolicy, SuspendedProcess};

    use super::*;

    fn group(zones: &[&str], suspended: &[&str]) -> AutoScalingGroup {
        let process = |name: &&str| SuspendedProcess::builder().process_name(*name).build();
        AutoScalingGroup::builder()
            .auto_scaling_group_name("g")
            .min_size(0)
            .max_size(9)
            .desired_capacity(2)
            .default_cooldown(0)
            .health_check_type("EC2")
            .created_time(aws_sdk_autoscaling::primitives::DateTime::from_secs(0))
            .set_availability_zones(Some(zones.iter().map(|zone| (*zone).to_owned()).collect()))
            .set_suspended_processes(Some(suspended.iter().map(process).collect()))
            .build()
    }

    #[test]
    fn group_as_it_should_be_has_nothing_to_be_said_of_it() {
        assert!(remarks(&group(&["a"], &[])).is_empty());
        assert!(remarks(&group(&["a", "b"], &["AZRebalance", "ReplaceUnhealthy"])).is_empty());
    }

    #[test]
    fn what_stands_against_sizing_is_told() {
        let told = |group: &AutoScalingGroup, word: &str| {
            let remarks = remarks(group);
            assert!(remarks.len() == 1 && remarks[0].contains(word), "{word}: {remarks:?}");
        };
        told(&group(&["a", "b"], &[]), "AZRebalance is not suspended");
        told(&group(&["a"], &["Launch"]), "nothing more is asked for");
        told(&group(&["a"], &["Terminate"]), "110 %");
        let mut mixed = group(&["a"], &[]);
        mixed.mixed_instances_policy = Some(MixedInstancesPolicy::builder().build());
        told(&mixed, "mixed-instances policy");
        let mut ending = group(&["a"], &[]);
        ending.status = Some("Delete in progress".to_owned());
        told(&ending, "Delete in progress");
        assert!(launches_nothing(&ending) && !launches_nothing(&mixed));
    }
}
