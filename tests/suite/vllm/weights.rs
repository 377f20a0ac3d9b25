//! Replicas that come late to the run: the real vLLM loads the run's weights by its own call.
//!
//! With a model without experts: vLLM 0.32 does not pack experts again for a CPU when it loads
//! them anew, so that these then make other tokens than after a start.

use ebbtide_agent::engine::{Engine, VllmEngine, WeightsAt};
use ebbtide_core::ids::PolicyVersion;
use ebbtide_core::work::PromptGroup;
use ebbtide_harness::{Redis, Vllm, require};
use ebbtide_queue::control::VersionRecord;

use super::engines::{self, Engines, Site, file_uri, greedy};
use super::{NO_IMDS, versions};
use crate::programs::*;

const TOKENS: u32 = 200;

#[tokio::test]
async fn late_replica_loads_the_weights_of_the_run_and_makes_their_tokens() {
    let lent = require!(Engines::lend().await);
    let redis = require!(Redis::start().await);
    let models = &lent.models;
    let vllm = require!(Vllm::start(models.dense(2)).await);
    let engine = vllm.base_url();
    // They take tokens of the run's version alone.
    let group = |number| PromptGroup { max_lag: 0, ..greedy(number, 2, TOKENS) };
    let groups = [group(0), group(1)];
    let by_second = engines::answer(&engine, &groups[0], TOKENS).await;

    let driver = VllmEngine::new(&engine).expect("a URL");
    let place = models.dense(1).display().to_string();
    let weights = WeightsAt { version: PolicyVersion(1), place };
    driver.load_weights(&weights, EVENT_LIMIT).await.expect("it loads");
    let label = driver.probe().await.expect("it answers").weights_label;
    assert_eq!(label.as_deref(), Some("1"));
    let by_first = engines::answer(&engine, &groups[0], TOKENS).await;
    assert_ne!(by_first, by_second, "other weights make other tokens");

    let site = Site::on(&redis, 0).await;
    let publish = async |version, place| {
        let (version, uri) = (PolicyVersion(version), file_uri(place));
        let record = VersionRecord { version, uri, ..VersionRecord::default() };
        site.queue.set_version(record).await.expect("published");
    };
    publish(2, models.dense(2)).await;
    // The cache is empty: what comes second is taken, although the first try has left nothing.
    let variables =
        [("EBBTIDE_WEIGHTS_GRACE", "1s"), ("EBBTIDE_WEIGHTS_CACHE", "/nowhere/{version}")];
    let _agent = site.agent_with("n1", &engine, NO_IMDS, &variables);
    site.queue.enqueue(groups[0].clone()).await.expect("enqueued");
    for sample in site.samples(2).await {
        assert_eq!(sample.token_ids(), by_second, "{}", sample.unit);
        assert_eq!(versions(&sample), [2]);
    }

    publish(3, models.dense(3)).await;
    site.queue.enqueue(groups[1].clone()).await.expect("enqueued");
    view_becomes(&site.queue, "the engine to say why it is late", |view| {
        view.engines.iter().any(|engine| engine.state.contains("could not load version 3"))
    })
    .await
    .expect("it cannot load what is not there");
    publish(4, models.dense(1)).await;
    for sample in site.samples(2).await {
        assert_eq!(versions(&sample), [4]);
    }
    assert_eq!(engines::answer(&engine, &groups[0], TOKENS).await, by_first);
}
