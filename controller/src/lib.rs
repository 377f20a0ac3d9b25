//! The controller: keeps the rollouts, and the services that they need, at the size that the run
//! can use.
//!
//! [`controller::run`] ties the parts together; [`autoscale`] is the flow from observation to
//! read-back and reads top to bottom. The outside world is passed in: the work queue, the capacity
//! provider ([`capacity`]), the leader lease ([`leader`]) and the policy ([`policy_source`]). What
//! happened is told by [`journal`], [`metrics`], [`status`] and, over HTTP, [`server`].
//!
//! Agents are met in Redis only; nothing here speaks to one.

mod accounts;
mod acting;
mod actuate;
mod announce;
mod autoscale;
mod conditions;
mod fence;
mod held;
mod pool_remarks;
mod protection;
mod reaper;
mod retired;
mod server;
mod stragglers;
mod trainer;
mod watching;

pub mod aws;
pub mod capacity;
pub mod controller;
pub mod events;
pub mod image_rollout;
pub mod journal;
pub mod leader;
pub mod lifecycle;
pub mod metrics;
pub mod nodes;
pub mod observe;
pub mod policy_source;
pub mod resource;
pub mod signals;
pub mod status;
pub mod survey;
