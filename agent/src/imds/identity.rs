//! Who the instance is: id, zone, type and market, learned once the service answers, however late.

use std::sync::PoisonError;
use std::time::Duration;

use ebbtide_core::policy::Market;
use ebbtide_queue::client::Backoff;
use tokio::time::sleep;

use super::{ImdsClient, ImdsError};
use crate::shared::{InstanceFacts, Shared};

/// Bounds of the pause between two tries.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Learns the identity and ends; tries until it is known.
pub(super) async fn learn(shared: &Shared, imds: &ImdsClient) {
    let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
    loop {
        match read(imds).await {
            Ok(facts) => {
                tracing::info!(
                    instance_id = facts.instance_id,
                    zone = facts.zone,
                    market = ?facts.market,
                    "instance known"
                );
                *shared.identity.lock().unwrap_or_else(PoisonError::into_inner) = facts;
                return;
            }
            Err(error) => {
                tracing::debug!(%error, "instance not known yet");
                sleep(backoff.next_pause()).await;
            }
        }
    }
}

async fn read(imds: &ImdsClient) -> Result<InstanceFacts, ImdsError> {
    let instance_id = imds.read("/latest/meta-data/instance-id").await?;
    let zone = imds.read("/latest/meta-data/placement/availability-zone").await?;
    let instance_type = imds.read("/latest/meta-data/instance-type").await?;
    let life_cycle = imds.read("/latest/meta-data/instance-life-cycle").await?;
    let market = match life_cycle.as_deref().map(str::trim) {
        Some("spot") => Some(Market::Spot),
        Some("on-demand") => Some(Market::OnDemand),
        _ => None,
    };
    Ok(InstanceFacts { instance_id, zone, instance_type, market })
}
