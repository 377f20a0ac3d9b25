//! Whole agents on a queue in memory, emulated metadata services and emulated engines over HTTP.

#![allow(clippy::unwrap_used, reason = "tests may unwrap")]

mod admission;
mod api;
mod bad_engines;
mod custom_drains;
mod custom_faults;
mod custom_workers;
mod described;
mod direct_workers;
mod engines;
mod evictions;
mod fates;
mod flaky;
mod foreign;
mod found;
mod group_workers;
mod groups;
mod kinds;
mod late_weights;
mod metadata;
mod notices;
mod outages;
mod preemption;
mod probes;
mod regrouped;
mod reports;
mod restarts;
mod services;
mod soak;
mod trainers;
mod webhooks;
mod wedged;
mod weights;
mod withdrawals;
mod world;
