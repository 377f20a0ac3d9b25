//! Where the fleet policy comes from. The last valid one stays in force.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::policy::FleetPolicy;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::resource::PolicyResource;

/// Time between two looks: a changed `ConfigMap` takes a minute to arrive anyway, and a resource is
/// one small read.
const LOOK_EVERY: Duration = Duration::from_secs(3);

/// Longest policy file: ten times the longest that is legal.
const FILE_LIMIT_BYTES: u64 = 1 << 20;

/// Where to look for changes.
#[derive(Debug, Clone)]
pub enum PolicySource {
    /// The policy does not change.
    Fixed,
    /// The file is read again and again.
    File(PathBuf),
    /// The custom resource is read again and again.
    Resource(Box<PolicyResource>),
}

/// The newest text of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PolicyText {
    /// What messages call it.
    pub name: String,
    pub text: String,
    /// The generation of the resource that has it.
    pub generation: Option<i64>,
}

/// The policy in force, and what is wrong with its successor.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyState {
    /// The policy in force.
    pub policy: Arc<FleetPolicy>,
    /// Why the newest text that was read is not in force.
    pub problem: Option<String>,
    /// Why no text could be read lately; that says nothing about the policy.
    pub unread: Option<Unread>,
    /// The generation of the resource that was read last, in force or not.
    pub generation: Option<i64>,
}

/// Why no text can be read, and since when.
#[derive(Debug, Clone, PartialEq)]
pub struct Unread {
    /// In words.
    pub why: String,
    /// Since when.
    pub since: Instant,
}

impl PolicyState {
    /// This policy, with nothing wrong.
    pub fn new(policy: FleetPolicy) -> Self {
        Self { policy: Arc::new(policy), problem: None, unread: None, generation: None }
    }
}

/// Watches the source until `shutdown` and publishes every change.
pub async fn watch_policy(
    source: PolicySource,
    state: watch::Sender<PolicyState>,
    shutdown: CancellationToken,
) {
    let mut seen = None;
    loop {
        let text = match &source {
            PolicySource::Fixed => return,
            PolicySource::File(path) => read(path).await,
            PolicySource::Resource(resource) => resource.read().await,
        };
        if seen.as_ref() != Some(&text) {
            take_over(&text, &state);
            seen = Some(text);
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = shutdown.cancelled() => return,
        }
    }
}

async fn read(path: &std::path::Path) -> Result<PolicyText, String> {
    let name = path.display().to_string();
    let path = path.to_owned();
    let read = tokio::task::spawn_blocking(move || {
        let length = std::fs::metadata(&path)?.len();
        if length > FILE_LIMIT_BYTES {
            let problem = format!("must be at most {FILE_LIMIT_BYTES} bytes, got {length}");
            return Err(std::io::Error::other(problem));
        }
        std::fs::read_to_string(&path)
    });
    match read.await {
        Ok(Ok(text)) => Ok(PolicyText { name, text, generation: None }),
        Ok(Err(error)) => Err(format!("{name}: {error}")),
        Err(error) => Err(format!("{name}: {error}")),
    }
}

/// A policy that this controller can follow.
///
/// # Errors
/// What is wrong with the text, or what of it this version cannot do.
pub(crate) fn parse(text: &PolicyText) -> Result<FleetPolicy, String> {
    let name = &text.name;
    let policy = FleetPolicy::parse(&text.text, name).map_err(|errors| errors.to_string())?;
    let unsupported = policy.unsupported_sizing();
    if !unsupported.is_empty() {
        return Err(format!("{name}: {}", unsupported.join("; ")));
    }
    Ok(policy)
}

/// Puts a text into force when it is valid, belongs to the same run, and says something new.
fn take_over(text: &Result<PolicyText, String>, state: &watch::Sender<PolicyState>) {
    let text = match text {
        Ok(text) => text,
        Err(problem) => {
            let since = state.borrow().unread.as_ref().map(|unread| unread.since);
            if since.is_none() {
                tracing::warn!(%problem, "policy cannot be read, what was read last counts");
            }
            let since = since.unwrap_or_else(Instant::now);
            let unread = Unread { why: problem.clone(), since };
            state.send_modify(|state| state.unread = Some(unread));
            return;
        }
    };
    let in_force = state.borrow().policy.clone();
    let generation = text.generation;
    let outcome = parse(text).and_then(|policy| match fixed(&in_force, &policy) {
        None => Ok(policy),
        Some(problem) => Err(format!("{}: {problem}", text.name)),
    });
    match outcome {
        Ok(policy) => {
            let is_new = policy != *in_force;
            let policy = if is_new { Arc::new(policy) } else { in_force };
            if is_new {
                tracing::info!("policy changed");
            }
            state.send_replace(PolicyState { policy, problem: None, unread: None, generation });
        }
        Err(problem) => {
            tracing::error!(%problem, "policy is not valid, the last valid one stays");
            state.send_modify(|state| {
                state.problem = Some(problem);
                state.unread = None;
                state.generation = generation;
            });
        }
    }
}

/// What a policy changes of the one in force although a run keeps it for ever, if it does.
fn fixed(in_force: &FleetPolicy, policy: &FleetPolicy) -> Option<String> {
    let stages = |policy: &FleetPolicy| match policy.queue.stages.len() {
        1 => "[generate]",
        _ => "[generate, reward]",
    };
    let kept = [
        ("metadata.name", in_force.run.to_string(), policy.run.to_string()),
        ("spec.queue.shards", in_force.queue.shards.to_string(), policy.queue.shards.to_string()),
        ("spec.queue.stages", stages(in_force).to_owned(), stages(policy).to_owned()),
    ];
    let (key, expected, got) = kept.into_iter().find(|(_, expected, got)| expected != got)?;
    Some(format!("{key} must stay {expected} while the run lasts, got {got}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(run: &str, max_replicas: u32) -> String {
        format!(
            "apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {{name: {run}}}
spec:
  trainer: {{groupsPerStep: 2, groupSize: 1}}
  rollout: {{maxReplicas: {max_replicas}, pools: [spot]}}
  pools:
    - {{name: spot, provider: asg, autoScalingGroup: a, instanceType: p5en.48xlarge,
       market: spot, maxNodes: 8}}
"
        )
    }

    #[test]
    fn last_valid_policy_stays_in_force() {
        let policy = FleetPolicy::parse(&text("run", 4), "test").expect("valid");
        let (sender, seen) = watch::channel(PolicyState::new(policy));
        let take_over = |text: Result<String, &str>| {
            let named = |text| PolicyText { name: "test".to_owned(), text, generation: Some(1) };
            take_over(&text.map(named).map_err(str::to_owned), &sender);
        };
        let max = || seen.borrow().policy.rollout.max_replicas;
        let problem = || seen.borrow().problem.clone();

        take_over(Ok(text("run", 6)));
        assert_eq!((max(), problem()), (6, None));
        take_over(Ok(text("run", 6).replace("spot]", "none]")));
        assert_eq!(max(), 6);
        assert!(problem().is_some_and(|problem| problem.contains("test:")), "{:?}", problem());
        take_over(Ok(text("another", 7)));
        assert_eq!(max(), 6);
        assert!(problem().is_some_and(|problem| problem.contains("must stay run")));
        take_over(Ok(text("run", 8).replace("spec:", "spec:\n  queue: {shards: 8}")));
        assert_eq!(max(), 6);
        let refused = problem().expect("refused");
        assert!(refused.contains("spec.queue.shards must stay 4 while the run lasts, got 8"));
        let of_two_nodes = text("run", 4).replace("maxReplicas", "nodesPerReplica: 2, maxReplicas");
        take_over(Ok(of_two_nodes));
        assert_eq!(max(), 6, "what cannot be run is not put into force");
        let refused = problem();
        take_over(Err("no such file"));
        assert_eq!((max(), problem()), (6, refused), "what was read last counts");
        let unread = seen.borrow().unread.clone().expect("told");
        assert_eq!(unread.why, "no such file");
        take_over(Err("permission denied"));
        let later = seen.borrow().unread.clone().expect("told");
        assert_eq!((later.why.as_str(), later.since), ("permission denied", unread.since));
        take_over(Ok(text("run", 6)));
        assert_eq!((max(), problem()), (6, None), "the old text is well again");
        assert_eq!(seen.borrow().unread, None);
    }
}
