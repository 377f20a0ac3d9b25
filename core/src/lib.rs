//! The ground floor of Ebbtide: nouns and decisions, pure.
//!
//! Nothing here reads a clock, the environment or a random number, logs or waits. Decisions are
//! functions from values to values that carry their reasons, so the agent, the controller and the
//! simulator take the same ones.

pub mod bottleneck;
pub mod drain;
pub mod event;
pub mod fabric;
pub mod ids;
pub mod image_rollout;
pub mod journal;
pub mod ledger;
pub mod maintenance;
pub mod marks;
pub mod notice;
mod object;
pub mod observation;
pub mod policy;
pub mod sample;
pub mod scale;
mod speed;
pub mod staleness;
pub mod straggler;
pub mod time;
pub mod work;
