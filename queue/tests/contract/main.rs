//! The contract of the queue, run over every implementation of it.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod cases;
mod control;
mod differential;
mod durability;
mod exhaustive;
mod histories;
mod holders;
mod kills;
mod laws;
mod leaders;
mod lengths;
mod links;
mod outages;
mod purchases;
mod refusals;
mod resizes;
mod vectors;
mod worlds;
