//! The `asg` provider: one EC2 Auto Scaling group for each pool, one market each.
//!
//! `SetDesiredCapacity` only ever raises, after the size was read again: where it lowers, the
//! *group* picks the victims. Lowering is `TerminateInstanceInAutoScalingGroup` with decrement, for
//! exactly the named instances. Throttling is retried with jitter within the time limit of a call
//! and says nothing about capacity.

mod convert;
mod remarks;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_autoscaling::types::AutoScalingGroup;
use ebbtide_core::ids::NodeName;
use ebbtide_core::observation::{Activities, InstanceId, InstanceView, PoolView, Signal};
use ebbtide_core::policy::{AutoScalingGroupName, Market, Pool, PoolName, Provider};
use ebbtide_core::time::UnixMillis;

use super::ec2::Instances;
use super::{Capacity, CapacityError, unread};
use crate::aws::{AwsError, call};
use crate::metrics::ApiCalls;

/// Longest time for what is nice to know beside the sizes: names of new nodes, then activities.
/// Twice this and one call for the sizes are less than what an observation may take.
const DETAIL_LIMIT: Duration = Duration::from_secs(3);

/// Groups that one DescribeAutoScalingGroups may name, and its page size.
const GROUPS_PER_CALL: usize = 100;

/// Instances that one SetInstanceProtection may name.
const PROTECTED_PER_CALL: usize = 50;

/// On an instance whose protection from scale-in is ours.
const PROTECTION_TAG: &str = "ebbtide.dev/scale-in-protection";

/// Activities that are read of a group that is short: several tries of every missing node.
const ACTIVITIES_LIMIT: i32 = 50;

/// Auto Scaling groups of one account and region.
pub struct AsgCapacity {
    groups: aws_sdk_autoscaling::Client,
    instances: Instances,
    calls: ApiCalls,
    /// What EC2 said about instances that groups show.
    known: Mutex<BTreeMap<InstanceId, Machine>>,
    /// Pools whose activities have been read at least once.
    introduced: Mutex<BTreeSet<PoolName>>,
    /// Start of the newest activity of a pool before it was last raised, on AWS's clock.
    raised_after: Mutex<BTreeMap<PoolName, UnixMillis>>,
}

/// What EC2 says about an instance; it does not change in its life, once it has a name.
#[derive(Debug, Clone)]
struct Machine {
    /// Its node; none until EC2 tells a name.
    node: Option<NodeName>,
    market: Market,
}

impl AsgCapacity {
    /// Clients with this configuration. Nothing is called yet, so that AWS may be away.
    pub fn new(config: &aws_config::SdkConfig, calls: ApiCalls) -> Self {
        Self {
            groups: aws_sdk_autoscaling::Client::new(config),
            instances: Instances { client: aws_sdk_ec2::Client::new(config), calls: calls.clone() },
            calls,
            known: Mutex::default(),
            introduced: Mutex::default(),
            raised_after: Mutex::default(),
        }
    }

    async fn describe_groups(
        &self,
        names: &[&AutoScalingGroupName],
    ) -> Result<BTreeMap<String, AutoScalingGroup>, CapacityError> {
        let mut found = BTreeMap::new();
        for names in names.chunks(GROUPS_PER_CALL) {
            let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
            let page = i32::try_from(GROUPS_PER_CALL).unwrap_or(i32::MAX);
            let reply = call("DescribeAutoScalingGroups", &self.calls, || {
                self.groups
                    .describe_auto_scaling_groups()
                    .set_auto_scaling_group_names(Some(names.clone()))
                    .max_records(page)
                    .send()
            })
            .await?;
            for group in reply.auto_scaling_groups.unwrap_or_default() {
                if let Some(name) = group.auto_scaling_group_name.clone() {
                    found.insert(name, group);
                }
            }
        }
        Ok(found)
    }

    /// The group of a pool as it is now. One that is not told is not one without instances.
    async fn describe_group(
        &self,
        name: &AutoScalingGroupName,
    ) -> Result<AutoScalingGroup, CapacityError> {
        let mut groups = self.describe_groups(&[name]).await?;
        let group = groups.remove(name.as_str()).filter(|group| convert::desired(group).is_some());
        group.ok_or_else(|| CapacityError::Unavailable {
            what: "DescribeAutoScalingGroups".to_owned(),
            problem: format!("AWS does not tell the size of group {name}"),
        })
    }

    /// Asks EC2 about instances that are new, or had no name yet. Without an answer they stay
    /// without a node's name until the next tick; agents tell their instance themselves.
    async fn learn_machines(&self, ids: &BTreeSet<InstanceId>) {
        let new: Vec<String> = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.retain(|id, _| ids.contains(id));
            let is_named = |id: &InstanceId| known.get(id).is_some_and(|it| it.node.is_some());
            ids.iter().filter(|id| !is_named(id)).map(|id| id.0.clone()).collect()
        };
        match in_time("DescribeInstances", self.instances.describe(&new)).await {
            Ok(machines) => {
                let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
                let machines = machines.iter().filter_map(convert::machine);
                known.extend(machines);
            }
            Err(error) => tracing::warn!(%error, "names of new nodes are not known yet"),
        }
    }

    fn view(&self, pool: &Pool, group: &AutoScalingGroup) -> PoolView {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut size) = convert::pool_size(group) else {
            return PoolView::unread(pool.name.clone(), "AWS does not tell its size");
        };
        for instance in &mut size.instances {
            let machine = known.get(&instance.id);
            instance.node = machine.and_then(|machine| machine.node.clone());
            instance.market = Some(machine.map_or(pool.market, |machine| machine.market));
        }
        PoolView {
            name: pool.name.clone(),
            size: Signal::fresh(size),
            activities: Signal::unknown("not asked: the group has what it wants"),
        }
    }

    /// Reads activities at the first look at a group, and while it is short.
    async fn add_activities(&self, group: &AutoScalingGroupName, view: &mut PoolView) {
        let is_introduced = {
            let introduced = self.introduced.lock().unwrap_or_else(PoisonError::into_inner);
            introduced.contains(&view.name)
        };
        let is_short = view.size.known().is_some_and(|size| size.count() < size.desired);
        if is_introduced && !is_short {
            return;
        }
        let activities = self.describe_activities(group);
        view.activities = match in_time("DescribeScalingActivities", activities).await {
            Ok(mut activities) => {
                // What failed before the last raise says nothing about it.
                let raised_after = self.raised_after(&view.name);
                activities.failures.retain(|failure| Some(failure.at) > raised_after);
                let mut introduced = self.introduced.lock().unwrap_or_else(PoisonError::into_inner);
                introduced.insert(view.name.clone());
                Signal::fresh(activities)
            }
            Err(error) => Signal::unknown(error.to_string()),
        };
    }

    fn raised_after(&self, pool: &PoolName) -> Option<UnixMillis> {
        let raised_after = self.raised_after.lock().unwrap_or_else(PoisonError::into_inner);
        raised_after.get(pool).copied()
    }

    /// Remembers what had happened before a raise. While a group has what it wants its activities
    /// are not read: what failed meanwhile, and was made good, would be news to the next look.
    async fn note_past(&self, pool: &Pool, group: &AutoScalingGroupName) {
        let activities = self.describe_activities(group);
        let activities = in_time("DescribeScalingActivities", activities).await;
        if let Some(newest) = activities.ok().and_then(|activities| activities.newest_at) {
            let mut raised_after = self.raised_after.lock().unwrap_or_else(PoisonError::into_inner);
            raised_after.insert(pool.name.clone(), newest);
        }
    }

    async fn describe_activities(
        &self,
        group: &AutoScalingGroupName,
    ) -> Result<Activities, CapacityError> {
        let reply = call("DescribeScalingActivities", &self.calls, || {
            self.groups
                .describe_scaling_activities()
                .auto_scaling_group_name(group.as_str())
                .max_records(ACTIVITIES_LIMIT)
                .send()
        })
        .await?;
        Ok(convert::activities(&reply.activities.unwrap_or_default()))
    }

    /// Sets or lifts the protection of instances of a group.
    async fn set_protection(
        &self,
        group: &AutoScalingGroupName,
        instances: &[InstanceId],
        is_protected: bool,
    ) -> Result<(), CapacityError> {
        for ids in instances.chunks(PROTECTED_PER_CALL) {
            let ids: Vec<String> = ids.iter().map(|id| id.0.clone()).collect();
            call("SetInstanceProtection", &self.calls, || {
                self.groups
                    .set_instance_protection()
                    .auto_scaling_group_name(group.as_str())
                    .set_instance_ids(Some(ids.clone()))
                    .protected_from_scale_in(is_protected)
                    .send()
            })
            .await?;
        }
        Ok(())
    }

    /// Lifts the protection of those among protected instances whose protection is ours, by its
    /// tag: another controller may have set both since this one first saw them.
    async fn lift_protection(
        &self,
        group: &AutoScalingGroupName,
        instances: &[&InstanceView],
    ) -> Result<(), CapacityError> {
        let ids: Vec<String> = instances.iter().map(|one| one.id.0.clone()).collect();
        let shown = in_time("DescribeInstances", self.instances.describe(&ids)).await?;
        let ours: Vec<InstanceId> = shown.iter().filter_map(convert::protected_by_us).collect();
        self.set_protection(group, &ours, false).await
    }

    async fn terminate_one(&self, instance: &InstanceId) -> Result<(), CapacityError> {
        let outcome = call("TerminateInstanceInAutoScalingGroup", &self.calls, || {
            self.groups
                .terminate_instance_in_auto_scaling_group()
                .instance_id(&instance.0)
                .should_decrement_desired_capacity(true)
                .send()
        })
        .await;
        match outcome {
            Ok(_) => Ok(()),
            // It is on its way out already: the reply to an earlier call was lost.
            Err(AwsError::Refused { message, .. }) if convert::says_not_found(&message) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Details that come late are left out: they must not cost the sizes that were read already.
async fn in_time<T>(
    what: &str,
    reading: impl Future<Output = Result<T, CapacityError>>,
) -> Result<T, CapacityError> {
    tokio::time::timeout(DETAIL_LIMIT, reading).await.unwrap_or_else(|_| {
        let problem = format!("no answer within {DETAIL_LIMIT:?}");
        Err(CapacityError::Unavailable { what: what.to_owned(), problem })
    })
}

fn group_of(pool: &Pool) -> Option<&AutoScalingGroupName> {
    match &pool.provider {
        Provider::Asg(group) => Some(group),
        _ => None,
    }
}

#[async_trait]
impl Capacity for AsgCapacity {
    async fn observe(&self, pools: &[&Pool]) -> Vec<PoolView> {
        let names: Vec<&AutoScalingGroupName> =
            pools.iter().filter_map(|pool| group_of(pool)).collect();
        let groups = match self.describe_groups(&names).await {
            Ok(groups) => groups,
            Err(error) => return unread(pools, &error.to_string()),
        };
        let shown = groups.values().filter_map(convert::pool_size).flat_map(|size| size.instances);
        let ids: BTreeSet<InstanceId> = shown.map(|InstanceView { id, .. }| id).collect();
        self.learn_machines(&ids).await;
        let views = pools.iter().map(|pool| async {
            let Some(name) = group_of(pool) else {
                return PoolView::unread(
                    pool.name.clone(),
                    CapacityError::foreign(pool).to_string(),
                );
            };
            let Some(group) = groups.get(name.as_str()) else {
                let why = format!("there is no Auto Scaling group {name}");
                return PoolView::unread(pool.name.clone(), why);
            };
            let mut view = self.view(pool, group);
            self.add_activities(name, &mut view).await;
            view
        });
        futures::future::join_all(views).await
    }

    async fn find_gone(
        &self,
        _: &[&Pool],
        instances: &[InstanceId],
    ) -> Result<BTreeSet<InstanceId>, CapacityError> {
        self.instances.find_gone(instances).await
    }

    async fn raise(&self, pool: &Pool, from: u32, to: u32, _: u32) -> Result<(), CapacityError> {
        let name = group_of(pool).ok_or_else(|| CapacityError::foreign(pool))?;
        // Read last: between this and the write there is nothing but the way to AWS.
        self.note_past(pool, name).await;
        let found = convert::desired(&self.describe_group(name).await?).unwrap_or(0);
        if found != from || to <= from {
            return Err(CapacityError::moved(pool, from, found));
        }
        let desired = i32::try_from(to).unwrap_or(i32::MAX);
        call("SetDesiredCapacity", &self.calls, || {
            self.groups
                .set_desired_capacity()
                .auto_scaling_group_name(name.as_str())
                .desired_capacity(desired)
                .honor_cooldown(false)
                .send()
        })
        .await?;
        Ok(())
    }

    async fn protect(&self, pool: &Pool, instances: &[InstanceId]) -> Result<(), CapacityError> {
        let name = group_of(pool).ok_or_else(|| CapacityError::foreign(pool))?;
        // The tag first: no protection of ours is without it.
        self.instances.tag(instances, PROTECTION_TAG).await?;
        self.set_protection(name, instances, true).await
    }

    async fn terminate(&self, pool: &Pool, instances: &[InstanceId]) -> Result<(), CapacityError> {
        let name = group_of(pool).ok_or_else(|| CapacityError::foreign(pool))?;
        // An instance on its way out is no more counted: asking again would take another one's
        // place from the desired size.
        let size = convert::pool_size(&self.describe_group(name).await?).unwrap_or_default();
        let counted = size.counted().filter(|one| instances.contains(&one.id));
        let counted: Vec<&InstanceView> = counted.collect();
        let protected = counted.iter().copied().filter(|one| one.is_protected);
        // It does not stop the call below, and would stop others if that fails.
        if let Err(error) = self.lift_protection(name, &protected.collect::<Vec<_>>()).await {
            tracing::debug!(%error, "protection from scale-in was not lifted");
        }
        for instance in &counted {
            self.terminate_one(&instance.id).await?;
        }
        Ok(())
    }
}
