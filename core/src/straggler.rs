//! Which replicas are slower than their peers at an equal batch, so that they can be replaced.
//!
//! Compared is what one stream gets (`speed.rs`), the mean over a window. *Peers* of a replica are
//! others of the same instance type and an equal batch (streams that make tokens). It is named when
//! it stays below 80 % of its peers' median for three windows in a row, and no longer when it is
//! above 90 % for two. With fewer than three peers nothing is said: a window without a verdict
//! changes nothing, and ten of them in a row end what was said.
//!
//! The same comparison lets a new image go on (`image_rollout.rs`), by another burden of proof.
//! Here nobody asked, and to name one that is well costs a healthy replica: in doubt nothing is
//! said, and what is said can be taken back. There a change waits for an answer.
//!
//! Pure: it sees one observation after the other, and takes its moments from them.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::ReplicaId;
use crate::observation::{Observation, ReplicaState, ReplicaView};
use crate::speed::{SAME_SPEED_SHARE, Work};
use crate::time::UnixMillis;

/// Length of a window: long against a step of an engine and the prefill of a prompt.
const WINDOW: Duration = Duration::from_secs(30);

/// Fewest observations of a window.
const SAMPLES_NEEDED: u32 = 3;

/// Fewest peers: the median of two is as often wrong as right.
const PEERS_NEEDED: usize = 3;

/// Share of the peers' median below which a window is slow. It is good again from
/// [`SAME_SPEED_SHARE`] on; in between nothing changes.
const SLOW_BELOW: f64 = 0.8;

/// Windows in a row that name a replica, that clear it, and without a verdict that end one.
const SLOW_WINDOWS: u32 = 3;
const GOOD_WINDOWS: u32 = 2;
const SILENT_WINDOWS: u32 = 10;

/// A replica that is slower than its peers.
#[derive(Debug, Clone, PartialEq)]
pub struct Straggler {
    /// The replica.
    pub replica: ReplicaId,
    /// Its speed as a share of its peers' median, in the last window that told.
    pub share: f64,
}

/// What is remembered from one observation to the next.
#[derive(Debug, Clone, Default)]
pub struct StragglerMemory {
    began: Option<UnixMillis>,
    samples: u32,
    sums: BTreeMap<ReplicaId, Sum>,
    standings: BTreeMap<ReplicaId, Standing>,
}

/// A replica's part of the window under way.
#[derive(Debug, Clone, Default)]
struct Sum {
    instance_type: Option<String>,
    work: Work,
}

/// What is known of a replica from earlier windows.
#[derive(Debug, Clone, Default)]
struct Standing {
    is_named: bool,
    share: f64,
    slow_windows: u32,
    good_windows: u32,
    silent_windows: u32,
}

impl StragglerMemory {
    /// Takes in one observation.
    pub fn note(&mut self, observation: &Observation) {
        let Some(replicas) = observation.replicas.known() else { return };
        let began = *self.began.get_or_insert(observation.now);
        self.standings.retain(|id, _| replicas.iter().any(|replica| replica.id == *id));
        self.samples += 1;
        for replica in replicas.iter().filter(|replica| is_at_work(replica)) {
            self.sums.entry(replica.id.clone()).or_default().add(replica);
        }
        if observation.now.since(began) >= WINDOW && self.samples >= SAMPLES_NEEDED {
            self.end_window(observation.now);
        }
    }

    /// Takes over what an earlier controller said of a replica; what this one knows goes before.
    pub fn adopt(&mut self, known: Straggler) {
        self.standings.entry(known.replica).or_insert(Standing {
            is_named: true,
            share: known.share,
            ..Standing::default()
        });
    }

    /// The replicas that are slower than their peers.
    pub fn stragglers(&self) -> impl Iterator<Item = Straggler> + '_ {
        let named = self.standings.iter().filter(|(_, standing)| standing.is_named);
        named.map(|(replica, standing)| Straggler {
            replica: replica.clone(),
            share: standing.share,
        })
    }

    fn end_window(&mut self, now: UnixMillis) {
        let samples = std::mem::take(&mut self.samples);
        let mut sums = std::mem::take(&mut self.sums);
        self.began = Some(now);
        // Who was not at work all the time is measured against nobody, and nobody against it.
        sums.retain(|_, sum| sum.work.readings() == samples);
        for replica in sums.keys() {
            self.standings.entry(replica.clone()).or_default();
        }
        for (replica, standing) in &mut self.standings {
            let share = sums.get(replica).and_then(|sum| share_of(replica, sum, &sums));
            standing.take_in(share);
        }
    }
}

/// It serves and makes tokens: a replica that is paused, drained or starting is not slow.
fn is_at_work(replica: &ReplicaView) -> bool {
    let is_generating = replica.generating.is_some_and(|streams| streams > 0);
    let is_free = replica.state == ReplicaState::Ready && replica.drain.is_none();
    is_free && is_generating && replica.tokens_per_second > 0.0
}

/// Its speed by the median of its peers; none with too few of them.
fn share_of(replica: &ReplicaId, sum: &Sum, sums: &BTreeMap<ReplicaId, Sum>) -> Option<f64> {
    let is_peer = |(id, other): &(&ReplicaId, &Sum)| {
        *id != replica
            && other.instance_type == sum.instance_type
            && sum.work.has_batch_of(&other.work)
    };
    let peers: Vec<Work> = sums.iter().filter(is_peer).map(|(_, other)| other.work).collect();
    (peers.len() >= PEERS_NEEDED).then(|| sum.work.beside(&peers).speed)
}

impl Sum {
    fn add(&mut self, replica: &ReplicaView) {
        self.instance_type.clone_from(&replica.instance_type);
        self.work.add(replica.tokens_per_second, replica.generating.unwrap_or(0));
    }
}

impl Standing {
    fn take_in(&mut self, share: Option<f64>) {
        let Some(share) = share else {
            self.silent_windows += 1;
            if self.silent_windows >= SILENT_WINDOWS {
                *self = Self::default();
            }
            return;
        };
        self.share = share;
        self.silent_windows = 0;
        self.slow_windows = if share < SLOW_BELOW { self.slow_windows + 1 } else { 0 };
        self.good_windows = if share >= SAME_SPEED_SHARE { self.good_windows + 1 } else { 0 };
        if self.slow_windows >= SLOW_WINDOWS {
            self.is_named = true;
        } else if self.good_windows >= GOOD_WINDOWS {
            self.is_named = false;
        }
    }
}

#[cfg(test)]
mod tests;
