//! Node pools of Karpenter, templates of the groups, the policy, and the controller's process.

use std::collections::BTreeMap;
use std::path::Path;

use ebbtide_harness::{Karpenter, PATIENT_POD_ANNOTATION, Program};
use serde_json::{Value, json};

use super::{
    CHEAP, DEAR, GROUP_SIZE, KEPT, NODES_PER_REPLICA, RUN, SHARDS, Site, Size, UNITS_PER_REPLICA,
};

const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
const ZONE: &str = "topology.kubernetes.io/zone";
const MARKET: &str = "karpenter.sh/capacity-type";

/// Namespace, node pools and templates.
///
/// # Errors
/// The API server refused one.
pub async fn furnish(site: &Site<'_>) -> anyhow::Result<()> {
    site.cluster.create_namespace(RUN).await?;
    let pools = [("spot", "us-east-1a"), ("dry", "us-east-1f"), ("on-demand", "us-east-1a")];
    for (name, zone) in pools {
        let market = if name == "on-demand" { "on-demand" } else { "spot" };
        let needs = [(MARKET, vec![market]), (ZONE, vec![zone]), (INSTANCE_TYPE, vec![DEAR])];
        site.cluster.kubectl().create(&node_pool(name, &needs)).await?;
        site.cluster.kubectl().create(&template(name)).await?;
    }
    Ok(())
}

/// Lets Karpenter have cheaper nodes for the on-demand pool, so that it moves one at a time.
///
/// # Errors
/// The API server refused it.
pub async fn offer_cheaper_nodes(site: &Site<'_>) -> anyhow::Result<()> {
    let needs = requirements(&[
        (MARKET, vec!["on-demand"]),
        (ZONE, vec!["us-east-1a"]),
        (INSTANCE_TYPE, vec![DEAR, CHEAP]),
    ]);
    let template = json!({ "spec": { "requirements": needs } });
    let budgets = json!([{ "nodes": "1" }]);
    let disruption = json!({
        "consolidationPolicy": "WhenEmptyOrUnderutilized",
        "consolidateAfter": "1s",
        "budgets": budgets,
    });
    patch(site, &json!({ "spec": { "template": template, "disruption": disruption } })).await
}

/// Karpenter moves no more nodes; it still takes empty ones.
///
/// # Errors
/// The API server refused it.
pub async fn end_moves(site: &Site<'_>) -> anyhow::Result<()> {
    patch(site, &json!({ "spec": { "disruption": disruption() } })).await
}

async fn patch(site: &Site<'_>, patch: &Value) -> anyhow::Result<()> {
    let patch = patch.to_string();
    let arguments = ["patch", "nodepool", "on-demand", "--type=merge", "--patch", &patch];
    site.cluster.kubectl().run(&arguments).await?;
    Ok(())
}

/// Empty nodes go, after a while: a group that is made anew finds its nodes again.
fn disruption() -> Value {
    json!({
        "consolidationPolicy": "WhenEmpty",
        "consolidateAfter": "3s",
        "budgets": [{ "nodes": "100%" }],
    })
}

fn requirements(needs: &[(&str, Vec<&str>)]) -> Value {
    let is_one_of = |key: &str, values: &[&str]| {
        let operator = "In";
        json!({ "key": key, "operator": operator, "values": values })
    };
    needs.iter().map(|(key, values)| is_one_of(key, values)).collect()
}

fn node_pool(name: &str, needs: &[(&str, Vec<&str>)]) -> Value {
    let mut list = Karpenter::node_pool(name);
    let spec = &mut list["items"][1]["spec"];
    spec["template"]["spec"]["requirements"] = requirements(needs);
    spec["disruption"] = disruption();
    list
}

/// Groups of one pod on each node. Their pods are patient: a real engine's pod waits for its agent.
fn template(pool: &str) -> Value {
    let pod = json!({
        "metadata": {
            "labels": { "app": "rollout", "ebbtide.dev/engine": "vllm" },
            "annotations": { PATIENT_POD_ANNOTATION: "" },
        },
        "spec": {
            "nodeSelector": { "karpenter.sh/nodepool": pool },
            "terminationGracePeriodSeconds": 600,
            "containers": [{
                "name": "engine",
                "image": "played",
                "resources": { "limits": { "nvidia.com/gpu": "8" } },
            }],
        },
    });
    json!({
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": { "name": pool, "namespace": RUN },
        "spec": {
            "replicas": 0,
            "leaderWorkerTemplate": { "size": NODES_PER_REPLICA, "workerTemplate": pod },
        },
    })
}

/// Two zones of Spot that are alike, of which one has no capacity, and on demand after them. There
/// is room for more than the demand asks for, so that an order made twice would show.
fn policy(size: Size) -> String {
    let (replicas, nodes) = (size.replicas(), NODES_PER_REPLICA);
    let pool = |name: &str, market: &str, zone: &str, most: u32, more: &str| {
        let provider = format!("provider: workers, workers: {{template: {name}{more}}}");
        let place = format!("instanceType: {DEAR}, zone: {zone}");
        let most = most * nodes;
        format!("    - {{name: {name}, market: {market}, {place}, maxNodes: {most}, {provider}}}\n")
    };
    let pools = [
        pool("spot", "spot", "us-east-1a", size.spot, ""),
        pool("dry", "spot", "us-east-1f", size.dry, ", unschedulableTimeout: 5s"),
        pool("on-demand", "onDemand", "us-east-1a", replicas, ""),
    ];
    format!(
        "apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {{name: {RUN}}}
spec:
  mode: act
  queue: {{shards: {SHARDS}}}
  staleness: {{maxLag: 8}}
  trainer: {{groupsPerStep: {groups}, groupSize: {GROUP_SIZE}}}
  rollout:
    nodesPerReplica: {nodes}
    minReplicas: {KEPT}
    maxReplicas: {most}
    concurrencyPerReplica: {UNITS_PER_REPLICA}
    pools: [spot, dry, on-demand]
    bufferTargetSteps: 1
    bufferMaxSteps: 2
    startupEstimate: 1s
    stabilizationDown: 3s
    maxChangesPerTick: {changes}
    tick: {tick}
  pools:
{pools}",
        groups = size.groups_per_step(),
        most = replicas + size.dry,
        changes = size.changes_per_tick,
        tick = size.tick,
        pools = pools.concat(),
    )
}

/// `ebbtide controller`, and where it answers.
pub struct Controller {
    pub program: Program,
    health: String,
}

impl Controller {
    /// Starts it; its policy lies in `folder`.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(site: &Site<'_>, size: Size, folder: &Path) -> anyhow::Result<Self> {
        let file = folder.join("policy.yaml");
        std::fs::write(&file, policy(size))?;
        let listen = format!("127.0.0.1:{}", Program::free_port()?);
        let program = Program::options("ebbtide-controller", site.program)
            .arguments(["controller", "--redis", &site.redis, "--policy"])
            .arguments([&file])
            .arguments(["--namespace", RUN, "--identity", "only", "--listen", &listen])
            .variable("KUBECONFIG", &site.cluster.kubeconfig().display().to_string())
            .variable("AWS_REGION", "us-east-1")
            .variable("AWS_EC2_METADATA_DISABLED", "true")
            .variable("NO_COLOR", "1")
            .start()?;
        Ok(Self { program, health: format!("http://{listen}") })
    }

    /// Kills it without notice and starts another one in its place.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn replace(&mut self) -> anyhow::Result<()> {
        self.program.kill();
        Ok(self.program.start_again()?)
    }

    /// Why it decided as it did at its last tick.
    pub async fn reasons(&self) -> Vec<String> {
        let status = async { reqwest::get(format!("{}/status", self.health)).await?.json().await };
        let status: reqwest::Result<Value> = status.await;
        let reasons =
            status.ok().and_then(|mut status| status["reasons"].take().as_array().cloned());
        let words = |reason: Value| reason.as_str().map(str::to_owned);
        reasons.unwrap_or_default().into_iter().filter_map(words).collect()
    }

    /// The values of its metrics whose names begin like this.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn metrics(&self, name: &str) -> anyhow::Result<BTreeMap<String, f64>> {
        let text = reqwest::get(format!("{}/metrics", self.health)).await?.text().await?;
        let lines = text.lines().filter(|line| line.starts_with(name));
        let value = |line: &str| {
            let (series, value) = line.rsplit_once(' ')?;
            Some((series.to_owned(), value.parse().ok()?))
        };
        Ok(lines.filter_map(value).collect())
    }
}
