//! What the benchmark works on: prompt groups, holders, tokens; and how it is put into the queue.

use std::time::Duration;

use anyhow::{bail, ensure};
use ebbtide_core::fabric::FabricVerdict;
use ebbtide_core::ids::{FencingToken, GroupId, Holder, PolicyVersion};
use ebbtide_core::sample::{Chunk, Finish, FinishReason, Origin};
use ebbtide_core::time::UnixMillis;
use ebbtide_core::work::PromptGroup;
use ebbtide_queue::client::{LeaseTerms, WorkQueue};
use ebbtide_queue::codec;
use ebbtide_queue::command::{Stage, Then, UnitWrite};
use ebbtide_queue::reply::{Grant, WriteReply};
use futures::StreamExt;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::time::Instant;

/// Bytes of a prompt's token ids as they are stored and sent; the group's other terms come on top.
const PROMPT_BYTES: usize = 1024;
/// One past the largest token id: the vocabularies of today's open models have some 151,000.
const VOCABULARY: i32 = 151_000;
/// The longest response: nothing here reaches it.
const RESPONSE_LIMIT: u32 = 1 << 20;
/// Groups that are on their way to Redis at a time.
const ENQUEUES_AT_ONCE: usize = 64;
/// Times a write is sent again that got no answer.
const REPEATS: usize = 5;
/// Longer than any measurement.
pub const LONG_LEASE: Duration = Duration::from_secs(1_800);

/// Makes groups and tokens; the same ones each time.
pub struct Material {
    prompt: Vec<i32>,
    random: ChaCha8Rng,
}

impl Material {
    pub fn new() -> Self {
        let mut material = Self { prompt: Vec::new(), random: ChaCha8Rng::seed_from_u64(7) };
        let without_prompt = codec::encode_group(&material.group(0, 1)).len();
        while codec::encode_group(&material.group(0, 1)).len() < without_prompt + PROMPT_BYTES {
            material.prompt.push(material.random.random_range(0..VOCABULARY));
        }
        material
    }

    /// A group with a prompt of 1 KiB.
    pub fn group(&self, number: usize, size: u16) -> PromptGroup {
        let id: GroupId = format!("group-{number:08}").parse().expect("letters and digits");
        let mut group = PromptGroup::new(id, size, self.prompt.clone());
        group.max_lag = 4;
        group.sampling.max_tokens = RESPONSE_LIMIT;
        group
    }

    /// A chunk of `tokens` tokens that begins at `offset`: random ids, random log-probabilities.
    pub fn chunk(&mut self, offset: u32, tokens: usize) -> Chunk {
        Chunk {
            offset,
            weight_version: PolicyVersion(0),
            token_ids: (0..tokens).map(|_| self.random.random_range(0..VOCABULARY)).collect(),
            logprobs: (0..tokens).map(|_| -self.random.random_range(0.0..12.0_f32)).collect(),
            origin: Origin {
                holder: holder(0, 0),
                fencing_token: FencingToken(0),
                engine: "vllm/0.32.0".to_owned(),
                fabric: FabricVerdict::Passed,
                started_at: UnixMillis(1_764_000_000_000),
                ended_at: UnixMillis(1_764_000_000_500),
            },
        }
    }

    /// A chunk that is stored in at least `bytes` bytes, and in as few more as possible.
    pub fn chunk_of_bytes(&mut self, offset: u32, bytes: usize) -> Chunk {
        let mut chunk = self.chunk(offset, 0);
        while codec::encode_chunk(&chunk).len() < bytes {
            let more = self.chunk(0, 1);
            chunk.token_ids.extend(more.token_ids);
            chunk.logprobs.extend(more.logprobs);
        }
        chunk
    }

    /// A number of tokens from 1 to `most`, each equally likely.
    pub fn length(&mut self, most: usize) -> usize {
        self.random.random_range(1..=most)
    }
}

/// The agent of a node, or one of several workers there.
pub fn holder(node: usize, worker: usize) -> Holder {
    let text = format!("bench-{node}/5f0c2ab4-0bd1-4c1e/agent-{worker}");
    text.parse().expect("letters, digits and dashes")
}

/// On what terms `holder` leases.
pub fn terms(holder: &Holder, ttl: Duration) -> LeaseTerms<'_> {
    let worker_version = PolicyVersion(0);
    LeaseTerms { stage: Stage::Generate, holder, ttl, worker_version }
}

/// The end of a response.
pub fn complete() -> Then {
    Then::Complete(Finish { reason: FinishReason::Stop, stop_reason: None })
}

/// A write to a unit as it was granted.
pub fn write(grant: &Grant, tail: Vec<Chunk>, then: Then) -> UnitWrite {
    UnitWrite { unit: grant.unit.clone(), fencing_token: grant.fencing_token, tail, then }
}

/// Enqueues groups `first..first + count`; gives how many a second.
///
/// # Errors
/// Redis gives no answer, or has too little memory.
pub async fn enqueue(
    queue: &WorkQueue,
    material: &Material,
    first: usize,
    count: usize,
    size: u16,
) -> anyhow::Result<f64> {
    let began = Instant::now();
    let groups = (first..first + count).map(|number| queue.enqueue(material.group(number, size)));
    let mut replies = futures::stream::iter(groups).buffer_unordered(ENQUEUES_AT_ONCE);
    while let Some(reply) = replies.next().await {
        match reply? {
            WriteReply::Ok | WriteReply::AlreadyDone => {}
            WriteReply::Busy => bail!("Redis has too little memory for what is to be measured"),
            other => bail!("a group was not enqueued: {other:?}"),
        }
    }
    Ok(count as f64 / began.elapsed().as_secs_f64())
}

/// Leases exactly `count` units.
///
/// # Errors
/// Redis gives no answer, or fewer units are there.
pub async fn lease(queue: &WorkQueue, holder: &Holder, count: usize) -> anyhow::Result<Vec<Grant>> {
    let grants = queue.lease_while(terms(holder, LONG_LEASE), count, || true).await?.grants;
    ensure!(grants.len() == count, "{} units were leased, not {count}", grants.len());
    Ok(grants)
}

/// Writes until every write is acknowledged. Those that got no answer are sent again, as an agent
/// does.
///
/// # Errors
/// A write is refused, or is not answered after several times.
pub async fn write_all(
    queue: &WorkQueue,
    holder: &Holder,
    mut writes: Vec<UnitWrite>,
) -> anyhow::Result<()> {
    for repeat in 0..=REPEATS {
        let sent = if repeat < REPEATS { writes.clone() } else { std::mem::take(&mut writes) };
        let replies = queue.write(holder, sent).await;
        let mut unanswered = Vec::new();
        for (index, reply) in replies.into_iter().enumerate() {
            match reply {
                Ok(WriteReply::Ok) => {}
                Ok(WriteReply::AlreadyDone) if repeat > 0 => {}
                Ok(refusal) => bail!("a write was refused: {refusal:?}"),
                Err(error) if error.is_retriable() && repeat < REPEATS => unanswered.push(index),
                Err(error) => return Err(error.into()),
            }
        }
        if unanswered.is_empty() {
            return Ok(());
        }
        writes = unanswered.into_iter().map(|index| writes[index].clone()).collect();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_and_chunks_have_the_bytes_that_are_promised() {
        let mut material = Material::new();
        let prompt = material.prompt.len();
        assert!((150..PROMPT_BYTES / 3).contains(&prompt), "{prompt} tokens");
        let group = material.group(0, 8);
        group.check().expect("it can be enqueued");
        let bytes = codec::encode_group(&group).len();
        assert!((PROMPT_BYTES..PROMPT_BYTES * 3 / 2).contains(&bytes), "{bytes} bytes");
        let chunk = material.chunk_of_bytes(5, 2_048);
        assert!((2_048..2_060).contains(&codec::encode_chunk(&chunk).len()));
        assert_eq!((chunk.offset, chunk.token_ids.len()), (5, chunk.logprobs.len()));
    }
}
