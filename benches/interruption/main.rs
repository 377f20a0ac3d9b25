//! How long a notice takes to empty a node, and what an agent costs that waits for one.
//!
//! One file measures one thing and says at its head exactly what it counts. Redis and the API
//! server are real, metadata service and engines are the emulators that ship with the product, and
//! the agents are tasks of this process, but for the idle one, which is the binary.
#![allow(
    clippy::disallowed_methods,
    reason = "a benchmark is an adapter: it reads clocks and the environment, and it waits"
)]

mod api_server;
mod arguments;
mod cordon;
#[path = "../../tests/suite/lane/faulty.rs"]
#[allow(clippy::unwrap_used, reason = "the tests and the benchmark end at its first surprise")]
#[expect(dead_code, reason = "the tests use more of it")]
mod faulty;
mod fleet;
mod group;
mod hand_back;
mod idle;
mod node;
mod report;
mod seed;

use std::path::Path;

use anyhow::ensure;
use arguments::{Arguments, Part};
use clap::Parser;
use ebbtide_harness::Figures;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let sizes = arguments.sizes();
    let mut figures = Figures::new("interruption", &report::ROWS);
    let mut failed = Vec::new();
    for part in arguments.parts() {
        let measured = match part {
            Part::HandBack => hand_back::measure(&sizes, &mut figures).await,
            Part::Fleet => fleet::measure(&sizes, &mut figures).await,
            Part::Group => group::measure(&sizes, &mut figures).await,
            Part::ApiServer => api_server::measure(&sizes, &mut figures).await,
            Part::Cordon => cordon::measure(&sizes, &mut figures).await,
            Part::Idle => idle::measure(&arguments.program, &sizes, &mut figures).await,
        };
        // What the other parts take half an hour for is not to be lost with it.
        if let Err(error) = measured {
            println!("{part:?} failed: {error:#}");
            failed.push(part);
        }
    }
    println!("{}", figures.table());
    figures.write(Path::new(env!("CARGO_MANIFEST_DIR")))?;
    ensure!(failed.is_empty(), "not measured: {failed:?}");
    Ok(())
}
