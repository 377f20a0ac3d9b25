//! What reading streams costs by itself: the HTTP crate of the agent, events split, token ids and
//! log-probabilities parsed, and nothing done with them.

use anyhow::{Context, ensure};
use futures::future::try_join_all;
use serde::Deserialize;
use serde_json::json;

/// An event of a stream.
#[derive(Deserialize)]
struct Event {
    choices: Vec<Choice>,
}

#[derive(Deserialize)]
struct Choice {
    token_ids: Vec<i32>,
    logprobs: Option<Logprobs>,
}

#[derive(Deserialize)]
struct Logprobs {
    content: Vec<Logprob>,
}

#[derive(Deserialize)]
struct Logprob {
    logprob: f32,
}

/// Reads so many streams of the engine until it is killed.
///
/// # Errors
/// A stream ends or is not understood.
pub async fn run(engine: &str, streams: usize) -> anyhow::Result<()> {
    let http = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build()?;
    let read = |number| tokio::spawn(read(http.clone(), engine.to_owned(), number));
    for ended in try_join_all((0..streams).map(read)).await? {
        ended?;
    }
    Ok(())
}

async fn read(http: reqwest::Client, engine: String, number: usize) -> anyhow::Result<()> {
    let prompt: Vec<i32> = (100..612).collect();
    let body = json!({
        "request_id": format!("bare-{number:06}."),
        "token_ids": prompt,
        "stream": true,
        "sampling_params": {"max_tokens": 1_000_000, "temperature": 1.0, "logprobs": 0, "seed": 7},
    });
    let request = http.post(format!("{engine}/inference/v1/generate")).json(&body);
    let mut response = request.send().await?.error_for_status()?;
    let (mut buffer, mut tokens, mut sum) = (Vec::new(), 0_usize, 0.0_f32);
    while let Some(piece) = response.chunk().await? {
        buffer.extend_from_slice(&piece);
        let mut begun = 0;
        while let Some(length) = buffer[begun..].windows(2).position(|two| two == b"\n\n") {
            let event = &buffer[begun..begun + length];
            let event = event.strip_prefix(b"data: ").context("an event without data")?;
            let event: Event = serde_json::from_slice(event)?;
            let choice = event.choices.first().context("an event without a choice")?;
            let logprobs = choice.logprobs.as_ref().map_or(&[][..], |it| &it.content);
            ensure!(logprobs.len() == choice.token_ids.len(), "a token without log-probability");
            tokens += choice.token_ids.len();
            sum += logprobs.iter().map(|it| it.logprob).sum::<f32>();
            begun += length + 2;
        }
        buffer.drain(..begun);
    }
    anyhow::bail!("a stream ended after {tokens} tokens (sum {sum})")
}
