//! What EC2 shows of a pool, and whose it is. Pure.

use std::collections::BTreeSet;

use aws_sdk_ec2::types::{Instance, InstanceStateName};
use ebbtide_core::observation::{InstanceId, InstanceState, InstanceView};

use super::launch::{PURCHASE_TAG, STORE_TAG};
use crate::capacity::ec2::{is_in, market_of, node_of};

/// Instances that a remark names at most.
const NAMED_LIMIT: usize = 3;

/// Everything with the tags of a run and a pool, those included that are gone.
pub(super) struct Shown {
    all: Vec<(InstanceView, Tags)>,
    gone: Vec<(InstanceId, Tags)>,
}

#[derive(Default)]
struct Tags {
    store: Option<String>,
    purchase: Option<String>,
}

/// What lives, by whose it is.
pub(super) struct Sorted {
    /// Bought from this store, or named by a node's record in it.
    pub own: Vec<InstanceView>,
    /// Of another store; nobody here may count or end them.
    pub strangers: Vec<InstanceId>,
}

impl Shown {
    /// Reads what EC2 answered.
    pub fn read(instances: &[Instance]) -> Self {
        let (mut all, mut gone) = (Vec::new(), Vec::new());
        for instance in instances {
            let Some(id) = instance.instance_id() else { continue };
            let id = InstanceId(id.to_owned());
            match state(instance) {
                Some(state) => all.push((view(instance, id, state), Tags::of(instance))),
                None => gone.push((id, Tags::of(instance))),
            }
        }
        Self { all, gone }
    }

    /// Whether anything that lives was not bought from this store.
    pub fn has_others(&self, store: &str) -> bool {
        self.all.iter().any(|(_, tags)| !tags.is_of(store))
    }

    /// Tells own ones from strangers: those of no store or another are own when a node's record
    /// names them.
    pub fn sort(&self, store: &str, recorded: &BTreeSet<InstanceId>) -> Sorted {
        let is_own =
            |(view, tags): &&(InstanceView, Tags)| tags.is_of(store) || recorded.contains(&view.id);
        let (own, strangers): (Vec<_>, Vec<_>) = self.all.iter().partition(is_own);
        Sorted {
            own: own.into_iter().map(|(view, _)| view.clone()).collect(),
            strangers: strangers.into_iter().map(|(view, _)| view.id.clone()).collect(),
        }
    }

    /// Whether EC2 shows this instance, alive or gone.
    pub fn has(&self, id: &InstanceId) -> bool {
        self.all.iter().any(|(view, _)| view.id == *id)
            || self.gone.iter().any(|(gone, _)| gone == id)
    }

    /// Whether EC2 shows anything that came of this purchase.
    pub fn has_bought(&self, purchase: &str) -> bool {
        let tags = self.all.iter().map(|(_, tags)| tags);
        let mut tags = tags.chain(self.gone.iter().map(|(_, tags)| tags));
        tags.any(|tags| tags.purchase.as_deref() == Some(purchase))
    }
}

impl Tags {
    fn of(instance: &Instance) -> Self {
        let value = |key: &str| {
            let tag = instance.tags().iter().find(|tag| tag.key() == Some(key));
            tag.and_then(|tag| tag.value()).map(str::to_owned)
        };
        Self { store: value(STORE_TAG), purchase: value(PURCHASE_TAG) }
    }

    fn is_of(&self, store: &str) -> bool {
        self.store.as_deref() == Some(store)
    }
}

/// What an operator should know of strangers.
pub(super) fn remark(strangers: &[InstanceId]) -> Option<String> {
    let first = strangers.iter().take(NAMED_LIMIT).map(|id| id.0.as_str());
    let first = first.collect::<Vec<_>>().join(", ");
    let more = if strangers.len() > NAMED_LIMIT { ", ..." } else { "" };
    let count = strangers.len();
    (count > 0).then(|| {
        format!(
            "{count} instances carry the tags of this run and pool, were not bought from its \
             store and have not reported to it: they are neither counted nor ended ({first}{more})"
        )
    })
}

/// Where an instance is in its life; `None` when it is gone.
fn state(instance: &Instance) -> Option<InstanceState> {
    let is = |state| is_in(instance, &state);
    match () {
        () if is(InstanceStateName::Pending) => Some(InstanceState::Pending),
        () if is(InstanceStateName::Running) => Some(InstanceState::InService),
        () if is(InstanceStateName::ShuttingDown) => Some(InstanceState::Terminating),
        () if is(InstanceStateName::Terminated) => None,
        () => Some(InstanceState::Aside),
    }
}

fn view(instance: &Instance, id: InstanceId, state: InstanceState) -> InstanceView {
    let zone = instance.placement().and_then(|placement| placement.availability_zone());
    InstanceView {
        node: node_of(instance),
        zone: zone.and_then(|zone| zone.parse().ok()),
        market: Some(market_of(instance)),
        ..InstanceView::new(id, state)
    }
}
