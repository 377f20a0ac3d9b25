//! Capacity providers on the real parts that they work through.
//!
//! | file | what it holds |
//! |---|---|
//! | `scale`, `workers` | the real API server, and the real controllers of what is scaled |
//! | `trouble` | the same, on an API server that is not well |
//! | `sizing` | the whole controller, on the same |
//! | `asg`, `fleet` | moto, behind `faulty_aws` |
//! | `world`, `faulty_aws` | the fixtures |

mod asg;
mod faulty_aws;
mod fleet;
mod scale;
mod sizing;
mod trouble;
mod workers;
mod world;
