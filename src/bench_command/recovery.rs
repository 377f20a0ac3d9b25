//! How long the units of a killed node are away.
//!
//! A child process, this program again, leases units; within some milliseconds it is killed by
//! SIGKILL, so that its whole lease time is still to run: the worst moment. Another holder waits
//! for work as an agent does, on the wake channel with a look each second, and a reaper runs each
//! second as the controller's does. The time ends when that holder has every unit.

use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use ebbtide_core::policy::Durability;
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::redis::{RedisOptions, RedisPort};
use ebbtide_queue::status::ShardStatus;
use tokio::process::{Child, Command};
use tokio::time::{Instant, interval, sleep, timeout};

use super::arguments::HoldArgs;
use super::material::{LONG_LEASE, Material, enqueue, holder, terms};
use super::site::{Run, Site};
use super::statistics::Figures;

const GROUP_SIZE: usize = 8;
/// Between two looks at whether the child holds its units.
const HELD_LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// How long the child may take to start and to lease.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Between two looks of an idle agent, and between two runs of the controller's reaper.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Expired units that one run of the reaper returns, as the controller's does.
const REAP_LIMIT: usize = 1_000;
/// Beyond the lease time, when the wait is given up.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// Kills a holder and waits for its units.
///
/// # Errors
/// Redis gives no answer, the child does not start, or the units do not come back.
pub async fn measure(
    site: &Site,
    material: &Material,
    say: impl Fn(&str),
) -> anyhow::Result<Figures> {
    let (ttl, units) = (site.sizes.lease_ttl, site.sizes.lost_units);
    say(&format!("recovery: a holder of {units} units is killed, lease time {} s", ttl.as_secs()));
    let run = site.begin().await?;
    enqueue(&run.queue, material, 0, units / GROUP_SIZE, GROUP_SIZE as u16).await?;
    let mut child = start_child(site, &run)?;
    let holding = is_holding(&mut child, &run.queue, units);
    timeout(START_LIMIT, holding).await.context("the child has not leased in time")??;
    child.kill().await.context("the child cannot be killed")?;
    let killed = Instant::now();
    let (heir, limit) = (site.client(&run.id).await?, ttl + WAIT_LIMIT);
    let recovered = async {
        tokio::select! {
            leased = lease_all(&heir, units) => leased,
            error = reap(&run.queue) => Err(error),
        }
    };
    timeout(limit, recovered).await.context("the units of a killed holder did not come back")??;
    let took = killed.elapsed();
    site.end(run).await?;
    let mut figures = Figures::default();
    figures.set("leaseTtlMs", ttl.as_secs_f64() * 1000.0);
    figures.set("recoveryAfterKillMs", took.as_secs_f64() * 1000.0);
    Ok(figures)
}

fn start_child(site: &Site, run: &Run) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("the path of this program")?;
    let (units, ttl) = (site.sizes.lost_units, site.sizes.lease_ttl.as_millis());
    // The address may hold a password, which a command line would show to everybody.
    let child = Command::new(program)
        .env("EBBTIDE_REDIS", &site.url)
        .args(["bench", "hold", "--run", run.id.as_str()])
        .args(["--units", &units.to_string(), "--lease-ttl", &format!("{ttl}ms")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn();
    child.context("this program cannot be started again")
}

/// Returns once the child has leased everything.
async fn is_holding(child: &mut Child, queue: &WorkQueue, units: usize) -> anyhow::Result<()> {
    loop {
        let status = ShardStatus::sum(queue.status().await.complete()?);
        if status.leased == units as u64 {
            return Ok(());
        }
        let ended = child.try_wait()?;
        ensure!(ended.is_none(), "the child ended before it had leased: {ended:?}");
        sleep(HELD_LOOK_INTERVAL).await;
    }
}

/// Leases until it has `units` units, as an idle agent does.
async fn lease_all(queue: &WorkQueue, units: usize) -> anyhow::Result<()> {
    let (heir, mut leased) = (holder(1, 1), 0);
    let mut looks = interval(LOOK_INTERVAL);
    loop {
        tokio::select! {
            () = queue.woken(ebbtide_queue::client::Hint::Work) => {}
            _ = looks.tick() => {}
        }
        let grants = queue.lease_while(terms(&heir, LONG_LEASE), units - leased, || true).await?;
        leased += grants.grants.len();
        if leased == units {
            return Ok(());
        }
    }
}

/// Reaps each second, for ever; gives the error that ended it.
async fn reap(queue: &WorkQueue) -> anyhow::Error {
    let mut turns = interval(LOOK_INTERVAL);
    loop {
        turns.tick().await;
        if let Err(error) = queue.reap(REAP_LIMIT).await {
            return error.into();
        }
    }
}

/// The child: leases, and does nothing until it is killed.
///
/// # Errors
/// Redis gives no answer, or it gets fewer units than it was told to hold.
pub async fn run_child(args: &HoldArgs) -> anyhow::Result<ExitCode> {
    let options = RedisOptions {
        url: args.redis.clone(),
        run: args.run.clone(),
        layout: None,
        durability: Durability::Fast,
    };
    let queue = WorkQueue::new(Arc::new(RedisPort::connect(options).await?));
    let holder = holder(0, 0);
    let leased = queue.lease_while(terms(&holder, args.lease_ttl), args.units, || true).await?;
    let count = leased.grants.len();
    ensure!(count == args.units, "{count} units were leased, not {}", args.units);
    std::future::pending().await
}
