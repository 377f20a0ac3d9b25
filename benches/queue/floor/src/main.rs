//! Prints the floor of a cycle as one JSON line: `ebbtide-queue-floor PORT UNITS`.
//!
//! It runs on one thread, as the benchmark gives all clients one core.

mod floor;

use std::time::Duration;

use floor::{Load, Spec, measure_floor};
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, IntoConnectionInfo};

/// As in every workload of the benchmark.
const UNITS_IN_FLIGHT: usize = 100;
const BATCH: usize = 16;
/// The client's own 500 ms end a run when the machine is busy.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(port), Some(units)) = (arguments.next(), arguments.next()) else {
        return Err("usage: ebbtide-queue-floor PORT UNITS".into());
    };
    let units = units.parse()?;
    let server = format!("redis://127.0.0.1:{port}").into_connection_info()?;
    let client =
        redis::Client::open(server.set_tcp_settings(TcpSettings::default().set_nodelay(true)))?;
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(RESPONSE_TIMEOUT));
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;

    let mut figures = Vec::new();
    for (name, batch, spec) in [
        ("unbatchedFloorCyclesPerSecond", 1, Spec::LeftOut),
        ("batchedFloorCyclesPerSecond", BATCH, Spec::LeftOut),
        ("unbatchedFloorWithSpecCyclesPerSecond", 1, Spec::Copied),
        ("batchedFloorWithSpecCyclesPerSecond", BATCH, Spec::Copied),
    ] {
        let load = Load { units, units_in_flight: UNITS_IN_FLIGHT, batch, spec };
        let cycles_per_second = measure_floor(&mut connection, load).await?;
        figures.push(format!("\"{name}\": {cycles_per_second:.1}"));
    }
    println!("{{{}}}", figures.join(", "));
    Ok(())
}
