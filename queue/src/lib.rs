//! The work queue and experience buffer: Redis (Lua) and in memory, one contract.
//!
//! [`command`] and [`reply`] are the contract in types and [`memory`] states it as a synchronous
//! state machine;
//! [`control`] does the same for the keys by which agents, controller and trainer meet. Behind
//! the feature `redis` stand the client that waits ([`client`]) and Redis itself.

pub mod codec;
pub mod command;
pub mod control;
mod hand_back;
pub mod memory;
pub mod reply;
pub mod state;
pub mod status;

#[cfg(feature = "redis")]
pub mod client;
#[cfg(feature = "redis")]
pub mod redis;
