//! What a drain came to, as operators find it in Redis.

use ebbtide_core::time::{UnixMillis, whole_millis};
use ebbtide_queue::control::ClosingReport;
use tokio::time::Instant;

use super::DrainKey;
use crate::interruption::drain::DrainReport;
use crate::shared::Shared;

impl DrainKey {
    /// The report of the drain that `request_id` names as operators find it; the agent that leads
    /// the replica makes it. None before the keys were read.
    pub(in crate::interruption) fn closing_report(
        &self,
        report: &DrainReport,
        request_id: &str,
        begun: Instant,
        shared: &Shared,
    ) -> Option<ClosingReport> {
        let (view, _) = self.read.as_ref().filter(|_| self.leads_replica())?;
        let begun_at = self.on_server_clock(begun)?;
        let millis = whole_millis;
        let nodes = view.members.as_ref().map_or(1, |members| members.len().max(1));
        let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
        let hours = report.duration.as_secs_f64() / 3600.0;
        let dollars = shared.dollars_per_hour().map(|price| price * f64::from(nodes) * hours);
        Some(ClosingReport {
            request_id: request_id.to_owned(),
            replica: self.membership.replica.clone(),
            node: self.node.clone(),
            reason: report.reason,
            kind: report.kind.map(|kind| kind.as_str().to_owned()),
            outcome: report.outcome,
            begun_at,
            lead_ms: millis(report.lead),
            units_held: report.units_held as u64,
            units_finished: report.units_completed,
            units_handed_back: report.units_handed_back,
            units_left: report.units_left as u64,
            tokens_preserved: report.tokens_preserved,
            tokens_wasted: report.tokens_wasted,
            last_hand_back_ms: report.last_hand_back.map(millis),
            duration_ms: millis(report.duration),
            nodes,
            dollars,
            at: UnixMillis::default(),
        })
    }
}
