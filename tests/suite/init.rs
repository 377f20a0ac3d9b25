//! `ebbtide policy init` against the real parts: groups in moto, node pools in a cluster.

use std::process::Command;

use ebbtide_core::policy::{FleetPolicy, Market, Provider};
use ebbtide_harness::{ControlPlane, InstanceType, Karpenter, Moto, require};
use serde_json::json;

use crate::aws::{Group, template};
use crate::programs::{EBBTIDE, policy_file};

fn init(arguments: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let mut command = Command::new(EBBTIDE);
    command.args(["policy", "init"]).args(arguments);
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// What was written passes `ebbtide policy check`.
fn checked(text: &str) -> FleetPolicy {
    let folder = tempfile::tempdir().unwrap();
    let path = policy_file(folder.path(), text);
    let check = Command::new(EBBTIDE).args(["policy", "check", &path]).output().unwrap();
    assert!(check.status.success(), "{}\n{text}", String::from_utf8_lossy(&check.stdout));
    FleetPolicy::parse(text, "p").expect("valid")
}

#[tokio::test]
async fn policy_is_written_from_auto_scaling_groups() {
    let moto = require!(Moto::start().await);
    template(&moto, "spot-template", "p5en.48xlarge", true).await;
    let _spot = Group::of_template(&moto, "grpo-spot", "spot-template", 12).await;
    let _on_demand = Group::create(&moto, "grpo-on-demand", 1, 4).await;
    let variables = moto.variables();
    let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
    let groups = ["--from-asg", "grpo-spot", "grpo-on-demand", "--name", "grpo-7b"];
    let (code, text, error) = init(&groups, &variables);
    assert_eq!(code, Some(0), "{error}");
    let policy = checked(&text);
    assert_eq!(policy.run.as_str(), "grpo-7b");
    let pools: Vec<_> = policy.rollout_pools().collect();
    assert!(matches!(&pools[0].provider, Provider::Asg(name) if name.as_str() == "grpo-spot"));
    assert_eq!((pools[0].market, pools[0].max_nodes), (Market::Spot, 12));
    assert_eq!((pools[1].market, pools[1].max_nodes), (Market::OnDemand, 4));
    for pool in pools {
        assert_eq!(pool.instance_type.as_ref().unwrap().as_str(), "p5en.48xlarge");
        assert_eq!(pool.zone.as_ref().unwrap().as_str(), "us-east-1a");
    }
    assert_eq!(policy.rollout.max_replicas, 16);
    assert!(text.contains("decide: the price of a node"), "{text}");

    let (code, text, error) = init(&["--from-asg", "grpo-spot", "grpo-sopt"], &variables);
    assert_eq!((code, text.as_str()), (Some(2), ""));
    assert!(error.contains("there is no Auto Scaling group grpo-sopt"), "{error}");
}

#[tokio::test]
async fn policy_is_written_from_node_pools() {
    let mut cluster = require!(ControlPlane::start().await);
    let types = [InstanceType::gpu("p5en.48xlarge").spot("us-east-2a", 25.0)];
    let _karpenter = require!(Karpenter::start(&mut cluster, &types).await);
    let mut pool = Karpenter::node_pool("gpu");
    let requirements = &mut pool["items"][1]["spec"]["template"]["spec"]["requirements"];
    let requirement =
        |key: &str, values: [&str; 2]| json!({ "key": key, "operator": "In", "values": values });
    requirements.as_array_mut().unwrap().extend([
        requirement("topology.kubernetes.io/zone", ["us-east-2a", "us-east-2b"]),
        json!({
            "key": "node.kubernetes.io/instance-type", "operator": "In",
            "values": ["p5en.48xlarge"],
        }),
    ]);
    cluster.kubectl().create(&pool).await.expect("created");
    let kubeconfig = cluster.kubeconfig().display().to_string();
    let variables = [("KUBECONFIG", kubeconfig.as_str())];
    let (code, text, error) = init(&["--from-nodepool", "gpu"], &variables);
    assert_eq!(code, Some(0), "{error}");
    let policy = checked(&text);
    let names: Vec<&str> = policy.rollout_pools().map(|pool| pool.name.as_str()).collect();
    assert_eq!(names.len(), 4, "{names:?}");
    assert_eq!(names[0], "gpu-spot-p5en-48xlarge-us-east-2a");
    let markets: Vec<Market> = policy.rollout_pools().map(|pool| pool.market).collect();
    assert_eq!(markets, [Market::Spot, Market::Spot, Market::OnDemand, Market::OnDemand]);

    let (code, _, error) = init(&["--from-nodepool", "none"], &variables);
    assert_eq!(code, Some(2));
    assert!(error.contains("there is no node pool none"), "{error}");
}
