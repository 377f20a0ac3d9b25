//! Who enqueues prompts, and the trainer who takes what becomes of them and looks at every token.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ebbtide_core::ids::GroupId;
use ebbtide_core::sample::{FinishReason, Sample};
use ebbtide_queue::reply::{TakenGroup, WriteReply};
use futures::future::try_join_all;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::time::interval;

use super::fleet::plain_engine;
use super::{GROUP_SIZE, LONGEST, Site, group_of, is_empty};

/// Units that wait in the queue, so that engines never do; a node that is lost gives back 680.
const READY: u64 = 400;

const NAME: &str = "trainer";

/// Enqueues prompts as they are needed until the soak is over.
pub async fn enqueue(site: &Site) {
    let mut ticks = interval(Duration::from_millis(200));
    while !site.is_over.is_cancelled() {
        ticks.tick().await;
        let Some(status) = site.status().await else { continue };
        let missing = READY.saturating_sub(status.ready) / u64::from(GROUP_SIZE);
        let begin = site.books.groups.get();
        let end = begin + u32::try_from(missing).expect("few");
        let enqueue_all =
            || try_join_all((begin..end).map(|number| site.world.queue.enqueue(group_of(number))));
        // Again and again: those that are there already do no harm.
        let replies = loop {
            if let Ok(replies) = enqueue_all().await {
                break replies;
            }
            ticks.tick().await;
        };
        let is_there = |it: &WriteReply| matches!(it, WriteReply::Ok | WriteReply::AlreadyDone);
        assert!(replies.iter().all(is_there), "{replies:?}");
        site.books.groups.set(end);
    }
}

/// What came out.
#[derive(Debug, Default)]
pub struct Taken {
    /// Those that were acknowledged, each with all its samples.
    pub groups: BTreeSet<GroupId>,
    pub tokens: u64,
    /// Tokens that were made under an earlier lease than the last ones.
    pub tokens_of_earlier_holders: u64,
    pub attempts: u64,
    pub infra_attempts: u64,
    pub hand_backs: u64,
}

/// See the module.
pub struct Trainer<'a> {
    site: &'a Site,
    random: ChaCha8Rng,
    taken: Taken,
    /// What it had before it ended without acknowledging it. What has become too old meanwhile
    /// does not come again.
    lost: BTreeMap<GroupId, TakenGroup>,
}

impl<'a> Trainer<'a> {
    pub fn of(site: &'a Site, seed: u64) -> Self {
        let random = ChaCha8Rng::seed_from_u64(!seed);
        Self { site, random, taken: Taken::default(), lost: BTreeMap::new() }
    }

    /// Takes and acknowledges until the soak is over and nothing is left. One time in eight it
    /// ends before it has acknowledged, and starts again.
    pub async fn train(mut self) -> Taken {
        let mut ticks = interval(Duration::from_millis(200));
        loop {
            ticks.tick().await;
            let is_over = self.site.is_over.is_cancelled()
                && self.site.status().await.is_some_and(|it| is_empty(&it));
            let Ok(taken) = self.site.world.queue.take(NAME, 64).await else { continue };
            if is_over && taken.is_empty() {
                return self.taken;
            }
            self.look_at(&taken);
            if self.random.random_bool(0.125) {
                let lost = taken.into_iter().map(|it| (it.group.group_id.clone(), it));
                self.lost.extend(lost);
                continue;
            }
            self.acknowledge(taken).await;
        }
    }

    fn look_at(&mut self, taken: &[TakenGroup]) {
        for group in taken {
            let id = &group.group.group_id;
            if let Some(before) = self.lost.remove(id) {
                assert!(group.is_redelivered, "{id}");
                assert_eq!(before.samples, group.samples, "{id}");
            }
            let number = id.as_str()[1..].parse().expect("a number");
            assert_eq!(*group.group, group_of(number), "as it was enqueued");
            assert_eq!(group.missing_slots, [0_u16; 0], "{id}");
            let slots = group.samples.iter().map(|sample| sample.unit.slot);
            assert!(slots.eq(0..group.group.group_size), "{id}: each slot once");
            group.samples.iter().for_each(|sample| assert_whole(group, sample));
        }
    }

    async fn acknowledge(&mut self, taken: Vec<TakenGroup>) {
        let groups: Vec<GroupId> = taken.iter().map(|it| it.group.group_id.clone()).collect();
        let mut ticks = interval(Duration::from_millis(200));
        while self.site.world.queue.acknowledge(NAME, &groups).await.is_err() {
            ticks.tick().await;
        }
        for group in taken {
            for sample in &group.samples {
                self.taken.tokens += u64::from(sample.len());
                self.taken.tokens_of_earlier_holders += of_earlier_holders(sample);
                self.taken.attempts += u64::from(sample.attempts);
                self.taken.infra_attempts += u64::from(sample.infra_attempts);
                self.taken.hand_backs += u64::from(sample.hand_backs);
            }
            let id = &group.group.group_id;
            assert!(self.taken.groups.insert(id.clone()), "{id} came twice");
        }
    }
}

fn of_earlier_holders(sample: &Sample) -> u64 {
    let last = sample.chunks.last().map(|chunk| chunk.origin.fencing_token);
    let earlier = sample.chunks.iter().filter(|it| Some(it.origin.fencing_token) != last);
    earlier.map(|chunk| u64::from(chunk.len())).sum()
}

/// The words of an engine that nobody interrupted, without a gap, each token with its
/// log-probability and its weights, and each change of holders with its reason.
fn assert_whole(group: &TakenGroup, sample: &Sample) {
    let unit = &sample.unit;
    let engine = plain_engine();
    let expected = engine.expected_response(&group.group, unit.slot);
    assert_eq!(sample.token_ids(), expected, "{unit}: {sample:?}");
    let is_stopped = expected.last() == Some(&engine.eos_token_id.cast_signed());
    let reason = if is_stopped { FinishReason::Stop } else { FinishReason::Length };
    assert_eq!(sample.finish.reason, reason, "{unit}: {sample:?}");
    assert!(is_stopped || sample.len() == LONGEST, "{unit}");
    let mut end = 0;
    for chunk in &sample.chunks {
        assert_eq!((chunk.offset, chunk.logprobs.len()), (end, chunk.token_ids.len()), "{unit}");
        assert!(chunk.logprobs.iter().all(|logprob| logprob.is_finite()), "{unit}");
        assert!(chunk.weight_version <= group.taken_at_version, "{unit}");
        end = chunk.end();
    }
    let pairs = || sample.chunks.iter().zip(sample.chunks.iter().skip(1));
    assert!(pairs().all(|(it, next)| it.weight_version <= next.weight_version), "{unit}");
    assert!(pairs().all(|(it, next)| it.origin.fencing_token <= next.origin.fencing_token));
    let leases = pairs().filter(|(it, next)| it.origin.fencing_token < next.origin.fencing_token);
    let ends = sample.attempts + sample.infra_attempts + sample.hand_backs;
    assert!(leases.count() <= usize::from(ends), "{unit} changed hands unexplained: {sample:?}");
}
