//! From the moment at which the metadata service shows a notice to the cordoned Kubernetes node,
//! as a watch of the node sees it. The API server is a real one, the polling is the default one.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use ebbtide_agent::kubernetes::KubePods;
use ebbtide_agent::marks::KubeMarks;
use ebbtide_harness::{ControlPlane, Figures, NodeSpec, Redis, percentile_ms};
use futures::{Stream, TryStreamExt};
use k8s_openapi::api::core::v1::Node as KubeNode;
use kube::Api;
use kube::api::{WatchEvent, WatchParams};
use rand::RngExt;

use super::arguments::Sizes;
use super::faulty::client;
use super::node::Node;
use super::seed;

const RUN: &str = "cordon";
const NODE: &str = "node-0";

/// See the module.
///
/// # Errors
/// A part does not start, or the node is not cordoned.
pub async fn measure(sizes: &Sizes, figures: &mut Figures) -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let cluster = ControlPlane::start().await?;
    cluster.add_nodes(&[NodeSpec::gpu(NODE)]).await?;
    let client = client(&cluster).await;
    let api: Api<KubeNode> = Api::all(client.clone());
    let version = api.get(NODE).await?.metadata.resource_version.context("a version")?;
    let only = WatchParams::default().fields(&format!("metadata.name={NODE}"));
    let mut changes = std::pin::pin!(api.watch(&only, &version).await?);
    let queue = seed::queue(&redis, RUN).await?;
    let node = Node::start(NODE, RUN, queue, None, |config, outside| {
        outside.marks = Arc::new(KubeMarks::new(client.clone()));
        outside.pods = Arc::new(KubePods::new(client));
        config
    })?;
    let mut took = Vec::new();
    for _ in 0..sizes.cordons {
        node.wait_until("open", ebbtide_agent::AgentHandle::is_gate_open).await?;
        tokio::time::sleep(Duration::from_secs(1).mul_f64(rand::rng().random_range(0.0..1.0)))
            .await;
        let shown = node.notice();
        becomes(&mut changes, true).await?;
        took.push(shown.elapsed());
        node.imds.withdraw_spot();
        becomes(&mut changes, false).await?;
    }
    figures.set("noticeToCordonedP50Ms", percentile_ms(&took, 50));
    figures.set("noticeToCordonedMaxMs", percentile_ms(&took, 100));
    Ok(())
}

/// Waits until the node is cordoned, or is not any more.
async fn becomes<S>(changes: &mut S, is_cordoned: bool) -> anyhow::Result<()>
where
    S: Stream<Item = kube::Result<WatchEvent<KubeNode>>> + Unpin,
{
    let wait = async {
        while let Some(event) = changes.try_next().await? {
            let WatchEvent::Modified(node) = event else { continue };
            let is_now = node.spec.and_then(|spec| spec.unschedulable).unwrap_or_default();
            if is_now == is_cordoned {
                return Ok(());
            }
        }
        anyhow::bail!("the watch of the node ended")
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.context("the node did not change")?
}
