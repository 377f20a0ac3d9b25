//! The node agent: hosts the node's inference engines as rollout workers, and hands their work
//! back, with its tokens, before the node disappears.
//!
//! A library: the outside world is passed in ([`Outside`]), so `ebbtide agent` runs it against
//! real metadata, Redis and Kubernetes, and `ebbtide demo` many of them in one process against
//! emulators. The two flows are `hosting.rs` (work in, tokens out) and `interruption.rs` (notice
//! in, work back); each reads top to bottom in its own file.

mod agent;
mod config;
mod connect;
pub mod emulator;
pub mod engine;
mod eviction;
mod gate;
mod hosting;
mod imds;
mod interruption;
pub mod kubernetes;
mod ledger;
pub mod marks;
mod meeting;
mod metrics;
mod operator;
mod pulse;
mod rhythm;
mod server;
mod shared;
mod slowness;
mod socket;
mod webhook;
mod wedged;
mod workers;

pub use agent::{Agent, AgentError, AgentHandle, AgentReport, Outside, run};
pub use config::{
    AgentConfig, DrainTerms, LeaseTerms, NodePrice, Pace, SHUTDOWN_LIMIT, WeightsTerms,
    agent_holder,
};
pub use connect::{Connector, QueueAccess, connect_with_retries};
pub use imds::{ImdsClient, ImdsError};
pub use interruption::DrainReport;
pub use ledger::AgentCounts;
pub use webhook::{Webhook, WebhookError, WebhookNotice};
