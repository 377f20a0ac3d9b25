//! `ebbtide demo`: a local world in one process, with the real agent and controller code in it.
//!
//! Around them are emulated: one IMDS and one engine per node (real HTTP), a capacity provider
//! whose nodes take time to start, and a trainer. Nodes are noticed and killed by a plan drawn from
//! the seed. At the end every unit that the trainer enqueued is looked for, by an account of its
//! own ([`ledger`]); one that is lost or doubled makes the exit code 1.

mod agents;
mod disruptions;
mod ledger;
mod page;
mod picture;
mod report;
mod screen;
mod trainer;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::{Args, ValueEnum};
use ebbtide_controller::capacity::local::{LocalCapacity, LocalPool};
use ebbtide_controller::status::ControllerStatus;
use ebbtide_core::policy::duration::parse_duration;
use ebbtide_core::policy::{FleetPolicy, Mode};
use ebbtide_queue::client::{MemoryPort, QueuePort, WorkQueue, wall_clock_now};
use ebbtide_queue::control::NodeRecord;
use ebbtide_queue::redis::RedisPort;
use ebbtide_queue::status::ShardStatus;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::cli::EXIT_BAD;
use crate::setup;
use ledger::Ledger;
use picture::{NodeRow, Picture};
use report::Report;
use screen::Screen;
use trainer::Trainer;
use world::{Facts, World};

/// Time from the order of a node to its boot.
const NODE_START: Duration = Duration::from_millis(800);
/// Between two pictures.
const PICTURE_INTERVAL: Duration = Duration::from_millis(200);
/// A node that has not reported for longer is not shown: it reports five times a second.
const SILENCE_LIMIT: Duration = Duration::from_secs(1);
/// Most nodes: every one is an agent, an engine and an IMDS in this process.
const NODES_LIMIT: u32 = 64;
/// Most notices, and most kills: more than one each second of a long demo.
const DISRUPTIONS_LIMIT: u32 = 1000;

const EXAMPLE: &str = "\
Examples:
  ebbtide demo
  ebbtide demo --for 60s --nodes 12 --notices 8 --kills 4 --seed 11
  ebbtide demo --redis redis://127.0.0.1:6379 --output json

Exit code: 0 when nothing was lost or doubled, 1 when something was, 2 for wrong usage.";

/// What `ebbtide demo` is told.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct DemoArgs {
    /// How long the world runs
    #[arg(long = "for", default_value = "30s", value_name = "TIME", value_parser = parse_duration)]
    run_for: Duration,
    /// Most rollout nodes at a time
    #[arg(long, default_value_t = 6, value_parser = count(1, NODES_LIMIT))]
    nodes: u32,
    /// Spot interruption notices
    #[arg(long, default_value_t = 4, value_parser = count(0, DISRUPTIONS_LIMIT))]
    notices: u32,
    /// Nodes that vanish without notice
    #[arg(long, default_value_t = 2, value_parser = count(0, DISRUPTIONS_LIMIT))]
    kills: u32,
    /// Time between a notice and the loss of the node, at least
    #[arg(long, default_value = "3s", value_name = "TIME", value_parser = parse_duration)]
    notice_lead: Duration,
    /// Chooses prompts, response lengths, and which nodes are lost when
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Use a real Redis instead of a queue in memory; the run is removed from it afterwards
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// A fleet policy of your own; its pools are played here, whatever their provider
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// How to report
    #[arg(long, default_value = "text")]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

fn count(least: u32, most: u32) -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(i64::from(least)..=i64::from(most))
}

/// Runs the demo.
///
/// # Errors
/// Usage or configuration: nothing was started.
pub async fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    setup::start_logging(setup::LogFormat::Text, "off");
    let policy = choose_policy(&args)?;
    let (queue, redis) = open_queue(&args, &policy).await?;
    let page = page::serve().await?;
    tell_beginning(&args, &policy, page.address());

    let (ledger, facts, status) = live(&args, &policy, &queue, &page).await?;
    let report = match settle(&args, &queue, &ledger, &facts, &status).await {
        Ok(report) => report,
        Err(error) => {
            eprintln!("ebbtide demo: the units cannot be looked for: {error:#}");
            return Ok(ExitCode::from(EXIT_BAD));
        }
    };
    if let Some(redis) = redis
        && let Err(error) = redis.remove_run().await
    {
        eprintln!("ebbtide demo: run {} stays in redis: {error}", redis.run());
    }
    match args.output {
        Output::Text => print!("{}", report.to_text()),
        Output::Json => println!("{:#}", report.to_json()),
    }
    Ok(if report.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_BAD) })
}

fn choose_policy(args: &DemoArgs) -> anyhow::Result<FleetPolicy> {
    if let Some(path) = &args.policy {
        return setup::read_policy(path);
    }
    let fewest = (args.nodes / 3).max(1);
    let text = include_str!("policy.yaml")
        .replace("minReplicas: 2", &format!("minReplicas: {fewest}"))
        .replace("maxReplicas: 6", &format!("maxReplicas: {}", args.nodes));
    setup::parse_policy(&text, "the demo's policy")
}

async fn open_queue(
    args: &DemoArgs,
    policy: &FleetPolicy,
) -> anyhow::Result<(WorkQueue, Option<Arc<RedisPort>>)> {
    let Some(url) = &args.redis else {
        let port = MemoryPort::new(
            policy.queue.shards,
            setup::shard_settings(&policy.queue),
            wall_clock_now,
        );
        return Ok((WorkQueue::new(Arc::new(port)), None));
    };
    let mut options = setup::redis_options(url, policy);
    // A run of its own: never that of a cluster that uses the same Redis and policy.
    options.run = format!("demo-{:x}", wall_clock_now().0).parse()?;
    let port = Arc::new(RedisPort::connect(options).await?);
    Ok((WorkQueue::new(port.clone() as Arc<dyn QueuePort>), Some(port)))
}

fn tell_beginning(args: &DemoArgs, policy: &FleetPolicy, page: std::net::SocketAddr) {
    eprintln!(
        "ebbtide demo: run {}, {} for {:.0} s: {} notices and {} kills, seed {}",
        policy.run,
        args.redis.as_deref().map_or("queue in memory", |_| "queue on Redis"),
        args.run_for.as_secs_f64(),
        args.notices,
        args.kills,
        args.seed,
    );
    eprintln!("  watch it in a browser: http://{page}\n");
}

/// Lets the world run; everything in it has ended when this returns.
async fn live(
    args: &DemoArgs,
    policy: &FleetPolicy,
    queue: &WorkQueue,
    page: &page::Page,
) -> anyhow::Result<(Arc<Mutex<Ledger>>, Arc<Mutex<Facts>>, ControllerStatus)> {
    let capacity = local_capacity(args, policy);
    let world = World::new(queue.clone(), policy.clone(), capacity.clone(), args.notice_lead);
    let (facts, started_at) = (world.facts.clone(), world.started_at);
    let plan =
        disruptions::schedule(args.seed, args.notices, args.kills, args.run_for, args.notice_lead);
    let engine = world::engine_config(1);
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let trainer = Trainer {
        queue: queue.clone(),
        policy: policy.clone(),
        ledger: ledger.clone(),
        vocabulary: engine.vocabulary,
        expected: Arc::new(move |group, slot| engine.expected_response(group, slot)),
        seed: args.seed,
    };
    let status = ControllerStatus::default();
    let (stop, early_stop) = (CancellationToken::new(), setup::stop_on_signal()?);
    let controller = agents::start_controller(policy, queue, capacity, &status, stop.clone())?;
    let machines = tokio::spawn(world.run(plan, stop.clone()));
    let training = tokio::spawn(trainer.run(stop.clone()));

    let watch = Watch { args, policy, queue, facts: &facts, ledger: &ledger, status: &status };
    let mut screen = Screen::new();
    let end = started_at + args.run_for;
    while Instant::now() < end && !early_stop.is_cancelled() {
        tokio::time::sleep(PICTURE_INTERVAL).await;
        let picture = watch.picture(started_at).await;
        page.show(&picture);
        screen.show(&picture);
    }
    // The trainer ends between two turns, so that its books are complete; the machines just stop.
    stop.cancel();
    training.await?;
    machines.await?;
    controller.await?;
    Ok((ledger, facts, status))
}

fn local_capacity(args: &DemoArgs, policy: &FleetPolicy) -> LocalCapacity {
    // A policy that only observes starts no node: then the first pool has them from the beginning.
    let mut initial = if policy.mode == Mode::Observe { args.nodes } else { 0 };
    let pools = policy.rollout_pools().map(|pool| LocalPool {
        name: pool.name.clone(),
        market: pool.market,
        zone: pool.zone.clone(),
        initial_nodes: std::mem::take(&mut initial).min(pool.max_nodes),
        limit: pool.max_nodes,
    });
    LocalCapacity::new(pools.collect(), NODE_START, wall_clock_now)
}

/// Where the pictures come from.
struct Watch<'a> {
    args: &'a DemoArgs,
    policy: &'a FleetPolicy,
    queue: &'a WorkQueue,
    facts: &'a Mutex<Facts>,
    ledger: &'a Mutex<Ledger>,
    status: &'a ControllerStatus,
}

impl Watch<'_> {
    async fn picture(&self, started_at: Instant) -> Picture {
        let status = ShardStatus::sum(self.queue.status().await.answers);
        let view = self.queue.view().await.unwrap_or_default();
        let controller = self.status.snapshot();
        let facts = self.facts.lock().unwrap_or_else(PoisonError::into_inner);
        let ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        let is_alive = |record: &&NodeRecord| view.now.since(record.heartbeat) < SILENCE_LIMIT;
        let mut nodes: Vec<&NodeRecord> = view.nodes.iter().filter(is_alive).collect();
        // By number: node-9 before node-10.
        nodes.sort_by_key(|record| (record.node.as_str().len(), record.node.clone()));
        let market = |node: &NodeRecord| node.market.map_or("", world::market_word);
        Picture {
            elapsed: started_at.elapsed(),
            total: self.args.run_for,
            nodes: nodes.iter().map(|node| NodeRow::of(node, market(node), &view)).collect(),
            nodes_wanted: controller.desired.unwrap_or(self.policy.rollout.min_replicas),
            status,
            updates: ledger.updates().0,
            notices: facts.notices,
            kills: facts.kills,
            last_decision: controller.last_decision.clone().unwrap_or_default(),
            events: facts.events.clone(),
        }
    }
}

/// Looks for every unit, now that nothing moves any more.
async fn settle(
    args: &DemoArgs,
    queue: &WorkQueue,
    ledger: &Mutex<Ledger>,
    facts: &Mutex<Facts>,
    controller: &ControllerStatus,
) -> anyhow::Result<Report> {
    let units = queue.scan().await?;
    let status = ShardStatus::sum(queue.status().await.complete()?);
    let balance = ledger.lock().unwrap_or_else(PoisonError::into_inner).balance(&units);
    let facts = facts.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(Report {
        seed: args.seed,
        ran_for: args.run_for,
        disagreements: report::disagreements(&balance, &status),
        tokens_unstored: facts.tokens_made.saturating_sub(status.tokens.generated),
        balance,
        status,
        notices: facts.notices,
        kills: facts.kills,
        scale_decisions: controller.snapshot().scale_decisions,
        capacity: facts.capacity(),
        speed_tokens_per_second: world::TOKENS_PER_SECOND,
    })
}
