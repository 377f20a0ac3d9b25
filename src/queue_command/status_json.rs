//! `ebbtide queue status` as JSON: what is not known is null.

use serde_json::{Value, json};

use super::lag::Lags;
use super::status_view::{StatusView, phase_word};
use crate::operator_command::hold;

impl StatusView {
    /// For machines.
    pub fn to_json(&self) -> Value {
        let (status, tokens) = (&self.status, &self.status.tokens);
        let shards = |shards: &[(u16, String)]| -> Vec<Value> {
            let named = shards.iter();
            named.map(|(shard, error)| json!({ "shard": shard, "error": error })).collect()
        };
        let trainer = self.trainer.as_ref().map(|trainer| {
            json!({
                "phase": phase_word(trainer.phase),
                "step": trainer.step,
                "groupsPerStep": trainer.groups_per_step,
                "silentSeconds": self.trainer_silence.as_secs_f64(),
            })
        });
        json!({
            "ok": self.is_complete(),
            "run": self.run,
            "policyVersion": status.version,
            "shards": {
                "count": self.shard_count,
                "missing": shards(&self.missing),
                "unread": shards(&self.unread),
            },
            "controlError": self.control_error,
            "holds": self.holds.iter()
                .map(|held| hold::to_json(held, self.control_now)).collect::<Vec<_>>(),
            "stages": {
                "generate": { "ready": status.ready, "inFlight": status.leased },
                "reward": { "ready": status.reward_ready, "inFlight": status.reward_leased },
            },
            "inFlightByNode": status.leased_by_node.iter()
                .map(|(node, units)| (node.to_string(), json!(units))).collect::<Value>(),
            "oldestReadySeconds": self.oldest_wait().map(|wait| wait.as_secs_f64()),
            "buffer": {
                "groupsWaiting": status.sealed_waiting,
                "groupsTaken": status.sealed_taken,
                "stepsOfSupply": self.steps_of_supply(),
            },
            "trainer": trainer,
            "ledger": self.ledger,
            "lag": self.lags.as_ref().map(Lags::to_json),
            "units": {
                "enqueued": status.enqueued,
                "completed": status.completed,
                "inSystem": status.in_system(),
                "dead": status.dead,
                "expired": status.expired,
                "cancelled": status.cancelled,
            },
            "groups": { "sealed": status.groups_sealed, "failed": status.groups_failed },
            "failureRecords": status.failure_records,
            "handBacksByCause": status.hand_backs,
            "leasesExpired": status.lease_expiries,
            "recordsMended": status.repaired,
            "versionsRefused": status.versions_refused,
            "tokens": {
                "generated": tokens.generated,
                "accepted": tokens.accepted,
                "inSystem": tokens.in_system(),
                "wasted": tokens.wasted_total(),
                "wastedByCause": tokens.wasted,
                "preserved": tokens.preserved,
            },
        })
    }
}
