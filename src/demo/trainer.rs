//! The demo's trainer: enqueues prompt groups, takes sealed ones, "trains", raises the policy
//! version and pushes it to the engines. It trains nothing; everything else is as a real one does.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ebbtide_core::ids::{GroupId, PolicyVersion};
use ebbtide_core::policy::FleetPolicy;
use ebbtide_core::work::{PromptGroup, Sampling};
use ebbtide_queue::client::{EnqueueError, QueueError, WorkQueue};
use ebbtide_queue::control::{ControlView, TrainerPhase, TrainerRecord, VersionRecord};
use ebbtide_queue::reply::{TakenGroup, WriteReply};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::ledger::Ledger;
use super::samples::ExpectedResponse;
use super::trainer_nodes::TrainerNodes;

/// Tries to enqueue a group, one after the other: ten seconds, or longer when Redis is away.
const ENQUEUE_TRIES: usize = 200;
/// How often the trainer looks for sealed groups and for engines that need weights.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Longest that one push of weights may take.
const PUSH_TIME_LIMIT: Duration = Duration::from_secs(1);
/// Token ids of a prompt.
const PROMPT_LENGTH: usize = 24;

/// Most response tokens of one sample. At 60 tokens/s the longest take 10 s, far more than a
/// notice leaves, while most take two or three.
const MAX_TOKENS: u32 = 600;

/// Most steps of groups that the trainer has under way beside the current one.
const STEPS_AHEAD: u64 = 2;

/// The trainer and what it works with.
pub struct Trainer {
    pub queue: WorkQueue,
    pub policy: FleetPolicy,
    pub ledger: Arc<Mutex<Ledger>>,
    pub expected: Arc<ExpectedResponse>,
    pub seed: u64,
    /// Prompt token ids are below this.
    pub vocabulary: u32,
    /// What it runs on at first.
    pub nodes: TrainerNodes,
}

impl Trainer {
    /// The name under which it takes groups.
    pub const CONSUMER: &str = "demo-trainer";

    /// Trains until `stop`, and ends between two turns so that its books are complete. Errors of
    /// the queue are waited out.
    pub async fn run(self, stop: CancellationToken) {
        let mut state = State {
            random: ChaCha8Rng::seed_from_u64(self.seed),
            http: reqwest::Client::builder().no_proxy().timeout(PUSH_TIME_LIMIT).build().ok(),
            batch: Vec::new(),
            version: PolicyVersion(0),
            nodes: self.nodes.clone(),
            failures_read: vec![String::new(); usize::from(self.queue.shard_count())],
        };
        while !stop.is_cancelled() {
            if let Err(error) = self.turn(&mut state).await {
                tracing::debug!(%error, "trainer waits for the queue");
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        if let Err(error) = self.read_failures(&mut state).await {
            tracing::debug!(%error, "the last failures were not read");
        }
    }

    async fn turn(&self, state: &mut State) -> Result<(), QueueError> {
        self.read_failures(state).await?;
        state.nodes.come_to_safe_point(&self.queue).await?;
        self.enqueue_what_is_useful(state).await?;
        let wanted = self.groups_per_step() - state.batch.len();
        // A group that was taken and is not acknowledged comes again: leave out what is here.
        let taken = self.queue.take(Self::CONSUMER, state.batch.len() + wanted).await?;
        for group in taken {
            let is_known = state.batch.iter().any(|have| have.0 == group.group.group_id);
            if !is_known && state.batch.len() < self.groups_per_step() {
                let is_verified = self.receive(&group);
                state.batch.push((group.group.group_id.clone(), is_verified));
            }
        }
        self.report(state, TrainerPhase::Wait).await?;
        if state.batch.len() == self.groups_per_step() {
            self.update(state).await?;
        }
        let view = self.queue.view().await?;
        push_weights(state, &view).await;
        Ok(())
    }

    /// As many groups as the coming steps need, and one for each that failed. Within the lag bound
    /// L this is AReaL's admission ceiling, (L + v + 1) · b.
    async fn enqueue_what_is_useful(&self, state: &mut State) -> Result<(), QueueError> {
        let ahead = STEPS_AHEAD.min(u64::from(self.policy.staleness.max_lag));
        let steps = ahead + state.version.0 + 1;
        let (have, failed) = {
            let ledger = self.ledger();
            (ledger.groups_enqueued(), ledger.groups_failed())
        };
        let ceiling = steps * self.groups_per_step() as u64 + failed;
        for number in have..ceiling {
            let group = self.new_group(number, state);
            self.ledger().will_enqueue(&group);
            self.enqueue(group).await?;
        }
        Ok(())
    }

    /// Enqueues until it is taken: repeating it by the same id is harmless.
    async fn enqueue(&self, group: PromptGroup) -> Result<(), QueueError> {
        for _ in 0..ENQUEUE_TRIES {
            match self.queue.enqueue(group.clone()).await {
                Ok(WriteReply::Busy) => {}
                Ok(_) => return Ok(()),
                Err(EnqueueError::Queue(error)) if error.is_retriable() => {}
                Err(error) => return Err(QueueError::Protocol { problem: error.to_string() }),
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let problem = format!("group {} was not taken in time", group.group_id);
        Err(QueueError::Protocol { problem })
    }

    fn new_group(&self, number: u64, state: &mut State) -> PromptGroup {
        let id: GroupId = format!("g{number:06}").parse().expect("letters and digits");
        let prompt = (0..PROMPT_LENGTH)
            .map(|_| {
                state.random.random_range(10..i32::try_from(self.vocabulary).unwrap_or(i32::MAX))
            })
            .collect();
        let mut group = PromptGroup::new(id, self.policy.trainer.group_size, prompt);
        group.sampling = Sampling {
            max_tokens: MAX_TOKENS,
            seed: Some(i64::from(state.random.random_range(0..i32::MAX))),
            ..Sampling::default()
        };
        group.enqueue_policy_version = state.version;
        group.max_lag = self.policy.staleness.max_lag;
        group.resume_policy = self.policy.staleness.resume_policy;
        group.on_dead_slot = self.policy.queue.on_dead_slot;
        group.max_attempts = self.policy.queue.max_attempts;
        group.max_infra_attempts = self.policy.queue.max_infra_attempts;
        group
    }

    fn receive(&self, taken: &TakenGroup) -> bool {
        self.ledger().receive(taken, &*self.expected)
    }

    async fn update(&self, state: &mut State) -> Result<(), QueueError> {
        self.report(state, TrainerPhase::Train).await?;
        tokio::time::sleep(state.nodes.update_time()).await;
        self.report(state, TrainerPhase::Sync).await?;
        let next = PolicyVersion(state.version.0 + 1);
        let record = VersionRecord { version: next, ..VersionRecord::default() };
        state.version = self.queue.set_version(record).await?;
        let groups: Vec<GroupId> = state.batch.iter().map(|(group, _)| group.clone()).collect();
        self.queue.acknowledge(Self::CONSUMER, &groups).await?;
        let is_verified = state.batch.iter().all(|(_, is_verified)| *is_verified);
        self.ledger().update(&groups, is_verified);
        state.batch.clear();
        Ok(())
    }

    async fn read_failures(&self, state: &mut State) -> Result<(), QueueError> {
        for (shard, after) in (0..).zip(&mut state.failures_read) {
            for failure in self.queue.failures(shard, after, 100).await? {
                after.clone_from(&failure.record_id);
                self.ledger().note_failure(failure);
            }
        }
        Ok(())
    }

    async fn report(&self, state: &State, phase: TrainerPhase) -> Result<(), QueueError> {
        let record = TrainerRecord {
            phase,
            step: state.version.0,
            groups_per_step: self.policy.trainer.groups_per_step,
            nodes: state.nodes.reported(),
            incarnation: Some(state.nodes.incarnation.clone()),
            heartbeat: ebbtide_core::time::UnixMillis(0),
        };
        self.queue.put_trainer(record).await
    }

    fn groups_per_step(&self) -> usize {
        self.policy.trainer.groups_per_step as usize
    }

    fn ledger(&self) -> std::sync::MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct State {
    random: ChaCha8Rng,
    http: Option<reqwest::Client>,
    /// Groups of the coming update, each with whether it counts as verified.
    batch: Vec<(GroupId, bool)>,
    version: PolicyVersion,
    nodes: TrainerNodes,
    /// The last failure record read from each shard.
    failures_read: Vec<String>,
}

/// Brings every engine that is behind to the current version, late ones included.
async fn push_weights(state: &State, view: &ControlView) {
    let Some(http) = &state.http else { return };
    let is_behind = |version: Option<PolicyVersion>| version.is_none_or(|v| v < state.version);
    let behind = view.engines.iter().filter(|engine| is_behind(engine.weights_version));
    let pushes = behind.map(|engine| {
        let url = format!("{}/update_weight_version", engine.address);
        let body = json!({ "new_version": state.version.to_string() });
        http.post(url).json(&body).send()
    });
    for pushed in futures::future::join_all(pushes).await {
        if let Err(error) = pushed {
            tracing::debug!(%error, "an engine did not take the weights yet");
        }
    }
}
