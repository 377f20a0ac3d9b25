//! Scorers in miniature: every node of the scorers' pool takes two responses at a time, and ten
//! seconds for each, until it is asked to drain.

use std::collections::BTreeMap;
use std::time::Duration;

use ebbtide_core::ids::{NodeName, ReplicaId};
use ebbtide_core::sample::Score;
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::command::{Then, UnitWrite};
use ebbtide_queue::control::{NodeRole, NodeState};
use ebbtide_queue::reply::{Grant, WriteReply};
use tokio::time::Instant;

use super::agents::BEAT;

/// Responses that one takes at a time.
const PLACES: usize = 2;

/// How long one response takes.
const SCORING: Duration = Duration::from_secs(10);

/// Longer than that, and shorter than any test.
const TTL: Duration = Duration::from_secs(60);

/// Lets all scorers that there are work.
pub async fn score(queue: WorkQueue) {
    let mut held = BTreeMap::<NodeName, Vec<(Instant, Grant)>>::new();
    loop {
        let view = queue.view().await.expect("memory");
        let scorers = view.nodes.iter().filter(|node| node.role == NodeRole::Reward);
        for record in scorers.filter(|node| node.state == NodeState::Ready) {
            let held = held.entry(record.node.clone()).or_default();
            let holder = format!("{}/boot/scorer", record.node).parse().expect("valid");
            let is_done = |(since, _): &(Instant, Grant)| since.elapsed() >= SCORING;
            let done: Vec<_> = held.extract_if(.., |it| is_done(it)).collect();
            let writes = done.iter().map(|(_, grant)| scored(grant)).collect();
            for reply in queue.write(&holder, writes).await {
                assert_eq!(reply.expect("memory"), WriteReply::Ok, "nobody took it away");
            }
            let leaves = view.active_drain(&ReplicaId::from(&record.node)).is_some();
            let free = if leaves { 0 } else { PLACES - held.len() };
            if free > 0 {
                let leased = queue.lease_to_score(&holder, free, TTL).await.expect("memory");
                held.extend(leased.grants.into_iter().map(|grant| (Instant::now(), grant)));
            }
        }
        tokio::time::sleep(BEAT).await;
    }
}

fn scored(grant: &Grant) -> UnitWrite {
    let score = Score { value: 1.0, scorer_version: "test/1".to_owned(), metadata: Vec::new() };
    UnitWrite {
        unit: grant.unit.clone(),
        fencing_token: grant.fencing_token,
        tail: Vec::new(),
        then: Then::Score(score),
    }
}
