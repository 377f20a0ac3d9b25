//! The real agent on the real vLLM, with small models on CPU: only `tests/run --with-vllm` runs
//! these. They take turns, as each would have both cores; those that leave their engines as they
//! were share two.

mod engines;
mod weights;

use std::time::Duration;

use ebbtide_core::sample::{FinishReason, Sample};
use ebbtide_harness::{Aemm, Error, Redis, require, until};
use ebbtide_queue::state::SlotState;

use self::engines::{Engines, Site, all_streaming, greedy, say_version};
use crate::programs::*;

/// Tokens that keep a stream running for at least ten seconds.
const LONG: u32 = 1500;

/// What the agent of no test is ever told.
const NO_IMDS: &str = "http://127.0.0.1:1";

fn versions(sample: &Sample) -> Vec<u64> {
    let mut versions: Vec<u64> = sample.chunks.iter().map(|chunk| chunk.weight_version.0).collect();
    versions.dedup();
    versions
}

#[tokio::test]
async fn units_come_back_whole_with_their_weights_and_their_ends() {
    let engines = require!(Engines::lend().await);
    let redis = require!(Redis::start().await);
    let site = Site::on(&redis, 1).await;
    let engine = engines.first.base_url();
    say_version(&engine, "1").await;
    let (to_the_end, mut stopped) = (greedy(0, 4, 200), greedy(1, 2, 200));
    let expected = engines::answer(&engine, &to_the_end, 200).await;
    let other = engines::answer(&engine, &stopped, 200).await;
    // The last id that is new: the response ends with it.
    let at = (20..200).rev().find(|at| !other[..*at].contains(&other[*at])).expect("a new id");
    stopped.sampling.stop_token_ids = vec![other[at]];
    for group in [&to_the_end, &stopped] {
        site.queue.enqueue(group.clone()).await.expect("enqueued");
    }
    let _agent = site.agent("n1", &engine, NO_IMDS);
    for sample in site.samples(6).await {
        let ids = sample.token_ids();
        let logprobs: Vec<f32> =
            sample.chunks.iter().flat_map(|chunk| chunk.logprobs.clone()).collect();
        assert_eq!(logprobs.len(), ids.len());
        assert!(logprobs.iter().all(|logprob| (-20.0..=0.0).contains(logprob)), "{logprobs:?}");
        assert_eq!(versions(&sample), [1]);
        assert_eq!(sample.chunks[0].origin.engine, "vllm/0.32.0");
        if sample.unit.group == to_the_end.group_id {
            assert_eq!((sample.finish.reason, &ids), (FinishReason::Length, &expected));
        } else {
            assert_eq!((sample.finish.reason, &ids[..]), (FinishReason::Stop, &other[..=at]));
        }
    }
}

#[tokio::test]
async fn partial_goes_on_as_if_it_had_never_stopped() {
    let engines = require!(Engines::lend().await);
    let redis = require!(Redis::start().await);
    let site = Site::on(&redis, 1).await;
    let engine = engines.first.base_url();
    say_version(&engine, "1").await;
    let group = greedy(2, 4, LONG);
    let expected = engines::answer(&engine, &group, LONG).await;
    site.queue.enqueue(group).await.expect("enqueued");
    let mut agent = site.agent("n1", &engine, NO_IMDS);
    all_streaming(&site.queue, 4).await;
    agent.terminate(Duration::from_secs(10)).await.expect("it hands everything back");
    let stopped = site.queue.scan().await.expect("redis is there");
    assert!(stopped.iter().all(|unit| unit.state == SlotState::Enqueued && unit.tokens > 8));
    assert!(stopped.iter().all(|unit| unit.hand_backs == 1 && unit.attempts == 0));
    // The engine has heard that nobody listens any more.
    until("an idle engine", Duration::from_secs(5), || engines::is_idle(&engine))
        .await
        .expect("what was handed back is aborted");
    agent.start_again().expect("an agent");
    for sample in site.samples(4).await {
        assert_eq!(sample.token_ids(), expected, "{}", sample.unit);
        assert_eq!((sample.attempts, sample.infra_attempts, versions(&sample)), (0, 0, vec![1]));
    }
    let kept: u32 = stopped.iter().map(|unit| unit.tokens).sum();
    let tokens = status(&site.queue).await.tokens;
    assert_eq!((tokens.preserved, tokens.wasted_total()), (u64::from(kept), 0));
}

#[tokio::test]
async fn change_of_weights_in_a_pause_splits_a_stream_and_ends_none() {
    let engines = require!(Engines::lend().await);
    let redis = require!(Redis::start().await);
    let site = Site::on(&redis, 1).await;
    let engine = engines.first.base_url();
    say_version(&engine, "1").await;
    let group = greedy(3, 4, LONG);
    let expected = engines::answer(&engine, &group, LONG).await;
    site.queue.enqueue(group).await.expect("enqueued");
    let _agent = site.agent("n1", &engine, NO_IMDS);
    all_streaming(&site.queue, 4).await;
    engines::post(&engine, "/pause?mode=keep", "{}").await;
    publish_version(&site.queue, 2).await;
    say_version(&engine, "2").await;
    engines::post(&engine, "/resume", "{}").await;
    for sample in site.samples(4).await {
        assert_eq!(sample.token_ids(), expected, "{}", sample.unit);
        assert_eq!((sample.attempts, sample.hand_backs, versions(&sample)), (0, 0, vec![1, 2]));
    }
}

#[tokio::test]
async fn death_of_the_engine_core_costs_an_attempt_and_no_token() {
    let mut engines = require!(Engines::lend().await);
    let redis = require!(Redis::start().await);
    let site = Site::on(&redis, 1).await;
    let engine = engines.first.base_url();
    say_version(&engine, "1").await;
    let group = greedy(4, 4, LONG);
    let expected = engines::answer(&engine, &group, LONG).await;
    site.queue.enqueue(group).await.expect("enqueued");
    let _agent = site.agent("n1", &engine, NO_IMDS);
    all_streaming(&site.queue, 4).await;
    engines.first.kill_core().expect("it runs");
    let units = units_become(&site.queue, "all units to be back", |units| {
        units.iter().all(|unit| unit.state == SlotState::Enqueued)
    });
    let units = units.await.expect("the streams have ended");
    assert!(units.iter().all(|unit| unit.tokens > 8 && unit.attempts == 1), "{units:?}");
    engines.first.restart().await.expect("it starts again");
    say_version(&engine, "1").await;
    for sample in site.samples(4).await {
        assert_eq!(sample.token_ids(), expected, "{}", sample.unit);
        assert_eq!((sample.attempts, sample.infra_attempts), (1, 0));
    }
    assert_eq!(status(&site.queue).await.tokens.wasted_total(), 0);
}

#[tokio::test]
async fn noticed_node_hands_back_and_another_engine_finishes() -> Result<(), Error> {
    let engines = require!(Engines::lend().await);
    let redis = require!(Redis::start().await);
    let deadline = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(110);
    let time = deadline.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let mut imds = require!(Aemm::start(&["spot", "--imdsv2", "--time", &time]).await);
    imds.kill();
    let site = Site::on(&redis, 1).await;
    let (doomed, heir) = (engines.first.base_url(), engines.second.base_url());
    say_version(&doomed, "1").await;
    say_version(&heir, "1").await;
    let group = greedy(5, 4, LONG);
    let expected = engines::answer(&heir, &group, LONG).await;
    site.queue.enqueue(group).await.expect("enqueued");
    let _first = site.agent("n1", &doomed, &imds.base_url());
    all_streaming(&site.queue, 4).await;
    imds.restart().await?;
    let handed_back = units_become(&site.queue, "all units to be handed back", |units| {
        units.iter().all(|unit| unit.state == SlotState::Enqueued && unit.hand_backs == 1)
    });
    let kept: u32 = handed_back.await?.iter().map(|unit| unit.tokens).sum();
    let _second = site.agent("n2", &heir, NO_IMDS);
    for sample in site.samples(4).await {
        assert_eq!(sample.token_ids(), expected, "{}", sample.unit);
        let nodes: Vec<_> =
            sample.chunks.iter().map(|chunk| chunk.origin.holder.node.to_string()).collect();
        assert_eq!((nodes.first().unwrap().as_str(), nodes.last().unwrap().as_str()), ("n1", "n2"));
        assert_eq!((sample.hand_backs, sample.attempts), (1, 0));
    }
    let status = status(&site.queue).await;
    assert_eq!((status.tokens.preserved, status.tokens.wasted_total()), (u64::from(kept), 0));
    assert_eq!(status.hand_backs["notice"], 4);
    Ok(())
}
