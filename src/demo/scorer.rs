//! The demo's scorer, for a policy with a reward stage: leases finished responses and scores them
//! by a rule that anybody can repeat.

use std::time::Duration;

use ebbtide_core::ids::Holder;
use ebbtide_core::sample::{Chunk, Score};
use ebbtide_queue::client::{QueueError, WorkQueue};
use ebbtide_queue::command::{Then, UnitWrite};
use ebbtide_queue::reply::Grant;
use tokio_util::sync::CancellationToken;

/// Which scorer, in which version.
const SCORER: &str = "even-tokens/1";
/// The holder of its leases.
const HOLDER: &str = "scorer/demo-boot/scorer-1";
/// Responses scored at a time: a tenth of a second of a full fleet's work.
const BATCH: usize = 32;
/// How long a lease lasts; a batch takes milliseconds.
const LEASE: Duration = Duration::from_secs(5);
/// How often it looks for responses when there are none.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The score of a response: which part of its token ids is even; 0 for an empty one.
pub fn score(token_ids: &[i32]) -> Score {
    let even = token_ids.iter().filter(|id| *id % 2 == 0).count();
    Score {
        value: even as f64 / token_ids.len().max(1) as f64,
        scorer_version: SCORER.to_owned(),
        metadata: Vec::new(),
    }
}

/// Scores until `stop`. Errors of the queue are waited out.
pub async fn run(queue: WorkQueue, stop: CancellationToken) {
    let holder: Holder = HOLDER.parse().expect("node, boot and process");
    while !stop.is_cancelled() {
        match score_some(&queue, &holder).await {
            Ok(0) => tokio::time::sleep(POLL_INTERVAL).await,
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, "scorer waits for the queue");
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
    }
}

/// Scores what is there, up to a batch; gives how many.
async fn score_some(queue: &WorkQueue, holder: &Holder) -> Result<usize, QueueError> {
    let leased = queue.lease_to_score(holder, BATCH, LEASE).await?;
    let writes: Vec<UnitWrite> = leased.grants.iter().map(scored).collect();
    let count = writes.len();
    for reply in queue.write(holder, writes).await {
        // What was not written is leased again when this lease has run out.
        reply?;
    }
    Ok(count)
}

fn scored(grant: &Grant) -> UnitWrite {
    let ids: Vec<i32> =
        grant.partial.iter().flat_map(|chunk: &Chunk| &chunk.token_ids).copied().collect();
    UnitWrite {
        unit: grant.unit.clone(),
        fencing_token: grant.fencing_token,
        tail: Vec::new(),
        then: Then::Score(score(&ids)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn score_is_the_even_part() {
        assert_eq!(score(&[2, 4, 5, 8]).value, 0.75);
        assert_eq!(score(&[]).value, 0.0);
    }
}
