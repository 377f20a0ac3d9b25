//! Where the fleet policy comes from. The last valid one stays in force.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::policy::FleetPolicy;
use tokio::sync::watch;
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
    pub unread: Option<String>,
    /// The generation of the resource that was read last, in force or not.
    pub generation: Option<i64>,
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
            if state.borrow().unread.is_none() {
                tracing::warn!(%problem, "policy cannot be read, what was read last counts");
            }
            state.send_modify(|state| state.unread = Some(problem.clone()));
            return;
        }
    };
    let in_force = state.borrow().policy.clone();
    let generation = text.generation;
    let outcome = parse(text).and_then(|policy| {
        if policy.run == in_force.run {
            return Ok(policy);
        }
        let (expected, got) = (&in_force.run, &policy.run);
        Err(format!("metadata.name must stay {expected} while the controller runs, got {got}"))
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
        let of_two_nodes = text("run", 4).replace("maxReplicas", "nodesPerReplica: 2, maxReplicas");
        take_over(Ok(of_two_nodes));
        assert_eq!(max(), 6, "what cannot be run is not put into force");
        let refused = problem();
        take_over(Err("no such file"));
        assert_eq!((max(), problem()), (6, refused), "what was read last counts");
        assert_eq!(seen.borrow().unread.as_deref(), Some("no such file"));
        take_over(Ok(text("run", 6)));
        assert_eq!((max(), problem()), (6, None), "the old text is well again");
        assert_eq!(seen.borrow().unread, None);
    }
}
