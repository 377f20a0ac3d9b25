//! Tests across crates, on real parts. One binary, so that it links once.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    missing_docs,
    reason = "tests read clocks and the environment, and stop at the first surprise"
)]

mod agent;
mod aws;
mod bench;
mod capacity;
mod chart;
mod controller;
mod demo;
mod drains;
mod events;
mod found;
mod init;
mod lane;
mod lifecycle;
mod metadata;
mod operator;
mod policy;
mod programs;
mod python;
mod queue;
mod recorded;
mod resizes;
mod resource;
mod signals;
mod tidy;
mod vllm;
mod whole_loop;
