//! Processes that die without notice: workers between any two calls, and servers under load.

mod lag;
mod ledger;
mod load;
mod servers;
mod worker;
mod workers;
