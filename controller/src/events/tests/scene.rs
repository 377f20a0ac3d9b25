//! The world of these tests.

use std::sync::Arc;

use ebbtide_core::ids::NodeName;
use ebbtide_queue::control::DrainRecord;

use crate::capacity::local::LocalNode;
use crate::controller::EventParts;
use crate::controller::tests::world::{World, policy_with};
use crate::events::memory::MemoryEventQueue;
use crate::nodes::MemoryNodes;

/// A world with four nodes that work, and what an event may meet.
pub struct Scene {
    pub world: World,
    pub inbox: MemoryEventQueue,
    pub cluster: MemoryNodes,
}

impl Scene {
    pub async fn start(drain: &str) -> Self {
        Self::start_away(drain, false).await
    }

    pub async fn start_away(drain: &str, is_away: bool) -> Self {
        let (inbox, cluster) = (MemoryEventQueue::default(), MemoryNodes::default());
        inbox.set_away(is_away);
        let parts = EventParts {
            inbox: Some(Arc::new(inbox.clone())),
            nodes: Arc::new(cluster.clone()),
            ..EventParts::default()
        };
        let world = World::start_with(policy_with("act", drain), parts).await;
        world.enqueue_groups(0..40).await;
        world.until("four nodes work", async || world.ready_nodes().await == 4).await;
        Self { world, inbox, cluster }
    }

    pub fn node(&self, number: usize) -> LocalNode {
        self.world.provider.nodes()[number].clone()
    }

    pub async fn drain_of(&self, node: &NodeName) -> Option<DrainRecord> {
        self.world.drain_of(node).await
    }

    pub async fn until_empty(&self) {
        self.world.until("no message is left", async || self.inbox.left().is_empty()).await;
    }

    pub fn counts(&self, line: &str) -> bool {
        self.world.metrics.render().lines().any(|found| found == line)
    }
}
