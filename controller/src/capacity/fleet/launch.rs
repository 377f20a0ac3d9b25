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
use ebbtide_core::observation::{InstanceId, InstanceView};
use ebbtide_core::policy::{FleetLaunch, Market, Pool};

use crate::capacity::CapacityError;

/// Tags of every instance and fleet: whose it is.
pub(super) const RUN_TAG: &str = "ebbtide.dev/run";
pub(super) const POOL_TAG: &str = "ebbtide.dev/pool";

/// The instances of a whole replica.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Bought(pub BTreeSet<InstanceId>);

/// One replica of so many nodes, whole or not at all, in one zone.
pub(super) fn request(
    pool: &Pool,
    launch: &FleetLaunch,
    run: &RunId,
    nodes: u32,
    token: String,
) -> CreateFleetInputBuilder {
    let nodes = i32::try_from(nodes).unwrap_or(i32::MAX);
    let template = launch.template.as_str();
    let is_id = template.starts_with("lt-");
    let version = launch.version.as_ref().map_or("$Default", |version| version.as_str());
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
    let is_spot = pool.market == Market::Spot;
    let kind =
        if is_spot { DefaultTargetCapacityType::Spot } else { DefaultTargetCapacityType::OnDemand };
    let capacity = TargetCapacitySpecificationRequest::builder()
        .total_target_capacity(nodes)
        .default_target_capacity_type(kind)
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
    let tags = [(RUN_TAG, run.as_str()), (POOL_TAG, pool.name.as_str())];
    let tags = tags.map(|(key, value)| Tag::builder().key(key).value(value).build());
    let marked = [ResourceType::Instance, ResourceType::Fleet].map(|kind| {
        let tags = Some(tags.to_vec());
        TagSpecification::builder().resource_type(kind).set_tags(tags).build()
    });
    CreateFleetInputBuilder::default()
        .client_token(token)
        .r#type(FleetType::Instant)
        .launch_template_configs(configuration)
        .target_capacity_specification(capacity)
        .set_spot_options(is_spot.then_some(spot))
        .set_on_demand_options((!is_spot).then_some(on_demand))
        .set_tag_specifications(Some(marked.to_vec()))
}

/// The same while the pool has the same instances and nothing was answered since. FNV-1a of 128
/// bits: it need not withstand anybody.
pub(super) fn token(
    run: &RunId,
    pool: &Pool,
    present: &[InstanceView],
    answers: u64,
    start: u32,
) -> String {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    let mut ids: Vec<&str> = present.iter().map(|instance| instance.id.0.as_str()).collect();
    ids.sort_unstable();
    let text = format!("{run} {} {answers} {start} {}", pool.name, ids.join(" "));
    let hash = text.bytes().fold(BASIS, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME));
    format!("ebbtide-{hash:032x}")
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
