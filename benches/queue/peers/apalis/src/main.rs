//! Times apalis-redis on empty jobs: `apalis-driver PORT JOBS CONCURRENCY`.
//!
//! One worker; each fetch takes as many jobs as may run at once. Left out, as its documentation
//! allows for jobs shorter than a heartbeat: the second lock beside the worker's in-flight set,
//! and events by publish and subscribe. Results stay on, because they are the acknowledgement.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use apalis::layers::WorkerBuilderExt;
use apalis::prelude::*;
use apalis_redis::{Config, RedisStorage};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::io::tcp::TcpSettings;
use redis::{AsyncCommands, IntoConnectionInfo};
use tokio::time::Instant;

const PAYLOAD_BYTES: usize = 1024;
const QUEUE: &str = "bench";
/// Its fetch script moves every job that is due by one `unpack`, which Lua refuses above about
/// 8,000: so the driver moves them itself, before the clock starts, in steps of this many.
const JOBS_A_STEP: u32 = 1_000;
/// The client's own 500 ms end a run when the machine is busy.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxDynError> {
    let numbers: Vec<u32> =
        std::env::args().skip(1).map(|number| number.parse()).collect::<Result<_, _>>()?;
    let [port, jobs, concurrency] = numbers[..] else {
        return Err("usage: apalis-driver PORT JOBS CONCURRENCY".into());
    };
    let timeouts = ConnectionManagerConfig::new().set_response_timeout(Some(RESPONSE_TIMEOUT));
    let server = format!("redis://127.0.0.1:{port}").into_connection_info()?;
    let client =
        redis::Client::open(server.set_tcp_settings(TcpSettings::default().set_nodelay(true)))?;
    let mut connection = ConnectionManager::new_with_config(client, timeouts).await?;
    let config = Config::default()
        .queue(QUEUE)
        .batch_size(concurrency as usize)
        .lock_tasks(false)
        .emit_events(false);
    let storage = RedisStorage::<String>::new(connection.clone()).with_config(config.clone());
    enqueue(&mut connection, storage.clone(), &config, jobs).await?;

    let started_jobs = Arc::new(AtomicU32::new(0));
    let worker = WorkerBuilder::new("driver")
        .backend(storage)
        .concurrency(concurrency as usize)
        .build(move |_payload: String, worker: WorkerContext| {
            let is_last = started_jobs.fetch_add(1, Ordering::Relaxed) + 1 == jobs;
            async move {
                if is_last {
                    worker.stop()?;
                }
                Ok::<(), BoxDynError>(())
            }
        });
    let started = Instant::now();
    // Stopping waits for the jobs that run and sends the acknowledgements that are left.
    worker.run().await?;
    let elapsed = started.elapsed();

    let done: u32 = connection.scard(config.done_jobs_set()).await?;
    assert_eq!(done, jobs, "jobs acknowledged of those enqueued");
    println!("{{\"cyclesPerSecond\": {:.1}}}", f64::from(jobs) / elapsed.as_secs_f64());
    Ok(())
}

async fn enqueue(
    connection: &mut ConnectionManager,
    mut storage: RedisStorage<String>,
    config: &Config,
    jobs: u32,
) -> Result<(), BoxDynError> {
    let mut left = jobs;
    while left > 0 {
        let step = left.min(JOBS_A_STEP);
        storage.push_bulk(vec!["x".repeat(PAYLOAD_BYTES); step as usize]).await?;
        let due: Vec<String> = connection.zrange(config.scheduled_jobs_set(), 0, -1).await?;
        if !due.is_empty() {
            let _: () = connection.rpush(config.active_jobs_list(), &due).await?;
            let _: () = connection.del(config.scheduled_jobs_set()).await?;
        }
        left -= step;
    }
    Ok(())
}
