//! Which node and replica an instance is: by the records in Redis, then among the Kubernetes nodes.

use std::sync::Arc;

use ebbtide_core::ids::{NodeName, ReplicaId};
use ebbtide_core::observation::InstanceId;
use ebbtide_core::policy::Market;
use ebbtide_queue::control::{ControlView, NodeRecord};

use super::judge::Standing;
use crate::nodes::{ClusterNodes, NodeError};

/// Where an instance is in the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub node: NodeName,
    pub replica: ReplicaId,
    pub market: Option<Market>,
}

impl Place {
    fn of(record: &NodeRecord) -> Self {
        let (node, replica) = (record.node.clone(), record.replica.clone());
        Self { node, replica, market: record.market }
    }

    pub fn standing(&self, view: &ControlView) -> Standing {
        Standing { market: self.market, drains: view.active_drain(&self.replica).is_some() }
    }
}

/// The place of an instance by the records in Redis.
pub(super) fn place_in_records(instance: &InstanceId, view: &ControlView) -> Option<Place> {
    record_of_instance(view, instance).map(Place::of)
}

/// The place of an instance that did not tell its id, by its node in the cluster; `None` when it
/// has no such node. A node whose agent never reported is somebody else's, as far as anybody knows.
///
/// # Errors
/// The API server does not answer.
pub(super) async fn place_in_cluster(
    instance: &InstanceId,
    view: &ControlView,
    nodes: &Arc<dyn ClusterNodes>,
) -> Result<Option<Place>, NodeError> {
    let Some(node) = nodes.find(instance).await? else { return Ok(None) };
    Ok(record_of_node(view, &node).map(Place::of))
}

/// The record of the node that says that it is this instance.
pub(crate) fn record_of_instance<'a>(
    view: &'a ControlView,
    instance: &InstanceId,
) -> Option<&'a NodeRecord> {
    view.nodes.iter().find(|record| record.instance_id.as_ref() == Some(&instance.0))
}

/// The record of a node.
pub(crate) fn record_of_node<'a>(view: &'a ControlView, node: &NodeName) -> Option<&'a NodeRecord> {
    view.nodes.iter().find(|record| record.node == *node)
}
