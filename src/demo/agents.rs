//! The real agent and the real controller, set up for a world in which everything takes seconds.

use std::sync::Arc;

use anyhow::Context;
use ebbtide_agent::engine::{DetectedEngine, Engine};
use ebbtide_agent::marks::MemoryMarks;
use ebbtide_agent::{
    Agent, AgentConfig, AgentHandle, ImdsClient, Outside as AgentWorld, Pace, agent_holder,
};
use ebbtide_controller::capacity::local::{LocalCapacity, LocalNode};
use ebbtide_controller::controller::{self, ControllerConfig, EventParts, Outside, QueueSource};
use ebbtide_controller::image_rollout::NoGroups;
use ebbtide_controller::leader::MemoryLease;
use ebbtide_controller::metrics::Metrics;
use ebbtide_controller::policy_source::PolicySource;
use ebbtide_controller::signals::NoSources;
use ebbtide_controller::status::ControllerStatus;
use ebbtide_core::policy::FleetPolicy;
use ebbtide_queue::client::{WorkQueue, wall_clock_now};
use ebbtide_queue::control::NodeRole;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::agent_terms;

/// Starts the agent of a node; aborting it is the loss of the node.
///
/// # Errors
/// An address that cannot be one.
pub fn start_agent(
    policy: &FleetPolicy,
    node: &LocalNode,
    queue: WorkQueue,
    imds_url: &str,
    engine_url: &str,
) -> anyhow::Result<(JoinHandle<()>, AgentHandle)> {
    let holder = agent_holder(&node.node, "demo-boot")?;
    let mut config = AgentConfig::new(policy.run.clone(), holder);
    config.role = policy.role_of(&node.pool).map(NodeRole::from).unwrap_or_default();
    agent_terms::apply(policy, &mut config);
    config.pace = Pace::brisk();
    let engine: Arc<dyn Engine> = Arc::new(DetectedEngine::new(engine_url).context("engine")?);
    let outside = AgentWorld {
        imds: Some(ImdsClient::new(imds_url).context("metadata service")?),
        engines: if config.role.is_service() { Vec::new() } else { vec![engine] },
        marks: Arc::new(MemoryMarks::default()),
        ..AgentWorld::with_queue(queue)
    };
    let agent = Agent::new(config, outside);
    let handle = agent.handle();
    let running = tokio::spawn(async move {
        if let Err(error) = agent.run(CancellationToken::new()).await {
            tracing::error!(%error, "agent ended");
        }
    });
    Ok((running, handle))
}

/// Starts the controller; it ends with `stop`.
///
/// # Errors
/// Its metrics clash, which a test rules out.
pub fn start_controller(
    policy: &FleetPolicy,
    queue: &WorkQueue,
    capacity: LocalCapacity,
    status: &ControllerStatus,
    stop: CancellationToken,
) -> anyhow::Result<JoinHandle<()>> {
    let config = ControllerConfig {
        policy: policy.clone(),
        policy_source: PolicySource::Fixed,
        listen: None,
        tick: None,
        journal: None,
    };
    let outside = Outside {
        queue: QueueSource::Ready(queue.clone()),
        capacity: Arc::new(capacity),
        events: EventParts::default(),
        groups: Arc::new(NoGroups),
        leader: Arc::new(MemoryLease::default().candidate()),
        signals: Arc::new(NoSources),
        metrics: Metrics::new()?,
        status: status.clone(),
        now: wall_clock_now,
    };
    Ok(tokio::spawn(async move {
        if let Err(error) = controller::run(config, outside, stop).await {
            tracing::error!(%error, "controller ended");
        }
    }))
}
