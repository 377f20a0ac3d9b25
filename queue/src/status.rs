//! Counters and depths, of one shard or of all.

use std::collections::BTreeMap;

use ebbtide_core::ids::{NodeName, PolicyVersion};
use ebbtide_core::time::UnixMillis;

/// Counters and depths of one shard, or summed over all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShardStatus {
    /// Slots ever enqueued.
    pub enqueued: u64,
    /// Slots that ended COMPLETED.
    pub completed: u64,
    /// Slots that ended DEAD.
    pub dead: u64,
    /// Slots that ended EXPIRED.
    pub expired: u64,
    /// Slots that ended CANCELLED.
    pub cancelled: u64,
    /// Groups sealed.
    pub groups_sealed: u64,
    /// Groups failed, stale ones included.
    pub groups_failed: u64,
    /// Units that are ready to be generated.
    pub ready: u64,
    /// Units that are being generated, expired leases that nobody reaped yet included.
    pub leased: u64,
    /// Responses that wait for their score.
    pub reward_ready: u64,
    /// Responses that are being scored.
    pub reward_leased: u64,
    /// Sealed groups that no trainer has taken.
    pub sealed_waiting: u64,
    /// Sealed groups that a trainer has taken and not acknowledged.
    pub sealed_taken: u64,
    /// When the oldest ready unit was enqueued.
    pub oldest_ready_at: Option<UnixMillis>,
    /// Hand-backs by cause.
    pub hand_backs: BTreeMap<String, u64>,
    /// Leases that ran out.
    pub lease_expiries: u64,
    /// Records of failures that stand.
    pub failure_records: u64,
    /// Times that somebody tried to lower the policy version.
    pub versions_refused: u64,
    /// Records that were out of place and have been mended.
    pub repaired: u64,
    /// Token counts.
    pub tokens: TokenCounts,
    /// Leased units per node.
    pub leased_by_node: BTreeMap<NodeName, u64>,
    /// The policy version of the shard.
    pub version: PolicyVersion,
    /// The shard's clock when it answered.
    pub now: UnixMillis,
}

impl ShardStatus {
    /// Slots that have not ended.
    pub fn in_system(&self) -> u64 {
        self.ready + self.leased + self.reward_ready + self.reward_leased
    }

    /// The counts of several shards together; versions and moments by their largest.
    pub fn sum(shards: impl IntoIterator<Item = Self>) -> Self {
        shards.into_iter().fold(Self::default(), Self::plus)
    }

    fn plus(mut self, other: Self) -> Self {
        self.enqueued += other.enqueued;
        self.completed += other.completed;
        self.dead += other.dead;
        self.expired += other.expired;
        self.cancelled += other.cancelled;
        self.groups_sealed += other.groups_sealed;
        self.groups_failed += other.groups_failed;
        self.ready += other.ready;
        self.leased += other.leased;
        self.sealed_waiting += other.sealed_waiting;
        self.sealed_taken += other.sealed_taken;
        self.reward_ready += other.reward_ready;
        self.reward_leased += other.reward_leased;
        self.lease_expiries += other.lease_expiries;
        self.failure_records += other.failure_records;
        self.versions_refused += other.versions_refused;
        self.repaired += other.repaired;
        self.oldest_ready_at = match (self.oldest_ready_at, other.oldest_ready_at) {
            (Some(own), Some(others)) => Some(own.min(others)),
            (own, others) => own.or(others),
        };
        for (cause, count) in other.hand_backs {
            *self.hand_backs.entry(cause).or_default() += count;
        }
        for (node, count) in other.leased_by_node {
            *self.leased_by_node.entry(node).or_default() += count;
        }
        self.tokens.generated += other.tokens.generated;
        self.tokens.accepted += other.tokens.accepted;
        self.tokens.preserved += other.tokens.preserved;
        for (cause, count) in other.tokens.wasted {
            *self.tokens.wasted.entry(cause).or_default() += count;
        }
        self.version = self.version.max(other.version);
        self.now = self.now.max(other.now);
        self
    }
}

/// Every stored token, counted once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TokenCounts {
    /// Stored: appends and tails accepted.
    pub generated: u64,
    /// In sealed groups.
    pub accepted: u64,
    /// Of partials that a later holder continued from.
    pub preserved: u64,
    /// Thrown away, by cause.
    pub wasted: BTreeMap<String, u64>,
}

impl TokenCounts {
    /// Thrown away, all causes together.
    pub fn wasted_total(&self) -> u64 {
        self.wasted.values().sum()
    }

    /// Stored, not yet sealed or thrown away.
    pub fn in_system(&self) -> u64 {
        self.generated.saturating_sub(self.accepted + self.wasted_total())
    }
}
