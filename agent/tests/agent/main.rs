//! Whole agents on a queue in memory, emulated metadata services and emulated engines over HTTP.

#![allow(clippy::unwrap_used, reason = "tests may unwrap")]

mod engines;
mod groups;
mod notices;
mod outages;
mod restarts;
mod soak;
mod trainers;
mod weights;
mod world;
