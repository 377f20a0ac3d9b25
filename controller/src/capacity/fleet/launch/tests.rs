//! Requests, and replies as EC2 gives them.

use aws_sdk_ec2::types::{CreateFleetError, CreateFleetInstance};
use ebbtide_core::policy::{FleetPolicy, Provider};

use super::*;

fn pool(market: &str, fleet: &str) -> Pool {
    let text = format!(
        "apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {{name: run}}
spec:
  trainer: {{groupsPerStep: 4, groupSize: 1}}
  rollout: {{maxReplicas: 4, pools: [one]}}
  pools:
    - {{name: one, provider: fleet, market: {market}, maxNodes: 9, zone: us-east-2a,
       instanceType: p5en.48xlarge, fleet: {{launchTemplate: {fleet}}}}}
"
    );
    let policy = FleetPolicy::parse(&text, "policy.yaml").expect("valid");
    policy.rollout_pools().next().expect("it has one").clone()
}

fn asked(pool: &Pool) -> CreateFleetInputBuilder {
    let Provider::Fleet(launch) = &pool.provider else { panic!("it is of fleets") };
    request(pool, launch, &"run".parse().expect("valid"), "store-1", &order("p1"))
}

fn order(purchase: &str) -> Order {
    let record = PurchaseRecord {
        purchase: purchase.to_owned(),
        pool: "one".parse().expect("valid"),
        terms: String::new(),
        instances: Default::default(),
        noted_at: Default::default(),
    };
    Order { record, nodes: 2 }
}

#[test]
fn replica_is_asked_for_whole_in_one_zone() {
    let fleet = asked(&pool("spot", "rollout"));
    assert_eq!(fleet.get_type(), &Some(FleetType::Instant));
    let spot = fleet.get_spot_options().as_ref().expect("it is of Spot");
    assert_eq!(spot.min_target_capacity(), Some(2));
    assert_eq!(spot.single_availability_zone(), Some(true));
    assert!(fleet.get_on_demand_options().is_none());
    let capacity = fleet.get_target_capacity_specification().as_ref().expect("set");
    assert_eq!(capacity.total_target_capacity(), Some(2));
    assert_eq!(capacity.default_target_capacity_type(), Some(&DefaultTargetCapacityType::Spot));
    let fleet = asked(&pool("onDemand", "rollout"));
    let on_demand = fleet.get_on_demand_options().as_ref().expect("it is on demand");
    assert_eq!(on_demand.min_target_capacity(), Some(2));
    assert!(fleet.get_spot_options().is_none());
}

#[test]
fn template_is_named_by_name_or_id_and_a_subnet_takes_the_place_of_the_zone() {
    let configuration = |pool: &Pool| {
        let fleet = asked(pool);
        fleet.get_launch_template_configs().as_ref().expect("one")[0].clone()
    };
    let one = configuration(&pool("spot", "rollout"));
    let template = one.launch_template_specification().expect("set");
    let named = (template.launch_template_name(), template.launch_template_id());
    assert_eq!(named, (Some("rollout"), None));
    assert_eq!(template.version(), Some("$Default"));
    assert_eq!(one.overrides()[0].availability_zone(), Some("us-east-2a"));
    let other = configuration(&pool("spot", "lt-0abc, version: \"7\", subnet: subnet-0123abcd"));
    let template = other.launch_template_specification().expect("set");
    let named = (template.launch_template_name(), template.launch_template_id());
    assert_eq!(named, (None, Some("lt-0abc")));
    assert_eq!(template.version(), Some("7"));
    let place = &other.overrides()[0];
    assert_eq!((place.availability_zone(), place.subnet_id()), (None, Some("subnet-0123abcd")));
}

#[test]
fn purchase_is_named_in_token_and_tags_and_its_terms_tell_what_is_asked_for() {
    let fleet = asked(&pool("spot", "rollout"));
    let token = fleet.get_client_token().as_deref().expect("set");
    assert_eq!(token, "ebbtide-p1");
    for marked in fleet.get_tag_specifications().as_ref().expect("set") {
        let tags = marked.tags().iter();
        let tags: Vec<_> = tags.filter_map(|tag| Some((tag.key()?, tag.value()?))).collect();
        let expected = [
            ("ebbtide.dev/run", "run"),
            ("ebbtide.dev/pool", "one"),
            ("ebbtide.dev/store", "store-1"),
            ("ebbtide.dev/purchase", "p1"),
        ];
        assert_eq!(tags, expected);
    }
    let told = |pool: &Pool, nodes| {
        let Provider::Fleet(launch) = &pool.provider else { panic!("it is of fleets") };
        terms(pool, launch, nodes)
    };
    let spot = told(&pool("spot", "rollout"), 2);
    assert_eq!(spot, "2 nodes of rollout $Default as p5en.48xlarge in us-east-2a, spot");
    let others = [
        told(&pool("spot", "rollout"), 1),
        told(&pool("onDemand", "rollout"), 2),
        told(&pool("spot", "rollout, version: \"7\""), 2),
        told(&pool("spot", "rollout, subnet: subnet-0123abcd"), 2),
    ];
    assert!(others.iter().all(|other| *other != spot), "{others:?}");
}

#[test]
fn capacity_block_is_bought_as_one() {
    let block = "rollout}, reservation: {id: cr-0a, endsAt: 2026-12-24T18:00:00Z";
    let fleet = asked(&pool("onDemand", block));
    let capacity = fleet.get_target_capacity_specification().as_ref().expect("set");
    let kind = DefaultTargetCapacityType::CapacityBlock;
    assert_eq!(capacity.default_target_capacity_type(), Some(&kind));
    // EC2 refuses any options beside it.
    assert!(fleet.get_on_demand_options().is_none() && fleet.get_spot_options().is_none());
    let reserved = format!("{block}, kind: onDemand");
    let fleet = asked(&pool("onDemand", &reserved));
    let capacity = fleet.get_target_capacity_specification().as_ref().expect("set");
    let kind = DefaultTargetCapacityType::OnDemand;
    assert_eq!(capacity.default_target_capacity_type(), Some(&kind));
    assert!(fleet.get_on_demand_options().is_some());
}

/// As in EC2's own reference of CreateFleet: an instant fleet that was not fulfilled has errors in
/// the place of instances.
fn reply(instances: &[&str], error: Option<(&str, &str)>) -> CreateFleetOutput {
    let instance = |id: &&str| CreateFleetInstance::builder().instance_ids(*id).build();
    let error = error.map(|(code, message)| {
        CreateFleetError::builder().error_code(code).error_message(message).build()
    });
    CreateFleetOutput::builder()
        .set_instances(Some(instances.iter().map(instance).collect()))
        .set_errors(error.map(|error| vec![error]))
        .build()
}

#[test]
fn less_than_a_replica_is_a_failure_with_ec2s_own_reason() {
    use ebbtide_core::observation::FailureKind;

    let whole = judge(&reply(&["i-1", "i-2"], None), 2).expect("whole");
    assert_eq!(whole.0.len(), 2);
    let table = [
        (
            "InsufficientInstanceCapacity",
            "There is no Spot capacity available that matches your request.",
            FailureKind::Capacity,
        ),
        ("UnfulfillableCapacity", "Unable to fulfill capacity.", FailureKind::Capacity),
        ("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded", FailureKind::Quota),
        ("RequestLimitExceeded", "Request limit exceeded.", FailureKind::Throttled),
        ("InvalidLaunchTemplateName.NotFoundException", "It does not exist.", FailureKind::Other),
    ];
    for (code, message, kind) in table {
        let (error, left) = judge(&reply(&[], Some((code, message))), 2).expect_err("none");
        let CapacityError::Refused { code: told, .. } = &error else { panic!("{error}") };
        assert_eq!((told.as_str(), FailureKind::of_text(told), left.len()), (code, kind, 0));
    }
    let (error, left) = judge(&reply(&["i-1"], None), 2).expect_err("half");
    assert_eq!(left.len(), 1, "it is given back");
    assert!(error.to_string().contains("fewer instances than a replica has"), "{error}");
}
