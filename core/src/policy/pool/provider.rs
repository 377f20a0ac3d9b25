//! `provider` of a pool, and the keys that belong to one provider alone.

use std::time::Duration;

use super::{
    AutoScalingGroupName, LaunchTemplateName, NamespaceName, ObjectName, SubnetId, TemplateVersion,
};
use crate::policy::kinds::{Named, choice, text};
use crate::policy::numbers::duration;
use crate::policy::section::Section;

/// A node that is launched for a pod comes in less.
const UNSCHEDULABLE_TIMEOUT: Duration = Duration::from_mins(5);

/// Longest time that a launch for a pod may be waited for.
const UNSCHEDULABLE_TIMEOUT_MAX: Duration = Duration::from_hours(1);

/// Who adds nodes to a pool and takes them away.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Provider {
    /// One EC2 Auto Scaling group for this pool alone.
    Asg(AutoScalingGroupName),
    /// EC2 CreateFleet, instant, all or nothing, in one zone.
    Fleet(FleetLaunch),
    /// The scale subresource of a Kubernetes object.
    Scale(ScaleTarget),
    /// One LeaderWorkerSet for each replica.
    Workers(WorkersTemplate),
    /// Nodes of the local world, for the demo and tests.
    Local,
}

/// The kind of a provider, as the policy names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProviderKind {
    /// `asg`.
    Asg,
    /// `fleet`.
    Fleet,
    /// `scale`.
    Scale,
    /// `workers`.
    Workers,
    /// `local`.
    Local,
}

/// `fleet`: what CreateFleet launches.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FleetLaunch {
    /// `launchTemplate`: required; its name, or its id, which begins with `lt-`.
    pub template: LaunchTemplateName,
    /// `version` of the template: a number, `$Default` or `$Latest`; none is `$Default`.
    pub version: Option<TemplateVersion>,
    /// `subnet`: where the nodes are; none is the default subnet of the pool's zone.
    pub subnet: Option<SubnetId>,
}

/// `scale`: the object whose replicas are the pool's nodes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ScaleTarget {
    /// `kind`: required.
    pub kind: ScaledKind,
    /// `name`: required.
    pub name: ObjectName,
    /// `namespace`: none is the controller's own.
    pub namespace: Option<NamespaceName>,
    /// `unschedulableTimeout`: how long pods may wait for nodes, with none of the pool finding one,
    /// until that is a failed launch. Default 5m, 1s to 1h.
    pub unschedulable_timeout: Duration,
}

/// The kinds of objects of which it is known which pods go when they are scaled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ScaledKind {
    /// `StatefulSet`: the pods with the highest ordinals go.
    StatefulSet,
    /// `LeaderWorkerSet`: the groups with the highest index go.
    LeaderWorkerSet,
    /// `Deployment`: the pod with the lowest deletion cost goes, those that are not ready before.
    Deployment,
}

/// `workers`: what the LeaderWorkerSets of a pool are made from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WorkersTemplate {
    /// `template`: required; a LeaderWorkerSet of no replicas.
    pub template: ObjectName,
    /// `namespace`: none is the controller's own.
    pub namespace: Option<NamespaceName>,
    /// `unschedulableTimeout`: how long pods may wait for nodes, with none of the pool finding one,
    /// until that is a failed launch. Default 5m, 1s to 1h.
    pub unschedulable_timeout: Duration,
}

impl Provider {
    /// Its kind.
    pub fn kind(&self) -> ProviderKind {
        match self {
            Self::Asg(_) => ProviderKind::Asg,
            Self::Fleet(_) => ProviderKind::Fleet,
            Self::Scale(_) => ProviderKind::Scale,
            Self::Workers(_) => ProviderKind::Workers,
            Self::Local => ProviderKind::Local,
        }
    }

    /// What no other pool may name as well, and the key that names it.
    pub(in crate::policy) fn own(&self) -> Option<(&'static str, String)> {
        match self {
            Self::Asg(group) => Some(("autoScalingGroup", group.to_string())),
            Self::Scale(target) => {
                let named = named_in(target.namespace.as_ref(), &target.name);
                Some(("scale.name", format!("{} {named}", target.kind)))
            }
            Self::Workers(workers) => {
                let named = named_in(workers.namespace.as_ref(), &workers.template);
                Some(("workers.template", named))
            }
            Self::Fleet(_) | Self::Local => None,
        }
    }
}

fn named_in(namespace: Option<&NamespaceName>, name: &ObjectName) -> String {
    namespace.map_or_else(|| name.to_string(), |space| format!("{space}/{name}"))
}

impl ProviderKind {
    /// Whether its nodes are pods, and the machines under them somebody else's.
    pub fn takes_pods(self) -> bool {
        matches!(self, Self::Scale | Self::Workers)
    }

    /// The word of the policy.
    pub fn as_str(self) -> &'static str {
        self.name()
    }
}

impl std::fmt::Display for ScaledKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl Named for ProviderKind {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("asg", Self::Asg),
        ("fleet", Self::Fleet),
        ("scale", Self::Scale),
        ("workers", Self::Workers),
        ("local", Self::Local),
    ];
}

impl Named for ScaledKind {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("StatefulSet", Self::StatefulSet),
        ("LeaderWorkerSet", Self::LeaderWorkerSet),
        ("Deployment", Self::Deployment),
    ];
}

/// Reads `provider` and what belongs to it, and checks for what each one needs.
pub(super) fn read_provider(pool: &mut Section<'_, '_>) -> Provider {
    let kind = pool.try_required("provider", choice::<ProviderKind>());
    let group = read_group(pool, kind);
    let fleet = read_own(pool, kind, ProviderKind::Fleet, FleetLaunch::read);
    let scale = read_own(pool, kind, ProviderKind::Scale, ScaleTarget::read);
    let workers = read_own(pool, kind, ProviderKind::Workers, WorkersTemplate::read);
    let is_bought = [Some(ProviderKind::Asg), Some(ProviderKind::Fleet)].contains(&kind);
    if is_bought && !pool.has("instanceType") {
        let is_fleet = kind == Some(ProviderKind::Fleet);
        let circumstance = if is_fleet { " with provider: fleet" } else { " with provider: asg" };
        pool.miss("instanceType", circumstance);
    }
    if kind == Some(ProviderKind::Fleet) && !pool.has("zone") {
        pool.miss("zone", " with provider: fleet, which buys in one zone");
    }
    let group = group.map(Provider::Asg);
    let own = [fleet.map(Provider::Fleet), scale.map(Provider::Scale), group];
    let mut found = own.into_iter().flatten().chain(workers.map(Provider::Workers));
    // What is missing is a mistake already, and the local world stands in for it.
    found.find(|provider| Some(provider.kind()) == kind).unwrap_or(Provider::Local)
}

fn read_group(
    pool: &mut Section<'_, '_>,
    kind: Option<ProviderKind>,
) -> Option<AutoScalingGroupName> {
    let has_group = pool.has("autoScalingGroup");
    let group = pool.optional("autoScalingGroup", text());
    refuse_foreign(pool, kind, ProviderKind::Asg, "autoScalingGroup", has_group);
    if kind == Some(ProviderKind::Asg) && !has_group {
        pool.miss("autoScalingGroup", " with provider: asg");
    }
    group
}

/// The section that is named like its provider: required with it, refused with the others.
fn read_own<T>(
    pool: &mut Section<'_, '_>,
    kind: Option<ProviderKind>,
    owner: ProviderKind,
    read: impl FnOnce(&mut Section<'_, '_>) -> T,
) -> Option<T> {
    let key = owner.name();
    let has_section = pool.has(key);
    let section = pool.optional_section(key, read);
    refuse_foreign(pool, kind, owner, key, has_section);
    if kind == Some(owner) && !has_section {
        pool.miss(key, " with this provider");
    }
    section
}

fn refuse_foreign(
    pool: &mut Section<'_, '_>,
    kind: Option<ProviderKind>,
    owner: ProviderKind,
    key: &str,
    is_given: bool,
) {
    if let Some(other) = kind.filter(|kind| is_given && *kind != owner) {
        let (owner, other) = (owner.name(), other.name());
        pool.complain(key, format!("is for provider: {owner} only, got {other}"));
    }
}

impl FleetLaunch {
    fn read(fleet: &mut Section<'_, '_>) -> Self {
        Self {
            template: fleet.required("launchTemplate", text()),
            version: fleet.optional("version", text()),
            subnet: fleet.optional("subnet", text()),
        }
    }
}

impl ScaleTarget {
    fn read(scale: &mut Section<'_, '_>) -> Self {
        Self {
            kind: scale.required("kind", choice()),
            name: scale.required("name", text()),
            namespace: scale.optional("namespace", text()),
            unschedulable_timeout: read_unschedulable_timeout(scale),
        }
    }
}

impl WorkersTemplate {
    fn read(workers: &mut Section<'_, '_>) -> Self {
        Self {
            template: workers.required("template", text()),
            namespace: workers.optional("namespace", text()),
            unschedulable_timeout: read_unschedulable_timeout(workers),
        }
    }
}

fn read_unschedulable_timeout(section: &mut Section<'_, '_>) -> Duration {
    let range = Duration::from_secs(1)..=UNSCHEDULABLE_TIMEOUT_MAX;
    section.or("unschedulableTimeout", duration(range), UNSCHEDULABLE_TIMEOUT)
}
