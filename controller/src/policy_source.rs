//! Where the fleet policy comes from. The last valid one stays in force.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::policy::FleetPolicy;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Time between two looks at a policy file: a changed `ConfigMap` takes a minute to arrive anyway.
const LOOK_EVERY: Duration = Duration::from_secs(3);

/// Longest policy file: ten times the longest that is legal.
const FILE_LIMIT_BYTES: u64 = 1 << 20;

/// Where to look for changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicySource {
    /// The policy does not change.
    Fixed,
    /// The file is read again and again.
    File(PathBuf),
}

/// The policy in force, and what is wrong with its successor.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyState {
    /// The policy in force.
    pub policy: Arc<FleetPolicy>,
    /// Why a newer text is not in force.
    pub problem: Option<String>,
}

/// Watches the source until `shutdown` and publishes every change.
pub async fn watch_policy(
    source: PolicySource,
    state: watch::Sender<PolicyState>,
    shutdown: CancellationToken,
) {
    let PolicySource::File(path) = source else { return };
    let mut seen = None;
    loop {
        let text = read(&path).await;
        if seen.as_ref() != Some(&text) {
            take_over(&path.display().to_string(), &text, &state);
            seen = Some(text);
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = shutdown.cancelled() => return,
        }
    }
}

async fn read(path: &std::path::Path) -> Result<String, String> {
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
        Ok(Ok(text)) => Ok(text),
        Ok(Err(error)) => Err(error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

/// Puts a text into force when it is valid, belongs to the same run, and says something new.
fn take_over(file: &str, text: &Result<String, String>, state: &watch::Sender<PolicyState>) {
    let parsed = match text {
        Ok(text) => FleetPolicy::parse(text, file).map_err(|errors| errors.to_string()),
        Err(problem) => Err(format!("{file}: {problem}")),
    };
    let in_force = state.borrow().policy.clone();
    let outcome = parsed.and_then(|policy| {
        let unsupported = policy.unsupported_sizing();
        if !unsupported.is_empty() {
            return Err(format!("{file}: {}", unsupported.join("; ")));
        }
        if policy.run == in_force.run {
            return Ok(policy);
        }
        let (expected, got) = (&in_force.run, &policy.run);
        Err(format!("metadata.name must stay {expected} while the controller runs, got {got}"))
    });
    match outcome {
        Ok(policy) if policy == *in_force => {
            state.send_modify(|state| state.problem = None);
        }
        Ok(policy) => {
            tracing::info!(file, "policy changed");
            state.send_replace(PolicyState { policy: Arc::new(policy), problem: None });
        }
        Err(problem) => {
            tracing::error!(file, %problem, "policy is not valid, the last valid one stays");
            state.send_modify(|state| state.problem = Some(problem));
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
        let state = PolicyState { policy: Arc::new(policy), problem: None };
        let (sender, seen) = watch::channel(state);
        let max = || seen.borrow().policy.rollout.max_replicas;
        let problem = || seen.borrow().problem.clone();

        take_over("test", &Ok(text("run", 6)), &sender);
        assert_eq!((max(), problem()), (6, None));
        take_over("test", &Ok(text("run", 6).replace("spot]", "none]")), &sender);
        assert_eq!(max(), 6);
        assert!(problem().is_some_and(|problem| problem.contains("test:")), "{:?}", problem());
        take_over("test", &Ok(text("another", 7)), &sender);
        assert_eq!(max(), 6);
        assert!(problem().is_some_and(|problem| problem.contains("must stay run")));
        let of_two_nodes = text("run", 4).replace("maxReplicas", "nodesPerReplica: 2, maxReplicas");
        take_over("test", &Ok(of_two_nodes), &sender);
        assert_eq!(max(), 6, "what cannot be run is not put into force");
        take_over("test", &Err("no such file".to_owned()), &sender);
        assert_eq!(max(), 6);
        take_over("test", &Ok(text("run", 6)), &sender);
        assert_eq!((max(), problem()), (6, None), "the old text is well again");
    }
}
