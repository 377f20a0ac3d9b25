//! What a fail-over in durability fast loses when the replica lags behind: the stream between the
//! two servers is held up for a while, and what is under way dies with the master.

use std::time::Duration;

use ebbtide_harness::{EVENT_LIMIT, Error, Redis, require, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::load::Load;
use crate::links::connect;
use crate::worlds::options;

/// Units completed before the master dies.
const UNITS: u64 = 2000;

/// A replica behind a slow line.
struct Lagging {
    replica: Redis,
    line: JoinSet<()>,
}

impl Lagging {
    async fn start(master: &Redis, lag: Duration) -> Result<Self, Error> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let mut line = JoinSet::new();
        line.spawn(hold_up(listener, master.address(), lag));
        let replica_of = format!("127.0.0.1 {port}");
        let replica = Redis::options().arguments(&["--replicaof", &replica_of]).start().await?;
        until("the replica to have the data", EVENT_LIMIT, || async {
            let state = master.talk(&["INFO", "replication"]).await.ok()?.remove(0);
            state.contains("state=online").then_some(())
        })
        .await?;
        Ok(Self { replica, line })
    }

    /// Loses what is under way, and makes the replica a master.
    async fn promote(mut self) -> Redis {
        self.line.shutdown().await;
        self.replica.talk(&["REPLICAOF", "NO", "ONE"]).await.expect("becomes a master");
        self.replica
    }
}

/// Passes connections on; what the master says arrives late.
async fn hold_up(listener: TcpListener, master: String, lag: Duration) {
    let mut connections = JoinSet::new();
    while let Ok((replica, _)) = listener.accept().await {
        let Ok(master) = TcpStream::connect(&master).await else { continue };
        let (mut from_replica, to_replica) = replica.into_split();
        let (mut from_master, mut to_master) = master.into_split();
        connections.spawn(async move {
            let _ = tokio::io::copy(&mut from_replica, &mut to_master).await;
        });
        let (late, parts) = unbounded_channel();
        connections.spawn(deliver(parts, to_replica));
        connections.spawn(async move {
            let mut bytes = vec![0; 1 << 16];
            while let Ok(count @ 1..) = from_master.read(&mut bytes).await {
                let _ = late.send((Instant::now() + lag, bytes[..count].to_vec()));
            }
        });
    }
}

async fn deliver(
    mut parts: UnboundedReceiver<(Instant, Vec<u8>)>,
    mut to_replica: tokio::net::tcp::OwnedWriteHalf,
) {
    while let Some((due, part)) = parts.recv().await {
        sleep_until(due).await;
        if to_replica.write_all(&part).await.is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loss_of_durability_fast_is_measured_by_the_lag_of_the_replica() {
    for lag in [0, 10, 100, 500].map(Duration::from_millis) {
        let mut master = require!(Redis::start().await);
        let lagging = require!(Lagging::start(&master, lag).await);
        let load = Load::begin(connect(options(&master.url(), 4)).await.expect("connects"));
        let began = Instant::now();
        load.progress(UNITS).await;
        master.kill();
        let (writes, seconds) = (load.counts().writes() as f64, began.elapsed().as_secs_f64());
        let replica = lagging.promote().await;
        let mut ledger = load.abandon().await;
        let units = connect(options(&replica.url(), 4)).await.expect("connects").scan().await;
        ledger.compare(&units.expect("scan"));
        let losses = &ledger.losses;
        println!(
            "replica {lag:?} behind, {:.0} acknowledged writes a second: {} of the last ones lost \
             ({} enqueued, {} completed, {} handed back)",
            writes / seconds,
            losses.enqueued + losses.completed + losses.handed_back,
            losses.enqueued,
            losses.completed,
            losses.handed_back,
        );
    }
}
