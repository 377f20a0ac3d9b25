//! `ebbtide demo`: a local world in one process, with the real agent and controller code in it.
//!
//! Around them are emulated: one IMDS and one engine per node (real HTTP), a capacity provider
//! whose nodes take time to start, and a trainer. Nodes are noticed and killed by a plan drawn from
//! the seed. At the end every unit that the trainer enqueued is looked for, by an account of its
//! own ([`ledger`]); one that is lost or doubled makes the exit code 1. A trainer outside keeps its
//! own books: then only what Redis holds can be checked ([`outside`]).

mod agents;
mod arguments;
mod clock;
mod disruptions;
mod ledger;
mod outside;
mod page;
mod picture;
mod queue;
mod report;
mod samples;
mod scorer;
mod screen;
mod trainer;
mod trainer_nodes;
mod watch;
mod world;

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use arguments::DemoArgs;
use arguments::Output;
use clock::Clock;
use ebbtide_controller::capacity::local::{LocalCapacity, LocalPool};
use ebbtide_controller::status::ControllerStatus;
use ebbtide_core::ids::RunId;
use ebbtide_core::policy::{FleetPolicy, Mode, Pool};
use ebbtide_queue::client::{WorkQueue, wall_clock_now};
use ebbtide_queue::status::ShardStatus;
use ledger::Ledger;
use report::Report;
use screen::Screen;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use trainer::Trainer;
use trainer_nodes::TrainerNodes;
use watch::Watch;
use world::{Facts, World};

use crate::cli::EXIT_BAD;
use crate::setup;

/// Time from the order of a node to its boot.
const NODE_START: Duration = Duration::from_millis(800);
/// Between two pictures.
const PICTURE_INTERVAL: Duration = Duration::from_millis(200);

/// Runs the demo.
///
/// # Errors
/// Usage or configuration: nothing was started.
pub async fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    setup::start_logging(setup::LogFormat::Text, "off");
    args.check()?;
    let policy = args.choose_policy()?;
    let run = args.choose_run(&policy);
    let demo_queue = queue::open(&args, &policy, &run).await?;
    let queue = &demo_queue.queue;
    let page = page::serve().await?;
    tell_beginning(&args, &run, page.address());

    let steps_before = outside::trainer_steps(queue).await;
    let lived = live(&args, &policy, queue, &page).await?;
    let settled = match args.is_external() {
        true => outside::settle(&args, &run, queue, &lived, steps_before).await,
        false => settle(&args, queue, &lived).await,
    };
    let report = match settled {
        Ok(report) => report,
        Err(error) => {
            eprintln!("ebbtide demo: the units cannot be looked for: {error:#}");
            return Ok(ExitCode::from(EXIT_BAD));
        }
    };
    demo_queue.clear(&args).await;
    match args.output {
        Output::Text => print!("{}", report.to_text()),
        Output::Json => println!("{:#}", report.to_json()),
    }
    Ok(if report.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_BAD) })
}

fn tell_beginning(args: &DemoArgs, run: &RunId, page: std::net::SocketAddr) {
    eprintln!(
        "ebbtide demo: run {run}, {} for {:.0} s: {} notices and {} kills, seed {}",
        args.redis.as_deref().map_or("queue in memory", |_| "queue on Redis"),
        args.run_for.as_secs_f64(),
        args.notices,
        args.kills,
        args.seed,
    );
    if args.is_external() {
        eprintln!("  the time begins with the first work that a trainer enqueues for this run");
    }
    eprintln!("  watch it in a browser: http://{page}\n");
}

/// What is left of a world that has ended.
struct Lived {
    ledger: Arc<Mutex<Ledger>>,
    facts: Arc<Mutex<Facts>>,
    status: ControllerStatus,
}

/// Lets the world run; everything in it has ended when this returns.
async fn live(
    args: &DemoArgs,
    policy: &FleetPolicy,
    queue: &WorkQueue,
    page: &page::Page,
) -> anyhow::Result<Lived> {
    let (capacity, clock) = (local_capacity(args, policy), Clock::standing());
    let world = World::new(
        queue.clone(),
        policy.clone(),
        capacity.clone(),
        args.notice_lead,
        clock.clone(),
    );
    let facts = world.facts.clone();
    let nodes = TrainerNodes {
        capacity: capacity.clone(),
        pool: policy.resized_trainer_pool().map(|pool| pool.name.clone()),
        facts: facts.clone(),
        clock: clock.clone(),
        size: TrainerNodes::first_size(policy, args.trainer_nodes),
        incarnation: format!("demo-{:016x}", rand::random::<u64>()).parse()?,
    };
    let plan =
        disruptions::schedule(args.seed, args.notices, args.kills, args.run_for, args.notice_lead);
    let ledger = Arc::new(Mutex::new(Ledger::new(policy.has_reward_stage())));
    let status = ControllerStatus::default();
    let (stop, early_stop) = (CancellationToken::new(), setup::stop_on_signal()?);
    let controller = agents::start_controller(policy, queue, capacity, &status, stop.clone())?;
    let machines = tokio::spawn(world.run(plan, stop.clone()));
    let mut running = vec![controller, machines];
    if !args.is_external() {
        clock.begin();
        running.extend(start_training(args, policy, queue, (&ledger, nodes), &stop));
    }

    let watch = Watch {
        args,
        policy,
        queue,
        clock: &clock,
        facts: &facts,
        ledger: &ledger,
        status: &status,
    };
    watch_until_the_end(&watch, page, &early_stop).await;
    // The trainer ends between two turns, so that its books are complete; the machines just stop.
    stop.cancel();
    for task in running {
        task.await?;
    }
    Ok(Lived { ledger, facts, status })
}

/// Shows the world until its time is over, it is stopped, or a trainer outside has done.
async fn watch_until_the_end(watch: &Watch<'_>, page: &page::Page, early_stop: &CancellationToken) {
    let mut screen = Screen::new();
    while watch.clock.elapsed() < watch.args.run_for && !early_stop.is_cancelled() {
        tokio::time::sleep(PICTURE_INTERVAL).await;
        let sight = watch.look().await;
        page.show(&sight.picture);
        screen.show(&sight.picture);
        if sight.has_work {
            watch.clock.begin();
        }
        if watch.args.is_external() && sight.is_done {
            break;
        }
    }
}

/// The trainer, and the scorer where the policy asks for one.
fn start_training(
    args: &DemoArgs,
    policy: &FleetPolicy,
    queue: &WorkQueue,
    (ledger, nodes): (&Arc<Mutex<Ledger>>, TrainerNodes),
    stop: &CancellationToken,
) -> Vec<JoinHandle<()>> {
    let engine = world::engine_config(1);
    let trainer = Trainer {
        queue: queue.clone(),
        policy: policy.clone(),
        ledger: ledger.clone(),
        vocabulary: engine.vocabulary,
        expected: Arc::new(move |group, slot| engine.expected_response(group, slot)),
        seed: args.seed,
        nodes,
    };
    let mut running = vec![tokio::spawn(trainer.run(stop.clone()))];
    if policy.has_reward_stage() {
        running.push(tokio::spawn(scorer::run(queue.clone(), stop.clone())));
    }
    running
}

fn local_capacity(args: &DemoArgs, policy: &FleetPolicy) -> LocalCapacity {
    // A policy that only observes starts no node: then the first pool has them from the beginning.
    let mut initial = if policy.mode == Mode::Observe { args.nodes } else { 0 };
    let local = |pool: &Pool, initial_nodes: u32| LocalPool {
        name: pool.name.clone(),
        market: pool.market,
        zone: pool.zone.clone(),
        initial_nodes: initial_nodes.min(pool.max_nodes),
        limit: pool.max_nodes,
    };
    let groups = policy.sized_pools().map(|pool| local(pool, std::mem::take(&mut initial)));
    // Nobody knows what a trainer outside runs on.
    let trainers = match args.is_external() {
        true => 0,
        false => TrainerNodes::first_size(policy, args.trainer_nodes),
    };
    let trainer = policy.resized_trainer_pool().map(|pool| local(pool, trainers));
    LocalCapacity::new(groups.chain(trainer).collect(), NODE_START, wall_clock_now)
}

/// Looks for every unit in the trainer's books, now that nothing moves any more.
async fn settle(args: &DemoArgs, queue: &WorkQueue, lived: &Lived) -> anyhow::Result<Report> {
    let units = queue.scan().await?;
    let status = ShardStatus::sum(queue.status().await.complete()?);
    let balance = lived.ledger.lock().unwrap_or_else(PoisonError::into_inner).balance(&units);
    let facts = lived.facts.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(Report {
        seed: args.seed,
        ran_for: args.run_for,
        outside: None,
        disagreements: report::disagreements(&balance, &status),
        tokens_unstored: Some(facts.tokens_made.saturating_sub(status.tokens.generated)),
        balance,
        status,
        notices: facts.notices,
        kills: facts.kills,
        scale_decisions: lived.status.snapshot().scale_decisions,
        capacity: facts.capacity(),
        trainer_sizes: facts.trainer_sizes.clone(),
        speed_tokens_per_second: world::TOKENS_PER_SECOND,
    })
}
