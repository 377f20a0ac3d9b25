//! A worker that leases straight from the queue, on a node whose agent does not know of it.

use ebbtide_core::ids::Holder;
use ebbtide_queue::command::{HandBackCause, ProgressLimits, Renewal, Waiting};
use ebbtide_queue::reply::{Grant, WriteReply};

use super::*;

pub struct DirectWorker {
    queue: WorkQueue,
    holder: Holder,
    pub grant: Grant,
}

impl DirectWorker {
    /// How long its lease lasts.
    pub const TTL: Duration = Duration::from_secs(15);

    /// Leases one unit.
    pub async fn start(world: &World, node: &NodeName) -> Self {
        let holder = format!("{node}/boot/worker-1").parse().expect("valid");
        let queue = world.queue.clone();
        let leased = queue.lease(&holder, 1, Self::TTL, PolicyVersion::default()).await;
        let grant = leased.expect("memory").grants.pop().expect("there is work");
        Self { queue, holder, grant }
    }

    /// Whether its lease is alive; renews it.
    pub async fn renew(&self) -> bool {
        let renewal = Renewal {
            unit: self.grant.unit.clone(),
            fencing_token: self.grant.fencing_token,
            waiting: Waiting::Environment,
            ttl: Self::TTL,
        };
        let limits = ProgressLimits::default();
        let lost = self.queue.renew(&self.holder, vec![renewal], limits).await;
        lost.expect("memory").is_empty()
    }

    pub async fn hand_back(&self) {
        let write = UnitWrite {
            unit: self.grant.unit.clone(),
            fencing_token: self.grant.fencing_token,
            tail: Vec::new(),
            then: Then::HandBack(HandBackCause::Drain.into()),
        };
        let reply = self.queue.write(&self.holder, vec![write]).await.remove(0);
        assert_eq!(reply.expect("memory"), WriteReply::Ok);
    }
}
