//! What is asked of CreateFleet, and what its answer says. Pure.

use std::collections::BTreeSet;

use aws_sdk_ec2::operation::create_fleet::CreateFleetOutput;
use aws_sdk_ec2::operation::create_fleet::builders::CreateFleetInputBuilder;
use aws_sdk_ec2::types::{
    DefaultTargetCapacityType, FleetLaunchTemplateConfigRequest,
    FleetLaunchTemplateOverridesRequest, FleetLaunchTemplateSpecificationRequest,
    FleetOnDemandAllocationStrategy, FleetType, InstanceType, OnDemandOptionsRequest, ResourceType,
    SpotAllocationStrategy, SpotInstanceInterruptionBehavior, SpotOptionsRequest, Tag,
    TagSpecification, TargetCapacitySpecificationRequest,
};
use ebbtide_core::ids::RunId;
use ebbtide_core::observation::InstanceId;
use ebbtide_core::policy::{FleetLaunch, Market, Pool, ReservationKind};
use ebbtide_queue::control::PurchaseRecord;

use crate::capacity::CapacityError;

/// Tags of every instance and fleet: whose it is, and of which purchase.
pub(super) const RUN_TAG: &str = "ebbtide.dev/run";
pub(super) const POOL_TAG: &str = "ebbtide.dev/pool";
pub(super) const STORE_TAG: &str = "ebbtide.dev/store";
pub(super) const PURCHASE_TAG: &str = "ebbtide.dev/purchase";

/// One replica that is to be bought.
pub(super) struct Order {
    /// The purchase as it is written down.
    pub record: PurchaseRecord,
    /// Nodes of the replica.
    pub nodes: u32,
}

/// The version of a template that is taken where none is named.
const DEFAULT_VERSION: &str = "$Default";

/// The instances of a whole replica.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Bought(pub BTreeSet<InstanceId>);

/// What is asked for of a pool with so many nodes, in words. Under one token EC2 takes no other
/// request.
pub(super) fn terms(pool: &Pool, launch: &FleetLaunch, nodes: u32) -> String {
    let version = launch.version.as_ref().map_or(DEFAULT_VERSION, |version| version.as_str());
    let kind = pool.instance_type.as_ref().map_or("", |kind| kind.as_str());
    let zone = pool.zone.as_ref().map_or("", |zone| zone.as_str());
    let place = launch.subnet.as_ref().map_or(zone, |subnet| subnet.as_str());
    let (template, market) = (&launch.template, capacity_type(pool));
    format!("{nodes} nodes of {template} {version} as {kind} in {place}, {market}")
}

/// One replica, whole or not at all, in one zone.
pub(super) fn request(
    pool: &Pool,
    launch: &FleetLaunch,
    run: &RunId,
    store: &str,
    order: &Order,
) -> CreateFleetInputBuilder {
    let nodes = i32::try_from(order.nodes).unwrap_or(i32::MAX);
    let purchase = order.record.purchase.as_str();
    let template = launch.template.as_str();
    let is_id = template.starts_with("lt-");
    let version = launch.version.as_ref().map_or(DEFAULT_VERSION, |version| version.as_str());
    let specification = FleetLaunchTemplateSpecificationRequest::builder()
        .set_launch_template_id(is_id.then(|| template.to_owned()))
        .set_launch_template_name((!is_id).then(|| template.to_owned()))
        .version(version)
        .build();
    let zone = pool.zone.as_ref().filter(|_| launch.subnet.is_none());
    let place = FleetLaunchTemplateOverridesRequest::builder()
        .set_instance_type(
            pool.instance_type.as_ref().map(|kind| InstanceType::from(kind.as_str())),
        )
        .set_subnet_id(launch.subnet.as_ref().map(ToString::to_string))
        .set_availability_zone(zone.map(ToString::to_string))
        .build();
    let configuration = FleetLaunchTemplateConfigRequest::builder()
        .launch_template_specification(specification)
        .overrides(place)
        .build();
    let kind = capacity_type(pool);
    let is = |other: DefaultTargetCapacityType| kind == other;
    let is_spot = is(DefaultTargetCapacityType::Spot);
    let is_on_demand = is(DefaultTargetCapacityType::OnDemand);
    let capacity = TargetCapacitySpecificationRequest::builder()
        .total_target_capacity(nodes)
        .default_target_capacity_type(kind.clone())
        .build();
    let spot = SpotOptionsRequest::builder()
        .allocation_strategy(SpotAllocationStrategy::CapacityOptimized)
        .instance_interruption_behavior(SpotInstanceInterruptionBehavior::Terminate)
        .single_instance_type(true)
        .single_availability_zone(true)
        .min_target_capacity(nodes)
        .build();
    let on_demand = OnDemandOptionsRequest::builder()
        .allocation_strategy(FleetOnDemandAllocationStrategy::LowestPrice)
        .single_instance_type(true)
        .single_availability_zone(true)
        .min_target_capacity(nodes)
        .build();
    let tags = [
        (RUN_TAG, run.as_str()),
        (POOL_TAG, pool.name.as_str()),
        (STORE_TAG, store),
        (PURCHASE_TAG, purchase),
    ];
    let tags = tags.map(|(key, value)| Tag::builder().key(key).value(value).build());
    let marked = [ResourceType::Instance, ResourceType::Fleet].map(|kind| {
        let tags = Some(tags.to_vec());
        TagSpecification::builder().resource_type(kind).set_tags(tags).build()
    });
    CreateFleetInputBuilder::default()
        .client_token(format!("ebbtide-{purchase}"))
        .r#type(FleetType::Instant)
        .launch_template_configs(configuration)
        .target_capacity_specification(capacity)
        .set_spot_options(is_spot.then_some(spot))
        .set_on_demand_options(is_on_demand.then_some(on_demand))
        .set_tag_specifications(Some(marked.to_vec()))
}

/// How the capacity of a pool is bought. A Capacity Block takes no options: it fulfils what it can,
/// and what is less than a replica is given back.
fn capacity_type(pool: &Pool) -> DefaultTargetCapacityType {
    let kind = pool.reservation.as_ref().map(|reservation| reservation.kind);
    match (pool.market, kind) {
        (Market::Spot, _) => DefaultTargetCapacityType::Spot,
        (_, Some(ReservationKind::CapacityBlock)) => DefaultTargetCapacityType::CapacityBlock,
        (Market::OnDemand, _) => DefaultTargetCapacityType::OnDemand,
    }
}

/// The instances of a whole replica; else why there is none, and what came of it all the same.
pub(super) fn judge(
    reply: &CreateFleetOutput,
    nodes: u32,
) -> Result<Bought, (CapacityError, BTreeSet<InstanceId>)> {
    let ids = reply.instances().iter().flat_map(|instance| instance.instance_ids());
    let ids: BTreeSet<InstanceId> = ids.map(|id| InstanceId(id.clone())).collect();
    if ids.len() >= usize::try_from(nodes).unwrap_or(usize::MAX) {
        return Ok(Bought(ids));
    }
    let mut errors = reply.errors().iter();
    let told = errors.find_map(|error| Some((error.error_code()?, error.error_message())));
    let (code, message) = told.unwrap_or(("UnfulfillableCapacity", None));
    let message = message.unwrap_or("fewer instances than a replica has").to_owned();
    let (what, code) = ("CreateFleet".to_owned(), code.to_owned());
    Err((CapacityError::Refused { what, code, message }, ids))
}

#[cfg(test)]
mod tests;
