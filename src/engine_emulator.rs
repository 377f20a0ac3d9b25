//! `ebbtide engine-emulator`: serves one emulated engine, in vLLM's shape or SGLang's, until it is
//! stopped, so that agents, trainers and fleet policies can be tried without a GPU.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use ebbtide_agent::emulator::engine::{
    EngineConfig, EngineEmulator, EngineHandle, FailAfter, Failure, PauseMode, ResponseLengths,
};
use ebbtide_agent::engine::EngineKind;
use ebbtide_core::policy::duration::parse_duration;
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};

const EXAMPLE: &str = "\
Examples:
  ebbtide engine-emulator --tokens-per-second 80 --max-running 64
  ebbtide engine-emulator --kind sglang --incremental-streaming-output --weights-label 7
  ebbtide engine-emulator --listen 127.0.0.1:0 --fail-after-tokens 5000 --failure core-death

  curl -N http://127.0.0.1:8000/inference/v1/generate -d \\
    '{\"token_ids\":[5,6,7],\"stream\":true,\"sampling_params\":{\"max_tokens\":16,\"seed\":7}}'";

/// Serve an emulated engine: HTTP in the shape of vLLM or SGLang, set speed, failures on request
#[derive(Args, Debug)]
#[command(after_help = EXAMPLE)]
pub struct Arguments {
    /// Whose HTTP interface to have
    #[arg(long, value_enum, default_value = "vllm")]
    kind: Kind,
    /// Address to listen on; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:8000")]
    listen: SocketAddr,
    /// Name of the served model
    #[arg(long, default_value = "tiny")]
    model_name: String,
    /// Speed of one stream that runs alone
    #[arg(long, default_value_t = 50.0)]
    tokens_per_second: f64,
    /// How much slower each further stream makes all of them (0.01: 1 % each)
    #[arg(long, default_value_t = 0.0)]
    slowdown_per_stream: f64,
    /// Streams that run at once; others wait in order
    #[arg(long, default_value_t = 16)]
    max_running: usize,
    /// Time before connections are accepted, such as 500ms, 90s or 2m
    #[arg(long, default_value = "0s", value_parser = parse_duration)]
    start_after: Duration,
    /// Mean length of a response, in tokens
    #[arg(long, default_value_t = 256.0)]
    mean_length: f64,
    /// Standard deviation of the logarithm of the length; 0 makes all equally long
    #[arg(long, default_value_t = 0.6)]
    length_spread: f64,
    /// Longest prompt and response together, in tokens
    #[arg(long, default_value_t = 8192)]
    context_length: u32,
    /// Token ids are below this
    #[arg(long, default_value_t = 32_000)]
    vocabulary: u32,
    /// Changes every response; engines with the same seed continue each other's
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Weights label at the start; Ebbtide wants a policy version in decimal
    #[arg(long, default_value = "default")]
    weights_label: String,
    /// How long it takes to load weights, such as 30s
    #[arg(long, default_value = "0s", value_parser = parse_duration)]
    load_time: Duration,
    /// Fail to load weights from places that begin so, such as /weights or s3:
    #[arg(long, value_name = "BEGINNING")]
    unreadable_weights: Option<String>,
    /// On Ctrl-C or SIGTERM, how long running streams may still take; 0s breaks them off
    #[arg(long, default_value = "0s", value_parser = parse_duration)]
    shutdown_timeout: Duration,
    /// Let a failure come after so many tokens
    #[arg(long, requires = "failure")]
    fail_after_tokens: Option<u64>,
    /// Which failure comes
    #[arg(long, value_enum, requires = "fail_after_tokens")]
    failure: Option<FailureArgument>,
    /// Answer the first N generation calls with --fail-status
    #[arg(long, value_name = "N", default_value_t = 0)]
    fail_next: u32,
    /// The HTTP status of calls that --fail-next lets fail
    #[arg(long, value_name = "STATUS", default_value_t = 503,
        value_parser = clap::value_parser!(u16).range(400..600))]
    fail_status: u16,
    /// Answer aborts without aborting
    #[arg(long)]
    ignore_aborts: bool,
    /// Acknowledge new weights labels without taking them over
    #[arg(long)]
    ignore_labels: bool,
    /// End streams without their [DONE] line
    #[arg(long)]
    omit_done: bool,
    /// Leave the connections of streams open after their last line
    #[arg(long)]
    leave_open: bool,
    /// Start paused
    #[arg(long)]
    paused: bool,
    /// vllm: leave out the control routes, as without VLLM_SERVER_DEV_MODE
    #[arg(long)]
    no_dev_mode: bool,
    /// vllm: refuse token-in token-out calls with 403, as without --enable-scale-out
    #[arg(long)]
    no_scale_out: bool,
    /// vllm: leave out /v1/completions
    #[arg(long)]
    no_completions: bool,
    /// sglang: send new tokens alone, instead of the whole response with every event
    #[arg(long)]
    incremental_streaming_output: bool,
    /// How to print the address and the closing account
    #[arg(long, value_enum, default_value = "text")]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// As recorded from vLLM 0.32
    Vllm,
    /// As the source of SGLang 0.5.23 has it
    Sglang,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FailureArgument {
    /// Connections are reset and the process ends
    NodeLoss,
    /// Streams end with the error of a dead engine core, then the process ends
    CoreDeath,
    /// No token comes any more
    Hang,
    /// All streams end with an error event, new calls are served
    ErrorEvents,
    /// All streams are closed without a finish, new calls are served
    BrokenStreams,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    Text,
    Json,
}

/// Serves until Ctrl-C, SIGTERM or a failure that was asked for; a second signal ends it at once.
///
/// # Errors
/// When a value is impossible or the address cannot be bound.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let (mut interrupt, mut terminate) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let engine = EngineEmulator::start(arguments.config())
        .with_context(|| format!("cannot serve an engine on {}", arguments.listen))?;
    let handle = engine.handle();
    arguments.set_faults(&handle);
    let base_url = engine.base_url();
    arguments.tell(&format!("serving on {base_url}"), &json!({ "baseUrl": base_url }));

    tokio::select! {
        () = either(&mut interrupt, &mut terminate) => arguments.stop(&handle),
        () = handle.ended() => {}
    }
    tokio::select! {
        () = either(&mut interrupt, &mut terminate) => handle.kill(),
        () = handle.ended() => {}
    }
    let tokens = handle.tokens_generated();
    let account = json!({ "requests": handle.counts().requests, "tokensGenerated": tokens });
    arguments.tell(&format!("ended; {tokens} tokens generated"), &account);
    Ok(())
}

async fn either(interrupt: &mut Signal, terminate: &mut Signal) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

impl Arguments {
    fn config(&self) -> EngineConfig {
        let failure = self.failure.map(|failure| match failure {
            FailureArgument::NodeLoss => Failure::NodeLoss,
            FailureArgument::CoreDeath => Failure::CoreDeath,
            FailureArgument::Hang => Failure::Hang,
            FailureArgument::ErrorEvents => Failure::ErrorEvents,
            FailureArgument::BrokenStreams => Failure::BrokenStreams,
        });
        EngineConfig {
            kind: match self.kind {
                Kind::Vllm => EngineKind::Vllm,
                Kind::Sglang => EngineKind::Sglang,
            },
            listen: self.listen,
            model_name: self.model_name.clone(),
            vocabulary: self.vocabulary,
            context_length: self.context_length,
            tokens_per_second: self.tokens_per_second,
            slowdown_per_stream: self.slowdown_per_stream,
            max_running: self.max_running,
            start_after: self.start_after,
            load_takes: self.load_time,
            lengths: ResponseLengths { mean: self.mean_length, spread: self.length_spread },
            seed: self.seed,
            weights_label: self.weights_label.clone(),
            dev_mode: !self.no_dev_mode,
            scale_out: !self.no_scale_out,
            completions: !self.no_completions,
            incremental_streaming: self.incremental_streaming_output,
            fail_after: self
                .fail_after_tokens
                .zip(failure)
                .map(|(tokens, failure)| FailAfter { tokens, failure }),
            ..EngineConfig::default()
        }
    }

    fn set_faults(&self, handle: &EngineHandle) {
        if self.fail_next > 0 {
            handle.fail_next(self.fail_next, self.fail_status);
        }
        handle.set_ignores_aborts(self.ignore_aborts);
        handle.set_ignores_labels(self.ignore_labels);
        handle.set_unreadable_weights(self.unreadable_weights.as_deref());
        handle.set_omits_done(self.omit_done);
        handle.set_leaves_open(self.leave_open);
        if self.paused {
            handle.pause(PauseMode::Keep);
        }
    }

    /// What the real server does on SIGTERM with this limit.
    fn stop(&self, handle: &EngineHandle) {
        if handle.counts().is_idle() {
            handle.kill();
        } else if self.shutdown_timeout.is_zero() {
            handle.fail_core();
        } else {
            handle.begin_drain(self.shutdown_timeout);
        }
    }

    fn tell(&self, text: &str, value: &serde_json::Value) {
        match self.output {
            Output::Text => println!("{text}"),
            Output::Json => println!("{value}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(line: &str) -> Arguments {
        let words = ["engine-emulator"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).expect("a good line").arguments
    }

    #[test]
    fn kind_abilities_and_failures_are_set_by_flags() {
        let vllm = parse("--no-dev-mode --no-scale-out --no-completions").config();
        assert_eq!(vllm.kind, EngineKind::Vllm);
        assert_eq!((vllm.dev_mode, vllm.scale_out, vllm.completions), (false, false, false));
        let line = "--kind sglang --incremental-streaming-output --fail-after-tokens 9 \
                    --failure error-events";
        let sglang = parse(line).config();
        assert_eq!((sglang.kind, sglang.incremental_streaming), (EngineKind::Sglang, true));
        let due = FailAfter { tokens: 9, failure: Failure::ErrorEvents };
        assert_eq!(sglang.fail_after, Some(due));
        let defaults = parse("").config();
        assert!(defaults.dev_mode && defaults.scale_out && defaults.completions);
    }
}
