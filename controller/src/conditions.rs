//! The conditions of a fleet policy: what an operator has to know before anything else.
//!
//! Messages hold nothing that changes by itself from tick to tick, so that an unchanged standing is
//! not written again.

use ebbtide_core::scale::{CapacityReason, Reason, Role, ScalePlan};
use serde::Serialize;

/// The kinds of conditions, in the order in which they are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum ConditionKind {
    /// The newest policy is in force, and everything that it needs is read.
    Ready,
    /// A signal is unknown: nothing is lowered meanwhile.
    SignalStale,
    /// Less capacity can be had than is wanted.
    CapacityShort,
    /// Somebody else sets the size of a pool.
    ConflictingWriter,
    /// The newest policy is refused; the last valid one stays in force.
    PolicyInvalid,
    /// Something that the policy asks for can never be had: a pool holds no whole replica, or the
    /// deadline cannot be met.
    Infeasible,
}

impl ConditionKind {
    /// The word in the resource.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::SignalStale => "SignalStale",
            Self::CapacityShort => "CapacityShort",
            Self::ConflictingWriter => "ConflictingWriter",
            Self::PolicyInvalid => "PolicyInvalid",
            Self::Infeasible => "Infeasible",
        }
    }

    /// Whether it is good when it holds.
    pub fn is_good(self) -> bool {
        self == Self::Ready
    }
}

/// One condition as it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Which.
    pub kind: ConditionKind,
    /// Whether it holds; none while nobody can tell.
    pub holds: Option<bool>,
    /// One word.
    pub reason: &'static str,
    /// In words; may be empty.
    pub message: String,
}

impl Condition {
    /// `True`, `False` or `Unknown`, as Kubernetes writes it.
    pub fn status(&self) -> &'static str {
        match self.holds {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        }
    }
}

/// What conditions follow from.
pub(crate) struct Facts<'a> {
    /// What was planned for each worker group, the rollouts first.
    pub groups: Vec<GroupFacts<'a>>,
    /// What could not be read, in words.
    pub problems: &'a [String],
    pub policy_problem: Option<&'a str>,
}

/// What conditions follow from of one worker group.
pub(crate) struct GroupFacts<'a> {
    pub role: Role,
    pub plan: &'a ScalePlan,
    /// Replicas that work; none while that is unknown.
    pub ready: Option<u64>,
}

impl GroupFacts<'_> {
    /// A message that says which group it is about, unless that is the rollouts.
    fn say(&self, message: String) -> String {
        if self.role.is_rollout() { message } else { format!("{}: {message}", self.role) }
    }
}

/// The conditions, each kind once.
pub(crate) fn judge(facts: &Facts<'_>) -> Vec<Condition> {
    let stale = signal_stale(facts);
    let infeasible = infeasible(facts);
    let invalid = policy_invalid(facts.policy_problem);
    let is_hopeless = |reason: &Reason| matches!(reason, Reason::Infeasible { .. });
    let hindrances = [
        (&invalid, invalid.holds == Some(true)),
        (&stale, stale.holds == Some(true)),
        (&infeasible, facts.groups.iter().any(|it| it.plan.reasons.iter().any(is_hopeless))),
    ];
    let hindrance = hindrances.into_iter().find_map(|(kind, hinders)| hinders.then_some(kind));
    let ready = Condition {
        kind: ConditionKind::Ready,
        holds: Some(hindrance.is_none()),
        reason: hindrance.map_or("InForce", |hindrance| hindrance.kind.as_str()),
        message: hindrance.map_or_else(String::new, |hindrance| hindrance.message.clone()),
    };
    vec![ready, stale, capacity_short(facts), conflicting_writer(facts), invalid, infeasible]
}

/// The standing of a policy that is not in force because there is nothing in force yet.
pub(crate) fn refused(problem: &str) -> Vec<Condition> {
    let invalid = policy_invalid(Some(problem));
    let ready = Condition {
        kind: ConditionKind::Ready,
        holds: Some(false),
        reason: ConditionKind::PolicyInvalid.as_str(),
        message: problem.to_owned(),
    };
    vec![ready, invalid]
}

/// A condition that holds with each of these messages, and does not without any.
fn holding(
    kind: ConditionKind,
    messages: Vec<String>,
    reason: &'static str,
    otherwise: &'static str,
) -> Condition {
    let holds = !messages.is_empty();
    let reason = if holds { reason } else { otherwise };
    Condition { kind, holds: Some(holds), reason, message: messages.join("; ") }
}

fn signal_stale(facts: &Facts<'_>) -> Condition {
    let of_plans = each_reason(facts, |_, reason| match reason {
        Reason::SignalUnknown { signal, .. } => Some(format!("{} is unknown", signal.as_str())),
        Reason::SizeUnknown { pool, .. } => Some(format!("size of pool {pool} is unknown")),
        _ => None,
    });
    let messages = facts.problems.iter().cloned().chain(of_plans).collect();
    holding(ConditionKind::SignalStale, messages, "Unreadable", "AllRead")
}

/// What the reasons of all plans have to say, in words.
fn each_reason(
    facts: &Facts<'_>,
    say: impl Fn(&GroupFacts<'_>, &Reason) -> Option<String>,
) -> Vec<String> {
    let of_group = |group: &GroupFacts<'_>| -> Vec<String> {
        let said = group.plan.reasons.iter().filter_map(|reason| say(group, reason));
        said.map(|message| group.say(message)).collect()
    };
    facts.groups.iter().flat_map(of_group).collect()
}

fn policy_invalid(problem: Option<&str>) -> Condition {
    let messages = problem.map(str::to_owned).into_iter().collect();
    holding(ConditionKind::PolicyInvalid, messages, "Refused", "Valid")
}

/// What can never be had. All else is had all the same, unless no pool holds a replica.
fn infeasible(facts: &Facts<'_>) -> Condition {
    let all = facts.groups.iter().flat_map(|group| &group.plan.reasons);
    let found = all.filter_map(|reason| {
        let Reason::Capacity(capacity) = reason else {
            let is_hopeless = matches!(reason, Reason::Infeasible { .. });
            return is_hopeless.then(|| ("ReplicaLargerThanPools", reason.to_string()));
        };
        match capacity {
            CapacityReason::PoolTooSmall { pool, nodes_per_replica } => {
                let message = format!("pool {pool} cannot hold {nodes_per_replica} nodes");
                Some(("ReplicaLargerThanPool", message))
            }
            CapacityReason::DeadlineInfeasible { by, .. } => {
                let message = format!("not even the most replicas would be ready by {by}");
                Some(("DeadlineTooSoon", message))
            }
            CapacityReason::DeadlinePassed { updates, .. } => {
                let message = format!("the deadline has passed before {updates} updates");
                Some(("DeadlinePassed", message))
            }
            _ => None,
        }
    });
    let (reasons, messages): (Vec<&'static str>, Vec<String>) = found.unzip();
    let reason = reasons.first().copied().unwrap_or("Fits");
    holding(ConditionKind::Infeasible, messages, reason, "Fits")
}

fn conflicting_writer(facts: &Facts<'_>) -> Condition {
    let messages = each_reason(facts, |_, reason| match reason {
        Reason::ConflictingWriter { pool, asked, found, .. } => Some(format!(
            "somebody else set pool {pool} to {found} nodes, {asked} were asked for: it is left \
             alone for a while"
        )),
        _ => None,
    });
    holding(ConditionKind::ConflictingWriter, messages, "SizeSetByOthers", "OnlyWriter")
}

/// Benched pools matter only while replicas are missing.
fn capacity_short(facts: &Facts<'_>) -> Condition {
    let kind = ConditionKind::CapacityShort;
    let is_unread = |group: &&GroupFacts<'_>| group.plan.desired.is_none() || group.ready.is_none();
    if let Some(group) = facts.groups.iter().find(is_unread) {
        let message = group.say("the size or the replicas are unknown".to_owned());
        return Condition { kind, holds: None, reason: "Unreadable", message };
    }
    let messages = each_reason(facts, |group, reason| match reason {
        Reason::NoRoom { .. } => Some("no pool has room for what is missing".to_owned()),
        Reason::PoolBenched { pool, kind, .. }
            if group.ready < group.plan.desired.map(u64::from) =>
        {
            Some(format!("pool {pool} is benched ({})", kind.as_str()))
        }
        _ => None,
    });
    holding(kind, messages, "PoolsRefuse", "Enough")
}

#[cfg(test)]
mod tests;
