//! The harness itself: each real part starts, does its work and goes.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::{collections::BTreeSet, time::Duration};

use ebbtide_harness::{
    Aemm, ControlPlane, EVENT_LIMIT, Error, Moto, NodeSpec, Program, Redis, RedisCluster,
    RedisSentinels, require, until,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

#[tokio::test]
async fn redis_keeps_its_data_over_a_restart_and_a_kill() {
    let mut redis = require!(Redis::options().appendonly().start().await);
    assert_eq!(ask_redis(&redis, "SET key before").await.unwrap(), "+OK");

    redis.restart().await.unwrap();
    assert_eq!(ask_redis(&redis, "GET key").await.unwrap(), "$6\r\nbefore");

    redis.kill();
    assert!(ask_redis(&redis, "GET key").await.is_err(), "a killed Redis refuses connections");
    redis.restart().await.unwrap();
    assert_eq!(ask_redis(&redis, "GET key").await.unwrap(), "$6\r\nbefore");
}

#[tokio::test]
async fn paused_redis_answers_only_once_it_is_resumed() {
    let redis = require!(Redis::start().await);
    redis.pause().unwrap();
    let question = ask_redis(&redis, "PING");
    tokio::pin!(question);
    let early = tokio::time::timeout(Duration::from_millis(300), &mut question).await;
    assert!(early.is_err(), "a paused Redis answered {early:?}");
    redis.resume().unwrap();
    assert_eq!(question.await.unwrap(), "+PONG");
}

#[tokio::test]
async fn valkey_is_a_server_of_its_own() {
    let valkey = require!(Redis::options().valkey().start().await);
    let facts = valkey.talk(&["INFO", "server"]).await.unwrap().remove(0);
    assert!(facts.contains("server_name:valkey"), "{facts}");
}

#[tokio::test]
async fn cluster_serves_every_slot_and_names_the_master_of_a_key() {
    let cluster = require!(RedisCluster::start(1, Redis::options()).await);
    assert_eq!(cluster.nodes.len(), 6);
    for key in ["a", "b", "c", "d"] {
        let master = &cluster.nodes[cluster.master_of(key).await.unwrap()];
        assert_eq!(master.talk(&["SET", key, "1"]).await.unwrap(), ["OK"]);
    }
}

#[tokio::test]
async fn sentinels_promote_the_replica_of_a_lost_master() {
    let mut set = require!(RedisSentinels::start(1, Redis::options()).await);
    assert_eq!(set.master().await, Some(0));
    set.nodes[0].kill();
    assert_eq!(set.promoted(0).await.unwrap(), 1);
    set.nodes[0].restart().await.unwrap();
    set.settled().await.unwrap();
}

#[tokio::test]
async fn service_that_does_not_start_is_an_error_with_the_end_of_its_log() {
    let refused = Redis::options().arguments(&["--no-such-option", "1"]).start().await;
    let error = match refused {
        Err(Error::Missing(_)) => return drop(require!(refused)),
        other => other.unwrap_err().to_string(),
    };
    assert!(error.contains("redis ended"), "{error}");
    assert!(error.contains("no-such-option"), "{error}");
}

#[tokio::test]
async fn program_is_watched_asked_to_end_and_started_again() {
    let script = "trap 'echo asked; exit 3' TERM; echo up; while :; do read -t 0.1 <> <(:); done";
    let mut program =
        Program::options("script", "/bin/bash").arguments(["-c", script]).start().unwrap();
    program.logged("up", EVENT_LIMIT).await.unwrap();
    assert!(program.is_running());
    let status = program.terminate(EVENT_LIMIT).await.unwrap();
    assert_eq!(status.code(), Some(3));
    assert!(!program.is_running());

    program.start_again().unwrap();
    let early = program.ended(Duration::from_millis(200)).await.unwrap_err().to_string();
    assert!(early.contains("script: its end"), "{early}");
    program.kill();
    assert_eq!(program.process_id(), None);
    assert!(program.log().contains("asked"));
}

#[tokio::test]
async fn moto_answers_for_all_three_services() {
    let moto = require!(Moto::start().await);
    for (service, body) in [
        ("ec2", "Action=DescribeInstances&Version=2016-11-15"),
        ("autoscaling", "Action=DescribeAutoScalingGroups&Version=2011-01-01"),
        ("sqs", "Action=ListQueues&Version=2012-11-05"),
    ] {
        let answer = reqwest::Client::new()
            .post(moto.url())
            .header("Content-Type", "application/x-www-form-urlencoded")
            .header(
                "Authorization",
                format!(
                    "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/{service}/aws4_request, \
                     SignedHeaders=host, Signature=0"
                ),
            )
            .body(body)
            .send()
            .await
            .unwrap();
        assert!(answer.status().is_success(), "{service}: {}", answer.text().await.unwrap());
    }
    moto.reset().await.unwrap();
}

#[tokio::test]
async fn metadata_mock_gives_a_spot_notice_to_clients_with_a_session_token() {
    let aemm = require!(Aemm::start(&["spot", "--action", "terminate", "--imdsv2"]).await);
    let client = reqwest::Client::new();
    let notice = format!("{}/latest/meta-data/spot/instance-action", aemm.base_url());
    assert_eq!(client.get(&notice).send().await.unwrap().status(), 401);
    let session = client
        .put(format!("{}/latest/api/token", aemm.base_url()))
        .header("X-aws-ec2-metadata-token-ttl-seconds", "60")
        .send()
        .await
        .unwrap();
    let answer = client
        .get(&notice)
        .header("X-aws-ec2-metadata-token", session.text().await.unwrap())
        .send()
        .await
        .unwrap();
    let notice: Value = answer.json().await.unwrap();
    assert_eq!(notice["action"], "terminate");
}

#[tokio::test]
async fn deployment_gets_available_on_played_nodes() {
    let cluster = require!(ControlPlane::shared().await);
    let space = cluster.unique_name("available");
    let labels = [("ebbtide.dev/role", space.as_str())];
    let nodes = NodeSpec::gpu_nodes(&space, 3, &labels);
    cluster.add_nodes(&nodes).await.unwrap();
    cluster.create_namespace(&space).await.unwrap();
    let kubectl = cluster.kubectl();

    let node = kubectl.get(&["node", nodes[2].name()]).await.unwrap();
    assert_eq!(node["status"]["allocatable"]["nvidia.com/gpu"], "8");
    assert_eq!(node["status"]["allocatable"]["vpc.amazonaws.com/efa"], "16");

    kubectl.apply(&gpu_deployment(&space)).await.unwrap();
    let wait = ["rollout", "status", "deployment/engine", "-n", &space, "--timeout=60s"];
    kubectl.run(&wait).await.unwrap();

    let pods = kubectl.get(&["pods", "-n", &space]).await.unwrap();
    let hosts: Vec<&str> = pods["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pod| pod["spec"]["nodeName"].as_str().unwrap())
        .collect();
    assert_eq!(hosts.len(), 2);
    let addresses: BTreeSet<&str> = pods["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pod| pod["status"]["hostIP"].as_str().unwrap())
        .collect();
    assert_eq!(addresses.len(), 2, "each node has an address of its own");
    assert_ne!(hosts[0], hosts[1], "two pods with 8 GPUs each do not fit on one node");

    // The namespace itself takes ten more seconds to go; no test waits for that.
    kubectl.run(&["delete", "namespace", &space, "--wait=false"]).await.unwrap();
    let names: Vec<&str> = nodes.iter().map(NodeSpec::name).collect();
    cluster.remove_nodes(&names).await.unwrap();
}

#[tokio::test]
async fn helm_talks_to_the_server() {
    let cluster = require!(ControlPlane::shared().await);
    let helm = require!(cluster.helm());
    let releases = helm.run(&["list", "--all-namespaces", "--output", "json"]).await.unwrap();
    assert_eq!(releases.trim(), "[]");
}

#[tokio::test]
async fn narrow_user_may_do_only_what_is_bound_to_them() {
    let cluster = require!(ControlPlane::shared().await);
    let space = cluster.unique_name("narrow");
    cluster.create_namespace(&space).await.unwrap();
    let kubeconfig = require!(cluster.narrow_kubeconfig("narrow-1"));
    let narrow = cluster.kubectl().clone().with_kubeconfig(&kubeconfig);

    let refused = narrow.run(&["get", "pods", "-n", &space]).await.unwrap_err().to_string();
    assert!(refused.contains("Forbidden"), "{refused}");

    let bind = ["create", "rolebinding", "reader", "-n", &space];
    let to = ["--clusterrole=view", "--user=narrow-1"];
    cluster.kubectl().run(&[&bind[..], &to[..]].concat()).await.unwrap();
    until("the binding to take effect", EVENT_LIMIT, || async {
        narrow.run(&["get", "pods", "-n", &space]).await.ok()
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn service_account_is_known_by_its_minted_token() {
    let cluster = require!(ControlPlane::shared().await);
    let space = cluster.unique_name("account");
    cluster.create_namespace(&space).await.unwrap();
    let kubeconfig = cluster.account_kubeconfig(&space, "default").await.unwrap();
    let account = cluster.kubectl().clone().with_kubeconfig(&kubeconfig);
    let who = account.run(&["auth", "whoami", "--output", "json"]).await.unwrap();
    let expected = format!("system:serviceaccount:{space}:default");
    assert!(who.contains(&expected), "{who}");
}

#[tokio::test]
async fn api_server_goes_away_and_comes_back_with_its_data() {
    let mut cluster = require!(ControlPlane::start().await);
    cluster.create_namespace("kept").await.unwrap();
    require!(cluster.stop_apiserver().await);
    let away = cluster.kubectl().run(&["get", "namespace", "kept"]).await;
    assert!(away.is_err(), "nothing answers while it is away");
    cluster.start_apiserver().await.unwrap();
    cluster.kubectl().run(&["get", "namespace", "kept"]).await.unwrap();
}

fn gpu_deployment(space: &str) -> Value {
    let labels = json!({ "app": "engine" });
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": "engine", "namespace": space },
        "spec": {
            "replicas": 2,
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "nodeSelector": { "ebbtide.dev/role": space },
                    "initContainers": [{ "name": "prepare", "image": "played" }],
                    "containers": [{
                        "name": "engine",
                        "image": "played",
                        "resources": { "limits": { "nvidia.com/gpu": "8" } },
                    }],
                },
            },
        },
    })
}

/// One command in Redis's inline form; the answer without its last line end.
async fn ask_redis(redis: &Redis, command: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", redis.port())).await?;
    stream.write_all(format!("{command}\r\nQUIT\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let answer = answer.strip_suffix("+OK\r\n").unwrap_or(&answer);
    Ok(answer.trim_end().to_owned())
}
