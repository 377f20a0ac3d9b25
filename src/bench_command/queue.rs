//! `ebbtide bench queue`: says what it will do, measures part after part, removes what it made, and
//! tells the figures.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use tokio::task::LocalSet;
use tokio_util::sync::CancellationToken;

use super::advice::{Advice, advise};
use super::arguments::{Output, Part, QueueBenchArgs};
use super::material::Material;
use super::server::Others;
use super::site::Site;
use super::sizes::Sizes;
use super::statistics::Figures;
use super::{depth, fleet, hand_back, latency, memory, recovery, report, throughput};
use crate::cli::EXIT_BAD;
use crate::setup;
use crate::words::{counted, span, thousands};

/// Calls a second of others from which on figures are no longer this Redis's own.
const BUSY_CALLS_PER_SECOND: f64 = 20.0;
const MIB: f64 = 1024.0 * 1024.0;

/// Everything that was measured, and what follows from it.
#[derive(Default)]
struct Measured {
    figures: Figures,
    advice: Option<Advice>,
}

/// Measures, tells, and leaves nothing behind.
///
/// # Errors
/// Redis is not reachable or not fit for a queue: nothing was done.
pub async fn run(args: &QueueBenchArgs) -> anyhow::Result<ExitCode> {
    let mut site = Site::new(&args.redis, args.shards, Sizes::of(args));
    let stop = setup::stop_on_signal()?;
    let reached = tokio::select! {
        reached = site.reach() => Some(reached?),
        () = stop.cancelled() => None,
    };
    let mut measured = Measured::default();
    let outcome = match reached {
        Some(()) => measure_until(&stop, &site, args, &mut measured).await,
        None => None,
    };
    let is_whole = matches!(outcome, Some(Ok(())));
    let cleared = site.clear(!is_whole).await;
    // What was measured before a failure is as good as ever.
    tell(&measured, args);
    match outcome {
        Some(Ok(())) => {}
        Some(Err(error)) => say(&format!("failed: {error:#}")),
        None => say("stopped"),
    }
    match &cleared {
        Ok(()) => say("everything of the benchmark is removed from Redis"),
        Err(error) => say(&format!("{error:#}")),
    }
    let is_good = is_whole && cleared.is_ok();
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::from(EXIT_BAD) })
}

/// Measures until everything is measured, something fails, or it is stopped (`None`). What was
/// under way has ended when this returns.
async fn measure_until(
    stop: &CancellationToken,
    site: &Site,
    args: &QueueBenchArgs,
    measured: &mut Measured,
) -> Option<anyhow::Result<()>> {
    let tasks = LocalSet::new();
    tokio::select! {
        outcome = tasks.run_until(announce_and_measure(site, args, measured)) => Some(outcome),
        () = stop.cancelled() => None,
    }
}

async fn announce_and_measure(
    site: &Site,
    args: &QueueBenchArgs,
    Measured { figures, advice }: &mut Measured,
) -> anyhow::Result<()> {
    let parts: Vec<Part> = Part::ALL.into_iter().filter(|part| args.includes(*part)).collect();
    announce(site, &parts).await?;
    let mut material = Material::new();
    for part in parts {
        let material = &mut material;
        figures.extend(match part {
            Part::Throughput => throughput::measure(site, material, say).await?,
            Part::Latency => {
                let known = figures.value("unbatchedCyclesPerSecond");
                latency::measure(site, material, known, say).await?
            }
            Part::Depth => depth::measure(site, material, say).await?,
            Part::HandBack => hand_back::measure(site, material, say).await?,
            Part::Recovery => recovery::measure(site, material, say).await?,
            Part::Memory => memory::measure(site, material, say).await?,
            Part::Shards => {
                let costs = fleet::measure(site, material, &args.fleet, figures, say).await?;
                advice.insert(advise(&args.fleet, costs)).figures()
            }
        });
    }
    Ok(())
}

/// Says what will be done, and warns of whom it may disturb or be disturbed by.
async fn announce(site: &Site, parts: &[Part]) -> anyhow::Result<()> {
    let bytes = parts.iter().map(|part| site.sizes.bytes(*part)).max().unwrap_or(0);
    let time: Duration = parts.iter().map(|part| site.sizes.time(*part)).sum();
    let what = match &site.server {
        Some(server) => server.describe().await?,
        None => "this Redis".to_owned(),
    };
    say(&format!(
        "measuring {what}, in runs named {}-…: about {}, up to {} MiB of its memory",
        site.name(),
        span(time),
        thousands((bytes as f64 / MIB).ceil() as u64),
    ));
    let Some(server) = &site.server else {
        say("it cannot be asked for its CPU time and memory: what needs them is left out");
        return Ok(());
    };
    for warning in warnings(&server.others().await?, server.free_bytes().await?, bytes) {
        say(&format!("warning: {warning}"));
    }
    Ok(())
}

fn warnings(others: &Others, free_bytes: Option<u64>, needed_bytes: u64) -> Vec<String> {
    let mut warnings = Vec::new();
    if others.keys > 0 {
        warnings.push(format!(
            "it holds {} of others: they stay, but whoever uses them will wait",
            counted(others.keys, "key")
        ));
    }
    if others.calls_per_second > BUSY_CALLS_PER_SECOND {
        warnings.push(format!(
            "others make {} calls a second: the figures are what is left to us",
            thousands(others.calls_per_second.round() as u64)
        ));
    }
    if let Some(free) = free_bytes.filter(|free| *free < needed_bytes) {
        warnings.push(format!(
            "only {} MiB are free: parts may fail, --quick needs less",
            thousands((free as f64 / MIB) as u64)
        ));
    }
    warnings
}

/// Prints the figures, if there are any; a reader that has gone away, as in `| head`, changes
/// nothing.
fn tell(measured: &Measured, args: &QueueBenchArgs) {
    let text = match args.output {
        Output::Json => measured.figures.to_json().to_string(),
        Output::Text => report::text(&measured.figures, measured.advice.as_ref(), &args.fleet),
    };
    if measured.figures != Figures::default() {
        let _ = writeln!(io::stdout(), "{text}");
    }
}

/// Tells how far it is; figures alone go to stdout.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_and_idle_redis_with_memory_is_no_reason_to_warn() {
        let nobody = Others { keys: 0, calls_per_second: 2.0 };
        assert!(warnings(&nobody, Some(1 << 30), 1 << 20).is_empty());
        assert!(warnings(&nobody, None, 1 << 20).is_empty());
    }

    #[test]
    fn others_and_short_memory_are_warned_of() {
        let others = Others { keys: 12_345, calls_per_second: 1_999.6 };
        let warnings = warnings(&others, Some(3 << 20), 1 << 30);
        assert_eq!(warnings.len(), 3);
        assert!(warnings[0].contains("12,345 keys"), "{warnings:?}");
        assert!(warnings[1].contains("2,000 calls"), "{warnings:?}");
        assert!(warnings[2].contains("only 3 MiB"), "{warnings:?}");
    }
}
