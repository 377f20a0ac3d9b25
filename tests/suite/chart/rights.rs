//! What the accounts of a release may do: what the code does, and nothing else.

use ebbtide_harness::{ControlPlane, Error, LwsController, require};

use super::release::{AGENT, CONTROLLER, LEASE, RUN, Release};

#[tokio::test]
async fn accounts_may_do_what_the_code_does_and_nothing_else() {
    let cluster = require!(ControlPlane::shared().await);
    let release = require!(Release::new(cluster, "chart-rights").await);
    release.install(&[]).await;
    let own = release.name();
    for (part, space, question, expected) in [
        (AGENT, own, "get nodes", true),
        (AGENT, own, "patch nodes", true),
        (AGENT, own, "update nodes", false),
        (AGENT, own, "list nodes", true),
        (AGENT, own, "watch nodes", true),
        (AGENT, own, "delete nodes", false),
        (AGENT, own, "patch nodes --subresource=status", true),
        (AGENT, own, "update nodes --subresource=status", false),
        (AGENT, own, "get nodes --subresource=proxy", false),
        (AGENT, "default", "create events", true),
        (AGENT, "default", "patch events", false),
        (AGENT, own, "create events", false),
        (AGENT, own, "list pods", true),
        (AGENT, "default", "watch pods", true),
        (AGENT, "default", "delete pods", true),
        (AGENT, "default", "create pods --subresource=eviction", true),
        (AGENT, own, "get pods", false),
        (AGENT, own, "create pods", false),
        (AGENT, own, "patch pods", false),
        (AGENT, own, "deletecollection pods", false),
        (AGENT, own, "create pods --subresource=exec", false),
        (AGENT, own, "get poddisruptionbudgets.policy", false),
        (AGENT, own, "get secrets", false),
        (AGENT, own, "get leases.coordination.k8s.io", false),
        (CONTROLLER, own, "get LEASE", true),
        (CONTROLLER, own, "update LEASE", true),
        (CONTROLLER, own, "update LEASE-of-another", false),
        (CONTROLLER, "default", "update LEASE", false),
        (CONTROLLER, own, "delete LEASE", false),
        (CONTROLLER, own, "create leases.coordination.k8s.io", true),
        (CONTROLLER, "default", "create leases.coordination.k8s.io", false),
        (CONTROLLER, own, "get nodes", true),
        (CONTROLLER, own, "list nodes", true),
        (CONTROLLER, own, "patch nodes", true),
        (CONTROLLER, own, "update nodes", false),
        (CONTROLLER, own, "delete nodes", false),
        (CONTROLLER, own, "patch nodes --subresource=status", false),
        (CONTROLLER, own, "list pods", true),
        (CONTROLLER, "default", "list pods", false),
        (CONTROLLER, own, "patch pods --subresource=status", true),
        (CONTROLLER, "default", "patch pods --subresource=status", false),
        (CONTROLLER, own, "patch pods", false),
        (CONTROLLER, own, "delete pods", false),
        (CONTROLLER, own, "create pods --subresource=eviction", false),
        (CONTROLLER, own, "get secrets", false),
        (CONTROLLER, own, "get configmaps", false),
        (CONTROLLER, own, "get POLICY", false),
        (CONTROLLER, own, "create events", false),
    ] {
        let answer = is_allowed(&release, part, space, question).await;
        assert_eq!(answer, expected, "{part} in {space}: {question}");
    }
    release.close().await;
}

#[tokio::test]
async fn controller_that_follows_a_resource_may_read_it_and_answer_in_its_status() {
    let cluster = require!(ControlPlane::shared().await);
    let release = require!(Release::new(cluster, "chart-resource").await);
    release.install(&["--set", "controller.policyResource=true"]).await;
    let own = release.name();
    for (space, question, expected) in [
        (own, "get POLICY", true),
        (own, "get POLICY-of-another", false),
        (own, "list fleetpolicies.ebbtide.dev", false),
        (own, "patch POLICY", false),
        (own, "patch POLICY --subresource=status", true),
        (own, "create events", true),
        ("default", "create events", false),
    ] {
        let answer = is_allowed(&release, CONTROLLER, space, question).await;
        assert_eq!(answer, expected, "{space}: {question}");
    }
    let policy = release.admin().get(&["fleetpolicy", RUN, "--namespace", own]).await.unwrap();
    assert_eq!(policy["spec"]["rollout"]["pools"][0], "spot-a", "as it was given: {policy}");
    release.close().await;
}

#[tokio::test]
async fn controller_may_size_what_its_policy_names_and_no_more() {
    let cluster = require!(ControlPlane::shared().await);
    require!(LwsController::start(&cluster).await);
    let release = require!(Release::new(cluster, "chart-sizing").await);
    let policy = |pools: &str| {
        let policy = format!(
            "apiVersion: ebbtide.dev/v1alpha1\nkind: FleetPolicy\nmetadata: {{name: grpo-async}}\n\
             spec: {{trainer: {{groupsPerStep: 4, groupSize: 1}}, rollout: {{maxReplicas: 2, \
             pools: [a]}}, pools: [{pools}]}}\n"
        );
        release.file("policy.yaml", &policy)
    };
    let questions = [
        "update deployments.apps --subresource=scale",
        "patch pods",
        "update statefulsets.apps --subresource=scale",
        "update leaderworkersets.leaderworkerset.x-k8s.io --subresource=scale",
        "create leaderworkersets.leaderworkerset.x-k8s.io",
        "delete leaderworkersets.leaderworkerset.x-k8s.io",
        "update leaderworkersets.leaderworkerset.x-k8s.io",
        "update deployments.apps",
    ];
    let pool = |own: &str| format!("{{name: a, market: spot, maxNodes: 2, {own}}}");
    let scale = |kind: &str| pool(&format!("provider: scale, scale: {{kind: {kind}, name: ep}}"));
    let table = [
        (scale("Deployment"), &[0, 1][..]),
        (scale("StatefulSet"), &[2]),
        (scale("LeaderWorkerSet"), &[3]),
        (pool("provider: workers, workers: {template: ep}"), &[4, 5]),
    ];
    for (number, (pools, allowed)) in table.iter().enumerate() {
        let option = format!("policy={}", policy(pools));
        let options = ["--set-file", option.as_str()];
        if number == 0 {
            release.install(&options).await;
        } else {
            release.upgrade(&options).await;
        }
        for (place, question) in questions.iter().enumerate() {
            let answer = is_allowed(&release, CONTROLLER, release.name(), question).await;
            assert_eq!(answer, allowed.contains(&place), "{pools}: {question}");
        }
    }
    release.close().await;
}

/// What the API server answers to `kubectl auth can-i QUESTION` for the account of a part. `LEASE`
/// and `POLICY` stand for those of the run.
async fn is_allowed(release: &Release, part: &str, space: &str, question: &str) -> bool {
    let account = format!("--as=system:serviceaccount:{}:{}", release.name(), release.object(part));
    let question = question.replace("POLICY", &format!("fleetpolicies.ebbtide.dev/{RUN}"));
    let question = question.replace("LEASE", &format!("leases.coordination.k8s.io/{LEASE}"));
    let question: Vec<&str> = question.split(' ').collect();
    let ask = ["auth", "can-i", "--namespace", space, &account];
    match release.admin().run(&[&ask[..], &question].concat()).await {
        Ok(answer) => answer.trim() == "yes",
        // A plain no is told by the exit status alone.
        Err(Error::Command { stderr, .. }) if !stderr.contains("error") => false,
        Err(error) => panic!("{error}"),
    }
}
