//! The scaled object: how many replicas it has and what one is. Pure.

use ebbtide_core::policy::{ScaleTarget, ScaledKind};
use k8s_openapi::api::autoscaling::v1::Scale;
use kube::api::ApiResource;
use serde_json::Value;

use crate::capacity::CapacityError;
use crate::capacity::cluster::leader_worker_sets;

/// A scaled object as it was read.
#[derive(Debug, Clone)]
pub(super) struct Object {
    pub kind: ScaledKind,
    /// What it was read as; carries the resource version.
    pub scale: Scale,
    /// Replicas that are asked for.
    pub replicas: u32,
    /// Pods of one replica.
    pub size: u32,
    /// The lowest ordinal of a StatefulSet.
    pub first_ordinal: u32,
    /// Which pods are its own.
    pub selector: String,
}

/// How the API server calls a kind.
pub(super) fn resource(kind: ScaledKind) -> ApiResource {
    let plural = match kind {
        ScaledKind::StatefulSet => "statefulsets",
        ScaledKind::Deployment => "deployments",
        ScaledKind::LeaderWorkerSet => return leader_worker_sets(),
    };
    ApiResource {
        group: "apps".to_owned(),
        version: "v1".to_owned(),
        api_version: "apps/v1".to_owned(),
        kind: kind.to_string(),
        plural: plural.to_owned(),
    }
}

impl Object {
    /// # Errors
    /// The API server tells no selector: nobody knows which pods are meant.
    pub fn read(target: &ScaleTarget, scale: Scale, whole: &Value) -> Result<Self, CapacityError> {
        let number = |pointer: &str| {
            let number = whole.pointer(pointer).and_then(Value::as_u64);
            number.and_then(|number| u32::try_from(number).ok())
        };
        let replicas = scale.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0);
        let is_group = target.kind == ScaledKind::LeaderWorkerSet;
        // The selector of a LeaderWorkerSet's scale names leaders only.
        let own = format!("leaderworkerset.sigs.k8s.io/name={}", target.name);
        let told = scale.status.as_ref().and_then(|status| status.selector.clone());
        let selector = if is_group { Some(own) } else { told };
        let selector = selector.filter(|selector| !selector.is_empty());
        let selector = selector.ok_or_else(|| CapacityError::Unavailable {
            what: "get of the scale".to_owned(),
            problem: format!("{} {} has no selector", target.kind, target.name),
        })?;
        Ok(Self {
            kind: target.kind,
            replicas: u32::try_from(replicas).unwrap_or(0),
            size: number("/spec/leaderWorkerTemplate/size").unwrap_or(1).max(1),
            first_ordinal: number("/spec/ordinals/start").unwrap_or(0),
            selector,
            scale,
        })
    }

    /// Nodes that are asked for.
    pub fn nodes(&self) -> u32 {
        self.replicas.saturating_mul(self.size)
    }

    /// Replicas for so many nodes.
    ///
    /// # Errors
    /// They are no whole number of groups.
    pub fn replicas_of(&self, nodes: u32) -> Result<u32, CapacityError> {
        let size = self.size;
        if nodes.is_multiple_of(size) {
            return Ok(nodes / size);
        }
        Err(CapacityError::Refused {
            what: "raise".to_owned(),
            code: "PartOfAGroup".to_owned(),
            message: format!(
                "{nodes} nodes are no whole number of groups of {size}: spec.rollout.\
                 nodesPerReplica must be {size}"
            ),
        })
    }

    /// The first ordinal, or group index, that is no more asked for.
    pub fn end(&self) -> u32 {
        self.first_ordinal.saturating_add(self.replicas)
    }
}
