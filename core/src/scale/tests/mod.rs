//! The planner's tests: golden texts, the faults that users of other autoscalers met, the laws.

mod cases;
mod golden;
mod laws;
mod limits;
mod stories;
pub(crate) mod world;
