//! The planner's tests: golden texts, the faults that users of other autoscalers met, the laws.

mod cases;
mod cases_budget;
mod cases_deadline;
mod cases_fallback;
mod cases_groups;
mod cases_joining;
mod cases_learning;
mod cases_pools;
mod cases_removal;
mod cases_reserved;
mod cases_silent;
mod cases_swap;
mod goals;
mod golden;
mod histories;
mod laws;
mod limits;
mod services;
mod services_laws;
mod stories;
pub(crate) mod world;
