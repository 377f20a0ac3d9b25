//! The status of the resource, from snapshots of the controller.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::scale::Role;
use ebbtide_core::time::UnixMillis;
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{PolicyResource, Told};
use crate::conditions::{self, Condition};
use crate::status::{ControllerStatus, Snapshot};

/// Least time between two writes.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// How long what was read of the resource counts: it may have been made anew, or restored, since.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Conflicts in a row that are answered by another try.
const CONFLICTS_LIMIT: usize = 4;

/// Most actions and reasons that the status repeats.
const LINES_LIMIT: usize = 64;

/// Longest line, in characters.
const LINE_LIMIT: usize = 1024;

/// Writes the status until `shutdown`, while this controller leads.
pub(crate) async fn report_while_leading(
    resource: PolicyResource,
    status: ControllerStatus,
    now: fn() -> UnixMillis,
    shutdown: CancellationToken,
) {
    let mut snapshots = status.follow();
    let mut reporter = Reporter::default();
    let mut decision = Decision::default();
    loop {
        tokio::select! {
            changed = snapshots.changed() => if changed.is_err() { return },
            () = shutdown.cancelled() => return,
        }
        let snapshot: Arc<Snapshot> = snapshots.borrow_and_update().clone();
        if !snapshot.is_leader {
            // Another writes meanwhile: what stands there is read anew.
            reporter = Reporter::default();
            continue;
        }
        decision.note(&snapshot);
        let standing = Standing::of(&snapshot, &decision);
        tokio::select! {
            () = reporter.publish(&resource, &standing, now()) => {}
            () = shutdown.cancelled() => return,
        }
        tokio::select! {
            () = tokio::time::sleep(WRITE_EVERY) => {}
            () = shutdown.cancelled() => return,
        }
    }
}

/// The last decision that was one: the reasons of a quiet tick are those of the last decision, with
/// other numbers.
#[derive(Default)]
struct Decision {
    /// What was desired, why nothing was carried out, and what was to be done.
    gist: Option<(Option<u32>, Option<String>, Vec<String>)>,
    shown: Value,
    /// What the run has cost, as of the last verified update: it grows with every tick.
    cost: Option<(u64, Value)>,
}

impl Decision {
    fn note(&mut self, snapshot: &Snapshot) {
        self.note_cost(snapshot);
        let Snapshot { desired, held, actions, .. } = snapshot;
        let is_same = self.gist.as_ref().is_some_and(|(known, hindrance, done)| {
            known == desired && hindrance == held && (actions.is_empty() || done == actions)
        });
        if is_same {
            return;
        }
        self.gist = Some((*desired, held.clone(), actions.clone()));
        let lines = |lines: &[String]| -> Vec<String> {
            lines.iter().take(LINES_LIMIT).map(|line| shorten(line, LINE_LIMIT)).collect()
        };
        self.shown = json!({
            "at": snapshot.ticked_at.to_string(),
            "actions": lines(&snapshot.actions),
            "reasons": lines(&snapshot.reasons),
            "held": snapshot.held.as_deref().map(|held| shorten(held, LINE_LIMIT)),
        });
    }
}

impl Decision {
    fn note_cost(&mut self, snapshot: &Snapshot) {
        let Some(ledger) = &snapshot.ledger else { return };
        let updates = ledger.verified_updates;
        if self.cost.as_ref().is_some_and(|(known, _)| *known == updates) {
            return;
        }
        let shown = json!({
            "dollars": ledger.is_priced().then(|| ledger.dollars()),
            "dollarsPerVerifiedUpdate": ledger.dollars_per_verified_update(),
            "staticOnDemandDollars": ledger.static_on_demand_dollars(),
            "staticSpotDollars": ledger.static_spot_dollars(),
            "verifiedUpdates": updates,
        });
        self.cost = Some((updates, shown));
    }
}

/// The sizes of a worker group.
fn sizes(
    running: Option<u32>,
    desired: Option<u32>,
    replicas: &BTreeMap<&'static str, u64>,
) -> Value {
    let count = |state: &str| replicas.get(state).copied().unwrap_or(0);
    // Nothing is no state of theirs: unknown is null, which takes the field away.
    let known = |state| (!replicas.is_empty()).then(|| count(state));
    json!({
        "running": running,
        "desired": desired,
        "ready": known("ready"),
        "pending": known("pending"),
        "draining": known("draining"),
    })
}

/// What the status is to say.
pub(super) struct Standing {
    generation: Option<i64>,
    /// The generation of the leadership under which it is written; 0 while there is none.
    leader: u64,
    conditions: Vec<Condition>,
    /// Everything else.
    fields: Map<String, Value>,
}

impl Standing {
    /// Nothing is in force yet, and this is why.
    pub fn refused(problem: &str, generation: Option<i64>) -> Self {
        let conditions = conditions::refused(problem);
        Self { generation, leader: 0, conditions, fields: Map::new() }
    }

    fn of(snapshot: &Snapshot, decision: &Decision) -> Self {
        // What the policy has no more is null, which takes the field away.
        let service = |role: Role| {
            let found = snapshot.services.iter().find(|service| service.role == role);
            found.map(|it| sizes(it.running, it.desired, &it.replicas))
        };
        let fields = json!({
            "mode": snapshot.mode,
            "leaderGeneration": snapshot.generation,
            "limitingStage": snapshot.limiting_stage,
            "rollout": sizes(snapshot.running, snapshot.desired, &snapshot.replicas),
            "reward": service(Role::Reward),
            "environment": service(Role::Environment),
            "lastDecision": decision.shown,
            "cost": decision.cost.as_ref().map(|(_, cost)| cost),
        });
        let fields = if let Value::Object(fields) = fields { fields } else { Map::new() };
        Self {
            generation: snapshot.policy_generation,
            leader: snapshot.generation,
            conditions: snapshot.conditions.clone(),
            fields,
        }
    }

    /// The status as a merge patch. A condition keeps the time of its last transition from
    /// `before` while its status is the same.
    fn to_patch(&self, before: &Value, now: UnixMillis) -> Value {
        let conditions: Vec<Value> = self
            .conditions
            .iter()
            .map(|condition| {
                let stood = standing_of(before, condition);
                let same = stood.filter(|stood| stood["status"] == condition.status());
                let since = same.map(|stood| stood["lastTransitionTime"].clone());
                let mut shown = json!({
                    "type": condition.kind.as_str(),
                    "status": condition.status(),
                    "lastTransitionTime": since.unwrap_or_else(|| json!(whole_seconds(now))),
                    "reason": condition.reason,
                    "message": shorten(&condition.message, 32 * LINE_LIMIT),
                });
                if let Some(generation) = self.generation {
                    shown["observedGeneration"] = json!(generation);
                }
                shown
            })
            .collect();
        let mut patch = self.fields.clone();
        let of_leaders = before["conditions"].as_array().filter(|_| self.leader == 0);
        let is_other = |stood: &&Value| {
            self.conditions.iter().all(|condition| stood["type"] != condition.kind.as_str())
        };
        let others = of_leaders.into_iter().flatten().filter(is_other).cloned();
        let conditions: Vec<Value> = conditions.into_iter().chain(others).collect();
        patch.insert("conditions".to_owned(), json!(conditions));
        patch.insert("observedGeneration".to_owned(), json!(self.generation));
        Value::Object(patch)
    }

    /// Whether a newer leader has written this status; to one who waits for a policy that is any
    /// leader who has judged the same text.
    fn is_outdated(&self, before: &Value) -> bool {
        let newest = before["leaderGeneration"].as_u64().unwrap_or(0);
        match self.leader {
            0 => newest > 0 && before["observedGeneration"].as_i64() == self.generation,
            own => own < newest,
        }
    }

    /// What has changed for whoever follows events. What was well from the beginning is no news.
    fn news(&self, before: &Value) -> Vec<Told> {
        let news = self.conditions.iter().filter_map(|condition| {
            let stood = standing_of(before, condition).map(|stood| stood["status"].clone());
            let is_good = condition.holds == Some(condition.kind.is_good());
            let is_news = match stood.as_ref().and_then(Value::as_str) {
                Some("Unknown") | None => !is_good,
                Some(stood) => stood != condition.status(),
            };
            let is_news = is_news && condition.holds.is_some();
            let kind = condition.kind.as_str();
            let holds = condition.holds == Some(true);
            let reason = if holds { kind.to_owned() } else { format!("Not{kind}") };
            let message = if condition.message.is_empty() {
                condition.reason.to_owned()
            } else {
                shorten(&condition.message, LINE_LIMIT)
            };
            is_news.then_some(Told { is_warning: !is_good, reason, message })
        });
        news.collect()
    }
}

fn standing_of<'a>(status: &'a Value, condition: &Condition) -> Option<&'a Value> {
    let known = status["conditions"].as_array()?;
    known.iter().find(|known| known["type"] == condition.kind.as_str())
}

/// The resource as it stands in the cluster.
struct Stands {
    status: Value,
    uid: Option<String>,
    version: String,
    read_at: Instant,
}

impl Stands {
    async fn read(resource: &PolicyResource) -> Result<Self, String> {
        let object = resource.get().await?;
        let object = object.ok_or_else(|| format!("{resource} does not exist"))?;
        let text = |name: &str| object["metadata"][name].as_str().map(str::to_owned);
        let (uid, version) = (text("uid"), text("resourceVersion").unwrap_or_default());
        Ok(Self { status: object["status"].clone(), uid, version, read_at: Instant::now() })
    }
}

/// Writes what has changed.
#[derive(Default)]
pub(super) struct Reporter {
    stands: Option<Stands>,
    last_problem: Option<String>,
}

impl Reporter {
    /// Brings the status to `standing`; what cannot be written is logged once and tried again with
    /// the next standing.
    pub async fn publish(
        &mut self,
        resource: &PolicyResource,
        standing: &Standing,
        now: UnixMillis,
    ) {
        let outcome = self.try_publish(resource, standing, now).await;
        if let Err(problem) = &outcome {
            // Somebody may have made the resource anew.
            self.stands = None;
            if self.last_problem.as_ref() != Some(problem) {
                tracing::warn!(%problem, "status of the policy is not written");
            }
        }
        self.last_problem = outcome.err();
    }

    async fn try_publish(
        &mut self,
        resource: &PolicyResource,
        standing: &Standing,
        now: UnixMillis,
    ) -> Result<(), String> {
        for _ in 0..CONFLICTS_LIMIT {
            let stands = self.stands.take().filter(|it| it.read_at.elapsed() < LOOK_AGAIN);
            let stands = match stands {
                Some(stands) => stands,
                None => Stands::read(resource).await?,
            };
            if standing.is_outdated(&stands.status) {
                return Err(format!("a newer leader has written the status of {resource}"));
            }
            let patch = standing.to_patch(&stands.status, now);
            let after = merge(&stands.status, &patch);
            let version = if after == stands.status {
                Some(stands.version)
            } else {
                resource.write_status(&patch, &stands.version).await?
            };
            // Somebody was first, with another policy or under a newer leadership.
            let Some(version) = version else { continue };
            let (uid, read_at) = (stands.uid.clone(), stands.read_at);
            self.stands = Some(Stands { status: after, uid, version, read_at });
            for told in standing.news(&stands.status) {
                resource.tell(told, stands.uid.clone(), now).await?;
            }
            return Ok(());
        }
        Err(format!("others write {resource} all the time"))
    }
}

/// `before` with a merge patch (RFC 7386) applied.
fn merge(before: &Value, patch: &Value) -> Value {
    let Value::Object(patch) = patch else { return patch.clone() };
    let mut merged = before.as_object().cloned().unwrap_or_default();
    for (key, value) in patch {
        if value.is_null() {
            merged.remove(key);
        } else {
            let known = merged.get(key).cloned().unwrap_or(Value::Null);
            merged.insert(key.clone(), merge(&known, value));
        }
    }
    Value::Object(merged)
}

/// Kubernetes writes moments in whole seconds.
fn whole_seconds(now: UnixMillis) -> String {
    UnixMillis(now.0 / 1000 * 1000).to_string()
}

fn shorten(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        None => text.to_owned(),
        Some(_) => text.chars().take(limit - 1).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests;
