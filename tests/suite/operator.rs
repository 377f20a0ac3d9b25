//! `ebbtide drain`, `drill` and `hold` as an operator uses them, against a real Redis and, where
//! somebody has to answer, the real agent.

mod agents;
mod asking;
pub mod world;
