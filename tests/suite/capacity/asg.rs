//! Provider `asg` on moto, with AWS's own ways in front of it.

use std::sync::Arc;

use ebbtide_controller::capacity::asg::AsgCapacity;
use ebbtide_controller::capacity::{Capacity, CapacityError};
use ebbtide_controller::metrics::Metrics;
use ebbtide_core::observation::InstanceId;
use ebbtide_core::policy::Pool;
use ebbtide_harness::{Moto, require};

use super::faulty_aws::{Fault, FaultyAws};
use super::world::{look, pool};
use crate::aws::Group;

struct World<'a> {
    aws: FaultyAws,
    group: Group<'a>,
    capacity: Arc<dyn Capacity>,
    pool: Pool,
}

impl<'a> World<'a> {
    /// A group of `desired` instances, at most 5.
    async fn start(moto: &'a Moto, desired: u32) -> Self {
        let group = Group::create(moto, "rollout", desired, 5).await;
        let aws = FaultyAws::start(moto).await;
        let calls = Metrics::new().unwrap().api_calls;
        let capacity: Arc<dyn Capacity> = Arc::new(AsgCapacity::new(&aws.config().await, calls));
        let pool = pool("provider: asg, autoScalingGroup: rollout, instanceType: p5en.48xlarge");
        Self { aws, group, capacity, pool }
    }

    /// One that begins now, and knows nothing of the other.
    async fn another(&self) -> Arc<dyn Capacity> {
        let calls = Metrics::new().unwrap().api_calls;
        Arc::new(AsgCapacity::new(&self.aws.config().await, calls))
    }
}

#[tokio::test]
async fn throttled_and_contended_calls_are_made_again_and_nothing_is_done_twice() {
    let moto = require!(Moto::start().await);
    let world = World::start(&moto, 1).await;
    world.aws.fail("SetDesiredCapacity", Fault::Refused("Throttling"), 2);
    world.capacity.raise(&world.pool, 1, 3, 1).await.unwrap();
    assert_eq!((world.aws.calls("SetDesiredCapacity"), world.group.desired().await), (3, 3));
    let terminate = "TerminateInstanceInAutoScalingGroup";
    let victim = InstanceId(world.group.instances().await[1].clone());
    for code in ["ScalingActivityInProgress", "ResourceContention"] {
        world.aws.fail(terminate, Fault::Refused(code), 100);
        let named = std::slice::from_ref(&victim);
        let refused = world.capacity.terminate(&world.pool, named).await.unwrap_err();
        assert!(refused.is_retriable(), "{refused}");
        assert_eq!(world.group.desired().await, 3);
    }
    world.aws.fail(terminate, Fault::Refused("ScalingActivityInProgress"), 1);
    world.capacity.terminate(&world.pool, std::slice::from_ref(&victim)).await.unwrap();
    let left = world.group.instances().await;
    assert!(left.len() == 2 && !left.contains(&victim.0), "{left:?}");
}

#[tokio::test]
async fn lost_answers_raise_and_terminate_once() {
    let moto = require!(Moto::start().await);
    let world = World::start(&moto, 2).await;
    world.aws.fail("SetDesiredCapacity", Fault::ReplyLost, 1);
    assert!(world.capacity.raise(&world.pool, 2, 4, 1).await.unwrap_err().is_retriable());
    let moved = world.capacity.raise(&world.pool, 2, 4, 1).await.unwrap_err();
    assert!(matches!(moved, CapacityError::Moved { got: 4, .. }), "{moved}");
    assert_eq!(world.group.desired().await, 4);

    let victim = InstanceId(world.group.instances().await[0].clone());
    world.aws.fail("TerminateInstanceInAutoScalingGroup", Fault::ReplyLost, 1);
    let named = std::slice::from_ref(&victim);
    assert!(world.capacity.terminate(&world.pool, named).await.unwrap_err().is_retriable());
    world.capacity.terminate(&world.pool, named).await.unwrap();
    assert_eq!(world.group.instances().await.len(), 3, "nobody else went in its place");
    assert_eq!(world.group.desired().await, 3);
}

#[tokio::test]
async fn protection_is_ours_and_lifted_with_the_drained_one_alone() {
    let moto = require!(Moto::start().await);
    let world = World::start(&moto, 3).await;
    let protected = async || {
        let view = look(&world.capacity, &world.pool).await;
        let instances = &view.size.known().unwrap().instances;
        let protected = instances.iter().filter(|one| one.is_protected);
        protected.map(|one| one.id.clone()).collect::<Vec<InstanceId>>()
    };
    assert_eq!(protected().await, []);
    let all: Vec<InstanceId> = world.group.instances().await.into_iter().map(InstanceId).collect();
    world.capacity.protect(&world.pool, &all[..2]).await.unwrap();
    assert_eq!(protected().await, all[..2]);
    // One that begins now knows by the tag whose it is.
    let other = world.another().await;
    look(&other, &world.pool).await;
    let before = world.aws.calls("SetInstanceProtection");
    other.terminate(&world.pool, &all[1..]).await.unwrap();
    assert_eq!(world.aws.calls("SetInstanceProtection"), before + 1, "the third was never ours");
    assert_eq!(world.group.instances().await, [all[0].0.clone()]);
    assert_eq!(protected().await, all[..1]);
}

#[tokio::test]
async fn suspended_processes_are_told_and_a_group_that_launches_nothing_has_no_room() {
    let moto = require!(Moto::start().await);
    let world = World::start(&moto, 2).await;
    let size = async || look(&world.capacity, &world.pool).await.size.known().unwrap().clone();
    assert_eq!((size().await.limit, size().await.remarks), (Some(5), vec![]));
    world.group.suspend("Launch").await;
    let suspended = size().await;
    assert_eq!(suspended.limit, Some(2));
    assert!(suspended.remarks[0].contains("Launch is suspended"), "{:?}", suspended.remarks);
}

#[tokio::test]
async fn more_than_the_maximum_is_refused_and_nothing_is_launched() {
    let moto = require!(Moto::start().await);
    let world = World::start(&moto, 2).await;
    let refused = world.capacity.raise(&world.pool, 2, 9, 1).await.unwrap_err();
    assert!(refused.to_string().contains("above max value 5") && !refused.is_retriable());
    assert_eq!(world.group.desired().await, 2);
}

#[tokio::test]
async fn names_of_nodes_that_are_late_cost_no_size() {
    let moto = require!(Moto::start().await);
    let world = World::start(&moto, 2).await;
    world.aws.fail("DescribeInstances", Fault::Refused("RequestLimitExceeded"), 100);
    let view = look(&world.capacity, &world.pool).await;
    let size = view.size.known().unwrap();
    assert_eq!((size.desired, size.instances.len()), (2, 2));
    assert!(size.instances.iter().all(|one| one.node.is_none()));
    world.aws.fail("DescribeInstances", Fault::ReplyLost, 0);
    let view = look(&world.capacity, &world.pool).await;
    assert!(view.size.known().unwrap().instances.iter().all(|one| one.node.is_some()));
}

/// Case T33 of autoscaling: while a group has what it wants nobody reads its activities.
#[tokio::test]
async fn failure_from_before_a_raise_is_not_told_after_it() {
    let moto = require!(Moto::start().await);
    let world = World::start(&moto, 1).await;
    let tell = |activities: &[(&str, &str)]| {
        let member = |(status, at): &(&str, &str)| {
            format!(
                "<member><ActivityId>a</ActivityId><AutoScalingGroupName>rollout\
                 </AutoScalingGroupName><Cause>c</Cause><Description>Launching a new EC2 instance\
                 </Description><StartTime>2026-01-02T{at}Z</StartTime><StatusCode>{status}\
                 </StatusCode><StatusMessage>InsufficientInstanceCapacity</StatusMessage></member>"
            )
        };
        let members: String = activities.iter().map(member).collect();
        let answer = format!(
            "<DescribeScalingActivitiesResponse><DescribeScalingActivitiesResult><Activities>\
             {members}</Activities></DescribeScalingActivitiesResult>\
             </DescribeScalingActivitiesResponse>"
        );
        world.aws.fail("DescribeScalingActivities", Fault::Answered(answer), 100);
    };
    let failures = async || {
        let view = look(&world.capacity, &world.pool).await;
        view.activities.known().map(|activities| activities.failures.len())
    };
    tell(&[("Successful", "10:00:00")]);
    assert_eq!(failures().await, Some(0), "the first look");
    assert_eq!(failures().await, None, "it has what it wants, and is not asked");
    // A node was lost, its replacement failed once, and came: nobody looked.
    let past = [("Successful", "11:00:40"), ("Failed", "11:00:05"), ("Successful", "10:00:00")];
    tell(&past);
    world.capacity.raise(&world.pool, 1, 2, 1).await.unwrap();
    // moto fills a group at once; AWS takes its time.
    let short = "<DescribeAutoScalingGroupsResponse><DescribeAutoScalingGroupsResult>\
        <AutoScalingGroups><member><AutoScalingGroupName>rollout</AutoScalingGroupName>\
        <MinSize>0</MinSize><MaxSize>5</MaxSize><DesiredCapacity>2</DesiredCapacity>\
        <DefaultCooldown>300</DefaultCooldown><HealthCheckType>EC2</HealthCheckType>\
        <CreatedTime>2026-01-01T00:00:00Z</CreatedTime></member></AutoScalingGroups>\
        </DescribeAutoScalingGroupsResult></DescribeAutoScalingGroupsResponse>";
    world.aws.fail("DescribeAutoScalingGroups", Fault::Answered(short.to_owned()), 100);
    assert_eq!(failures().await, Some(0), "it answers nothing that was asked for here");
    let fresh = ("Failed", "12:00:00");
    tell(&[&[fresh][..], &past[..]].concat());
    assert_eq!(failures().await, Some(1));
}

#[tokio::test]
async fn group_that_is_not_told_ends_nothing_and_is_no_empty_one() {
    let moto = require!(Moto::start().await);
    let world = World::start(&moto, 2).await;
    let victim = [InstanceId(world.group.instances().await[0].clone())];
    let none = "<DescribeAutoScalingGroupsResponse><DescribeAutoScalingGroupsResult>\
        <AutoScalingGroups/></DescribeAutoScalingGroupsResult>\
        </DescribeAutoScalingGroupsResponse>";
    world.aws.fail("DescribeAutoScalingGroups", Fault::Answered(none.to_owned()), 2);
    let ended = world.capacity.terminate(&world.pool, &victim).await;
    assert!(ended.as_ref().is_err_and(CapacityError::is_retriable), "{ended:?}");
    let raised = world.capacity.raise(&world.pool, 0, 1, 1).await.unwrap_err();
    assert!(raised.to_string().contains("does not tell the size"), "{raised}");
    let writes = ["TerminateInstanceInAutoScalingGroup", "SetDesiredCapacity"];
    assert_eq!(writes.map(|action| world.aws.calls(action)), [0, 0]);
}

#[tokio::test]
async fn size_is_read_back_right_before_it_is_written() {
    let moto = require!(Moto::start().await);
    let world = World::start(&moto, 1).await;
    world.capacity.raise(&world.pool, 1, 3, 1).await.unwrap();
    let log = world.aws.log();
    let last = &log[log.len() - 2..];
    assert_eq!(last, ["DescribeAutoScalingGroups", "SetDesiredCapacity"], "{log:?}");
}

#[tokio::test]
async fn name_of_an_instance_that_has_none_yet_is_asked_for_again() {
    let moto = require!(Moto::start().await);
    let world = World::start(&moto, 1).await;
    let instance = &world.group.instances().await[0];
    let nameless = format!(
        "<DescribeInstancesResponse><reservationSet><item><instancesSet><item><instanceId>\
         {instance}</instanceId><privateDnsName/><instanceLifecycle>spot</instanceLifecycle>\
         </item></instancesSet></item></reservationSet></DescribeInstancesResponse>"
    );
    world.aws.fail("DescribeInstances", Fault::Answered(nameless), 1);
    let node = async || {
        let view = look(&world.capacity, &world.pool).await;
        view.size.known().unwrap().instances[0].node.clone()
    };
    assert_eq!(node().await, None);
    assert!(node().await.is_some());
    assert!(node().await.is_some());
    assert_eq!(world.aws.calls("DescribeInstances"), 2, "a name that is known is kept");
}

#[tokio::test]
async fn protection_that_another_controller_set_since_is_lifted_all_the_same() {
    let moto = require!(Moto::start().await);
    let world = World::start(&moto, 1).await;
    let all: Vec<InstanceId> = world.group.instances().await.into_iter().map(InstanceId).collect();
    let standby = world.another().await;
    look(&standby, &world.pool).await;
    world.capacity.protect(&world.pool, &all).await.unwrap();
    look(&standby, &world.pool).await;
    let before = world.aws.calls("SetInstanceProtection");
    standby.terminate(&world.pool, &all).await.unwrap();
    assert_eq!(world.aws.calls("SetInstanceProtection"), before + 1);
    assert_eq!(world.group.desired().await, 0);
}
