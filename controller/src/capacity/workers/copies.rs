//! A template and its copies. Pure.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use crate::capacity::CapacityError;
use crate::capacity::cluster::pod::SET_NAME;

/// On a copy and on its pods: the template that it is made from.
pub(super) const TEMPLATE_LABEL: &str = "ebbtide.dev/template";

/// Who looks after an object; a copy of what Helm has installed is not Helm's.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// What was read of a template and of the LeaderWorkerSets that bear its label.
#[derive(Debug)]
pub(super) struct Copies {
    template: DynamicObject,
    name: String,
    uid: String,
    /// Pods of a group.
    size: u32,
    own: Vec<DynamicObject>,
}

impl Copies {
    /// # Errors
    /// What is named as template runs groups of its own.
    pub fn read(
        template: DynamicObject,
        labelled: Vec<DynamicObject>,
    ) -> Result<Self, CapacityError> {
        let refused = |message: String| CapacityError::Refused {
            what: "use of the template".to_owned(),
            code: "NoTemplate".to_owned(),
            message,
        };
        let name = template.metadata.name.clone().unwrap_or_default();
        let uid = template.metadata.uid.clone().unwrap_or_default();
        let replicas = number(&template.data, "/spec/replicas").unwrap_or(1);
        if replicas != 0 {
            let got = format!("LeaderWorkerSet {name} must have replicas: 0, got {replicas}");
            return Err(refused(format!("{got}: it is what others are made from")));
        }
        let is_own = |set: &DynamicObject| {
            let labels = set.metadata.labels.as_ref();
            let of = labels.and_then(|labels| labels.get(TEMPLATE_LABEL));
            let mut owners = set.metadata.owner_references.iter().flatten();
            of == Some(&name) && owners.any(|owner| owner.uid == uid)
        };
        let own = labelled.into_iter().filter(is_own).collect();
        let size = size_of(&template);
        Ok(Self { template, name, uid, size, own })
    }

    fn staying(&self) -> impl Iterator<Item = &DynamicObject> {
        self.own.iter().filter(|set| set.metadata.deletion_timestamp.is_none())
    }

    /// Nodes that are asked for.
    pub fn nodes(&self) -> u32 {
        self.staying().map(size_of).sum()
    }

    /// Whether a set of this name is there and stays.
    pub fn stays(&self, name: &str) -> bool {
        self.uid_of(name).is_some()
    }

    /// The UID of a copy that is there and stays.
    pub fn uid_of(&self, name: &str) -> Option<&str> {
        let mut found = self.staying().filter(|set| set.metadata.name.as_deref() == Some(name));
        found.next()?.metadata.uid.as_deref()
    }

    /// The copies that come next, for so many nodes, under names that nobody has.
    ///
    /// # Errors
    /// They are no whole number of groups.
    pub fn next(
        &self,
        nodes: u32,
        taken: &BTreeSet<String>,
    ) -> Result<Vec<DynamicObject>, CapacityError> {
        let size = self.size;
        if !nodes.is_multiple_of(size) {
            return Err(CapacityError::Refused {
                what: "raise".to_owned(),
                code: "PartOfAGroup".to_owned(),
                message: format!(
                    "{nodes} nodes are no whole number of groups of {size}: spec.rollout.\
                     nodesPerReplica must be {size}"
                ),
            });
        }
        let names = (0_u32..).map(|number| format!("{}-{number}", self.name));
        let free = names.filter(|name| !taken.contains(name));
        let wanted = usize::try_from(nodes / size).unwrap_or(usize::MAX);
        Ok(free.take(wanted).map(|name| self.copy(&name)).collect())
    }

    fn copy(&self, name: &str) -> DynamicObject {
        let mut copy = self.template.clone();
        let metadata = &self.template.metadata;
        let mut labels = metadata.labels.clone().unwrap_or_default();
        labels.insert(TEMPLATE_LABEL.to_owned(), self.name.clone());
        labels.insert(MANAGED_BY.to_owned(), "ebbtide".to_owned());
        copy.metadata = kube::api::ObjectMeta {
            name: Some(name.to_owned()),
            namespace: metadata.namespace.clone(),
            labels: Some(labels),
            owner_references: Some(vec![OwnerReference {
                api_version: "leaderworkerset.x-k8s.io/v1".to_owned(),
                kind: "LeaderWorkerSet".to_owned(),
                name: self.name.clone(),
                uid: self.uid.clone(),
                ..OwnerReference::default()
            }]),
            ..kube::api::ObjectMeta::default()
        };
        let data = json!({ "spec": self.template.data["spec"] });
        copy.data = renamed(data, &self.name, name);
        copy.data["spec"]["replicas"] = json!(1);
        let template = &mut copy.data["spec"]["leaderWorkerTemplate"];
        for pods in ["leaderTemplate", "workerTemplate"] {
            if template[pods].is_object() {
                template[pods]["metadata"]["labels"][TEMPLATE_LABEL] = json!(self.name);
            }
        }
        copy
    }
}

/// Selectors that name the template's own pods name those of the copy: such keep a group in one
/// zone.
fn renamed(value: Value, from: &str, to: &str) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(key, value)| {
                let is_name = key == SET_NAME && value == from;
                let value = if is_name { json!(to) } else { renamed(value, from, to) };
                (key, value)
            });
            Value::Object(fields.collect())
        }
        Value::Array(items) => items.into_iter().map(|item| renamed(item, from, to)).collect(),
        other => other,
    }
}

fn size_of(set: &DynamicObject) -> u32 {
    number(&set.data, "/spec/leaderWorkerTemplate/size").unwrap_or(1).max(1)
}

fn number(value: &Value, pointer: &str) -> Option<u32> {
    value.pointer(pointer)?.as_u64().and_then(|number| u32::try_from(number).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, change: impl FnOnce(&mut Value)) -> DynamicObject {
        let mut set = json!({
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {
                "name": name, "namespace": "rl", "uid": format!("uid-{name}"),
                "labels": { MANAGED_BY: "Helm", "app": "x" },
                "annotations": { "meta.helm.sh/release-name": "r" },
            },
            "spec": {
                "replicas": 0,
                "leaderWorkerTemplate": { "size": 2, "workerTemplate": { "spec": { "affinity": {
                    "labelSelector": { "matchLabels": { SET_NAME: "ep", "other": "ep" } },
                } } } },
            },
            "status": { "replicas": 0 },
        });
        change(&mut set);
        serde_json::from_value(set).expect("an object")
    }

    /// A copy as it was made earlier.
    fn made(name: &str) -> DynamicObject {
        let copies = Copies::read(set("ep", |_| {}), Vec::new()).expect("a template");
        let mut copy = copies.copy(name);
        copy.metadata.uid = Some(format!("uid-{name}"));
        copy
    }

    #[test]
    fn copy_is_of_one_group_and_belongs_to_its_template_and_not_to_helm() {
        let copy = serde_json::to_value(made("ep-0")).expect("an object");
        assert_eq!(copy["spec"]["replicas"], 1);
        assert_eq!(copy["metadata"]["namespace"], "rl");
        let owner = &copy["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["name"], &owner["uid"]), (&json!("ep"), &json!("uid-ep")));
        let labels = &copy["metadata"]["labels"];
        assert_eq!((&labels[MANAGED_BY], &labels["app"]), (&json!("ebbtide"), &json!("x")));
        assert!(copy["metadata"].get("annotations").is_none() && copy.get("status").is_none());
        let pods = &copy["spec"]["leaderWorkerTemplate"]["workerTemplate"];
        assert_eq!(pods["metadata"]["labels"][TEMPLATE_LABEL], "ep");
        let own = &pods["spec"]["affinity"]["labelSelector"]["matchLabels"];
        assert_eq!((&own[SET_NAME], &own["other"]), (&json!("ep-0"), &json!("ep")));
        assert!(copy["spec"]["leaderWorkerTemplate"].get("leaderTemplate").is_none());
    }

    #[test]
    fn names_are_the_lowest_free_ones_whoever_has_taken_the_others() {
        let mut going = made("ep-1");
        going.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
        let all = vec![made("ep-0"), going, set("ep-3", |_| {})];
        let taken = all.iter().filter_map(|set| set.metadata.name.clone()).collect();
        let copies = Copies::read(set("ep", |_| {}), all).expect("a template");
        assert_eq!(copies.nodes(), 2, "one stays, one goes, one is a stranger's");
        assert!(copies.stays("ep-0") && !copies.stays("ep-1") && !copies.stays("ep-3"));
        let next = copies.next(4, &taken).expect("two groups");
        let names: Vec<_> = next.iter().filter_map(|copy| copy.metadata.name.clone()).collect();
        assert_eq!(names, ["ep-2", "ep-4"]);
        assert!(copies.next(3, &taken).is_err());
    }

    #[test]
    fn set_that_runs_groups_is_no_template() {
        let runs = set("ep", |set| set["spec"]["replicas"] = json!(3));
        let error = Copies::read(runs, Vec::new()).expect_err("it runs three").to_string();
        assert!(error.contains("LeaderWorkerSet ep must have replicas: 0, got 3"), "{error}");
    }
}
