//! EC2 instances, as the providers that buy them look at them.

use std::collections::BTreeSet;

use aws_sdk_ec2::types::{Filter, Instance, InstanceLifecycleType, InstanceStateName, Tag};
use ebbtide_core::ids::NodeName;
use ebbtide_core::observation::InstanceId;
use ebbtide_core::policy::Market;

use super::CapacityError;
use crate::aws::call;
use crate::metrics::ApiCalls;

/// Instances that one filter of DescribeInstances may name.
const INSTANCES_PER_CALL: usize = 200;

/// Instances of one page.
const PAGE_INSTANCES: i32 = 1000;

/// Pages that one look reads at most; a pool has at most 10,000 nodes.
const PAGES_LIMIT: usize = 20;

/// Instances of one account and region.
pub(super) struct Instances {
    pub client: aws_sdk_ec2::Client,
    pub calls: ApiCalls,
}

impl Instances {
    /// The instances among these that EC2 knows.
    pub async fn describe(&self, ids: &[String]) -> Result<Vec<Instance>, CapacityError> {
        let mut found = Vec::new();
        for ids in ids.chunks(INSTANCES_PER_CALL) {
            // A filter leaves unknown ids out, where naming them would fail the whole call.
            found.extend(self.filtered(vec![filter("instance-id", ids.to_vec())]).await?);
        }
        Ok(found)
    }

    /// All instances that these filters let through.
    pub async fn filtered(&self, filters: Vec<Filter>) -> Result<Vec<Instance>, CapacityError> {
        let mut found = Vec::new();
        let mut token = None;
        for _ in 0..PAGES_LIMIT {
            let reply = call("DescribeInstances", &self.calls, || {
                self.client
                    .describe_instances()
                    .set_filters(Some(filters.clone()))
                    .max_results(PAGE_INSTANCES)
                    .set_next_token(token.clone())
                    .send()
            })
            .await?;
            let reservations = reply.reservations.unwrap_or_default();
            found.extend(reservations.into_iter().flat_map(|r| r.instances.unwrap_or_default()));
            token = reply.next_token.filter(|token| !token.is_empty());
            if token.is_none() {
                break;
            }
        }
        Ok(found)
    }

    /// Puts a tag on instances.
    pub async fn tag(&self, instances: &[InstanceId], key: &str) -> Result<(), CapacityError> {
        let tag = Tag::builder().key(key).value("true").build();
        for ids in instances.chunks(INSTANCES_PER_CALL) {
            let ids: Vec<String> = ids.iter().map(|id| id.0.clone()).collect();
            call("CreateTags", &self.calls, || {
                let tagging = self.client.create_tags().set_resources(Some(ids.clone()));
                tagging.tags(tag.clone()).send()
            })
            .await?;
        }
        Ok(())
    }

    /// Which of these do not exist any more.
    pub async fn find_gone(
        &self,
        instances: &[InstanceId],
    ) -> Result<BTreeSet<InstanceId>, CapacityError> {
        let ids: Vec<String> = instances.iter().map(|id| id.0.clone()).collect();
        let found = self.describe(&ids).await?;
        let alive: BTreeSet<&str> = found
            .iter()
            .filter(|instance| !is_in(instance, &InstanceStateName::Terminated))
            .filter_map(|instance| instance.instance_id())
            .collect();
        Ok(instances.iter().filter(|id| !alive.contains(id.0.as_str())).cloned().collect())
    }
}

pub(super) fn filter(name: &str, values: Vec<String>) -> Filter {
    Filter::builder().name(name).set_values(Some(values)).build()
}

pub(super) fn is_in(instance: &Instance, state: &InstanceStateName) -> bool {
    instance.state().and_then(|found| found.name()) == Some(state)
}

/// The node that it becomes: EKS names nodes by their private DNS name.
pub(super) fn node_of(instance: &Instance) -> Option<NodeName> {
    let name = instance.private_dns_name().filter(|name| !name.is_empty());
    name.and_then(|name| name.parse().ok())
}

pub(super) fn market_of(instance: &Instance) -> Market {
    match instance.instance_lifecycle() {
        Some(InstanceLifecycleType::Spot) => Market::Spot,
        _ => Market::OnDemand,
    }
}
