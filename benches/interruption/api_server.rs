//! The hand-back of one node, as in `hand_back.rs`, with Kubernetes: an API server in order, one
//! that answers in 10 s, one that refuses every call for its rate, and one that is away: side by
//! side.

use std::sync::Arc;
use std::time::Duration;

use ebbtide_agent::kubernetes::KubePods;
use ebbtide_agent::marks::KubeMarks;
use ebbtide_harness::{ControlPlane, Figures, NodeSpec, Redis, percentile_ms};
use futures::future::try_join_all;

use super::arguments::Sizes;
use super::faulty::{Fault, Faulty, client};
use super::hand_back;

const STATES: [(&str, Fault, &str); 4] = [
    ("in-order", Fault::None, "apiServerNoticeToHandedBackP99Ms"),
    ("slow", Fault::Slow(Duration::from_secs(10)), "apiServerSlowNoticeToHandedBackP99Ms"),
    ("throttles", Fault::Throttles, "apiServerThrottlesNoticeToHandedBackP99Ms"),
    ("away", Fault::Away, "apiServerAwayNoticeToHandedBackP99Ms"),
];

/// See the module.
///
/// # Errors
/// A part does not start, or a unit was not handed back whole.
pub async fn measure(sizes: &Sizes, figures: &mut Figures) -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let cluster = ControlPlane::start().await?;
    let nodes = STATES.map(|(name, ..)| NodeSpec::gpu(&format!("node-{name}")));
    cluster.add_nodes(&nodes).await?;
    let states = STATES.map(async |(name, fault, _)| {
        let way = Faulty::start(client(&cluster).await).await;
        way.set(fault);
        let client = way.client();
        hand_back::notices(&redis, name, sizes.api_server_notices, |config, outside| {
            outside.marks = Arc::new(KubeMarks::new(client.clone()));
            outside.pods = Arc::new(KubePods::new(client));
            config
        })
        .await
    });
    for ((.., key), hand_backs) in STATES.iter().zip(try_join_all(states).await?) {
        let done: Vec<Duration> = hand_backs.iter().map(|one| one.done).collect();
        figures.set(key, percentile_ms(&done, 99));
    }
    Ok(())
}
