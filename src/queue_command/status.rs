//! `ebbtide queue status`: reads counters, depths and units of every shard that answers.

use std::collections::BTreeMap;

use ebbtide_core::ids::RunId;
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::command::Stage;
use ebbtide_queue::status::ShardStatus;

use super::lag::Lags;
use super::status_view::StatusView;
use crate::place::Answer;

/// Reads and tells; bad when a part does not answer. The lag needs every unit to be read.
pub async fn look(queue: &WorkQueue, run: &RunId, with_lag: bool) -> Answer {
    let view = read(queue, run, with_lag).await;
    Answer { is_good: view.is_complete(), text: view.to_text(), json: view.to_json() }
}

async fn read(queue: &WorkQueue, run: &RunId, with_lag: bool) -> StatusView {
    let gathered = queue.status().await;
    let missing: BTreeMap<u16, String> =
        gathered.missing.into_iter().map(|(shard, error)| (shard, error.to_string())).collect();
    let answering: Vec<u16> =
        (0..queue.shard_count()).filter(|shard| with_lag && !missing.contains_key(shard)).collect();
    let reads = answering.iter().map(|shard| queue.scan_shard(*shard));
    let (mut units, mut unread) = (Vec::new(), Vec::new());
    for (shard, found) in answering.iter().zip(futures::future::join_all(reads).await) {
        match found {
            Ok(found) => units.extend(found),
            Err(error) => unread.push((*shard, error.to_string())),
        }
    }
    let status = ShardStatus::sum(gathered.answers);
    let (control, control_error) = match queue.view().await {
        Ok(view) => (view, None),
        Err(error) => (Default::default(), Some(error.to_string())),
    };
    let has_reward = units.iter().any(|unit| unit.stage == Stage::Reward);
    let current = status.version.max(control.version.version);
    StatusView {
        run: run.to_string(),
        shard_count: queue.shard_count(),
        missing: missing.into_iter().collect(),
        unread,
        control_error,
        has_reward_stage: has_reward || status.reward_ready + status.reward_leased > 0,
        trainer_silence: control
            .trainer
            .as_ref()
            .map(|t| control.now.since(t.heartbeat))
            .unwrap_or_default(),
        ledger: control.ledger,
        trainer: control.trainer,
        holds: control.holds,
        control_now: control.now,
        lags: with_lag.then(|| Lags::of(&units, current)),
        status,
    }
}
