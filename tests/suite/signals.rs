//! Services whose queues are others': the real controller reads SQS (moto) and a stream of a real
//! Redis, and sizes the Auto Scaling groups of scorers and environments by them. Prometheus is
//! stood in for by a server that answers what Prometheus 3 answers.

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::routing::get;
use ebbtide_controller::aws::{self, AwsSettings};
use ebbtide_controller::metrics::Metrics;
use ebbtide_controller::signals::{Reading, RealSources, SignalSource, SignalSources};
use ebbtide_core::policy::FleetPolicy;
use ebbtide_core::time::UnixMillis;
use ebbtide_harness::{EVENT_LIMIT, Moto, Program, Redis, require, until};
use ebbtide_queue::control::{TrainerPhase, TrainerRecord};
use serde_json::Value;

use crate::aws::{Group, Queue};
use crate::programs::{EBBTIDE, policy_file, queue};

const RUN: &str = "run-signals";

/// With the URL of a queue, and of a Prometheus.
fn policy_text(sqs: &str, environment: &str) -> String {
    format!(
        "
apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {{name: run-signals}}
spec:
  mode: act
  queue: {{shards: 1}}
  trainer: {{groupsPerStep: 4, groupSize: 1}}
  rollout: {{minReplicas: 0, maxReplicas: 4, pools: [rollouts], tick: 200ms}}
  reward:
    minReplicas: 0
    maxReplicas: 3
    itemsPerReplica: 2
    pools: [scorers]
    signal: {{sqs: {{queueUrl: '{sqs}'}}}}
  environment:
    minReplicas: 0
    maxReplicas: 4
    itemsPerReplica: 2
    pools: [sandboxes]
    signal: {environment}
  pools:
    - {{name: rollouts, provider: asg, autoScalingGroup: rollouts, market: spot,
       instanceType: p5en.48xlarge, maxNodes: 5}}
    - {{name: scorers, provider: asg, autoScalingGroup: scorers, market: spot,
       instanceType: g6e.xlarge, maxNodes: 5}}
    - {{name: sandboxes, provider: asg, autoScalingGroup: sandboxes, market: spot,
       instanceType: c8i.xlarge, maxNodes: 5}}
"
    )
}

fn ebbtide(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(EBBTIDE).args(arguments).output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.code(), text)
}

/// A word to Redis as others have it.
async fn say(redis: &Redis, words: &str) {
    let client = redis::Client::open(redis.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let mut command = redis::Cmd::new();
    for word in words.split(' ') {
        command.arg(word);
    }
    let _: redis::Value = command.query_async(&mut connection).await.unwrap();
}

async fn desired(group: &Group<'_>, wanted: u32, controller: &Program) {
    let what = format!("{wanted} desired");
    until(&what, EVENT_LIMIT, || async { (group.desired().await == wanted).then_some(()) })
        .await
        .unwrap_or_else(|error| panic!("{error}\n{}", controller.log()));
}

#[tokio::test]
async fn services_are_sized_by_sqs_and_by_a_stream_and_their_decisions_replay() {
    let redis = require!(Redis::start().await);
    let moto = require!(Moto::start().await);
    let _rollouts = Group::create(&moto, "rollouts", 0, 5).await;
    let scorers = Group::create(&moto, "scorers", 0, 5).await;
    let sandboxes = Group::create(&moto, "sandboxes", 0, 5).await;
    let jobs = Queue::create(&moto, "scoring").await;
    let folder = tempfile::tempdir().unwrap();
    let stream = "{redisStream: {key: sandbox-jobs, group: sandboxes}}";
    let policy = policy_file(folder.path(), &policy_text(&jobs.url(), stream));
    let work = queue(&redis, RUN, 1).await;
    let (phase, heartbeat) = (TrainerPhase::Train, UnixMillis(0));
    let trainer = TrainerRecord {
        phase,
        step: 1,
        groups_per_step: 4,
        nodes: None,
        incarnation: None,
        heartbeat,
    };
    work.put_trainer(trainer).await.expect("reported");
    let listen = format!("127.0.0.1:{}", Program::free_port().expect("a free port"));
    let controller = Program::options("ebbtide-controller", EBBTIDE)
        .arguments(["controller", "--no-kubernetes", "--policy", &policy])
        .arguments(["--redis", &redis.url(), "--listen", &listen])
        .variables(moto.variables())
        .start()
        .expect("the controller starts");

    // A stream that is not there is unknown: its service stays as it is, the other one grows.
    for body in 0..5 {
        jobs.send(&format!("job-{body}")).await;
    }
    desired(&scorers, 3, &controller).await;
    let of = |status: &Value, role: &str| {
        let services = status["services"].as_array().cloned().unwrap_or_default();
        services.into_iter().find(|it| it["role"] == role).unwrap_or_default()
    };
    let url = format!("http://{listen}/status");
    let status = until("the plan at /status", EVENT_LIMIT, || async {
        let status: Value = reqwest::get(&url).await.ok()?.json().await.ok()?;
        let scorers = of(&status, "reward");
        let is_known = scorers["waiting"] == 5 && scorers["desired"] == 3;
        let is_missing = of(&status, "environment")["reasons"].to_string().contains("no such key");
        (is_known && is_missing).then_some(status)
    });
    let status = status.await.unwrap_or_else(|error| panic!("{error}\n{}", controller.log()));
    assert!(of(&status, "environment")["waiting"].is_null(), "unknown is not zero: {status}");
    assert_eq!(sandboxes.desired().await, 0);
    assert_eq!(status["problems"], Value::Array(Vec::new()), "sizing does its work");

    say(&redis, "XGROUP CREATE sandbox-jobs sandboxes 0 MKSTREAM").await;
    for _ in 0..3 {
        say(&redis, "XADD sandbox-jobs * job 1").await;
    }
    desired(&sandboxes, 2, &controller).await;
    let lines = [
        "ebbtide_queue_depth{role=\"environment\"} 3",
        "ebbtide_replicas_desired{role=\"reward\"} 3",
        "ebbtide_replicas_desired{role=\"rollout\"} 0",
    ];
    let url = format!("http://{listen}/metrics");
    until("the metrics of each group", EVENT_LIMIT, || async {
        let text = reqwest::get(&url).await.ok()?.text().await.ok()?;
        lines.iter().all(|line| text.contains(line)).then_some(())
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", controller.log()));

    // What was recorded is told, and is decided the same again.
    let url = redis.url();
    let reward = "  reward: because: 5 wait and 0 are worked on: that asks for 3";
    until("the next decision", EVENT_LIMIT, || async {
        let (_, told) = ebbtide(&["policy", "explain", &policy, "--redis", &url]);
        let is_told = told.contains(reward) && told.contains("\n  environment: 2 replicas run");
        is_told.then_some(())
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", controller.log()));
    drop(controller);
    let (code, told) = ebbtide(&["policy", "replay", "--policy", &policy, "--redis", &url]);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("each is decided the same"), "{told}");
    let fewer =
        std::fs::read_to_string(&policy).unwrap().replace("maxReplicas: 3", "maxReplicas: 2");
    let fewer = policy_file(folder.path(), &fewer);
    let (code, told) = ebbtide(&["policy", "replay", "--policy", &fewer, "--redis", &url]);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("Z reward") && told.contains("now:      2 desired"), "{told}");
}

/// What the next queries are answered with, and those that came.
#[derive(Default)]
struct Answers {
    status: u16,
    body: String,
    asked: Vec<String>,
}

type Shared = Arc<Mutex<Answers>>;

async fn answer(
    State(answers): State<Shared>,
    Query(query): Query<Vec<(String, String)>>,
) -> (StatusCode, String) {
    let mut answers = answers.lock().unwrap();
    answers.asked.extend(query.into_iter().map(|(name, value)| format!("{name}={value}")));
    (StatusCode::from_u16(answers.status).unwrap(), answers.body.clone())
}

async fn prometheus() -> (String, Shared) {
    let answers = Shared::default();
    let router = Router::new().route("/prefix/api/v1/query", get(answer));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = axum::serve(listener, router.with_state(answers.clone()));
    tokio::spawn(serving.into_future());
    (format!("http://{address}/prefix/"), answers)
}

async fn source(environment: &str) -> Arc<dyn SignalSource> {
    let text = policy_text("http://sqs/1/a", environment);
    let policy = FleetPolicy::parse(&text, "p").unwrap_or_else(|error| panic!("{error}"));
    let signal = policy.environment.clone().and_then(|it| it.signal).expect("it has one");
    let settings = AwsSettings { region: Some("us-east-1".to_owned()), ..AwsSettings::default() };
    let aws = aws::load_config(settings).await;
    let calls = Metrics::new().expect("names differ").api_calls;
    RealSources::new("redis://127.0.0.1:1", &aws, calls).open(&signal)
}

#[tokio::test]
async fn prometheus_is_asked_as_it_is_written_and_what_is_no_number_is_unknown() {
    let (url, answers) = prometheus().await;
    let queries = "waiting: 'sum(a{b=\"c d\"})', inFlight: 'sum(e+f)'";
    let source = source(&format!("{{prometheus: {{url: '{url}', {queries}}}}}")).await;
    let say = |status, body: &str| {
        let mut answers = answers.lock().unwrap();
        (answers.status, answers.body) = (status, body.to_owned());
    };
    let vector = |result: &str| {
        let data = format!("{{\"resultType\":\"vector\",\"result\":[{result}]}}");
        format!("{{\"status\":\"success\",\"data\":{data}}}")
    };
    say(200, &vector("{\"metric\":{},\"value\":[1764547200.781,\"42\"]}"));
    assert_eq!(source.read().await, Ok(Reading { waiting: 42, in_flight: Some(42) }));
    let asked = answers.lock().unwrap().asked.join(" ");
    assert_eq!(asked, "query=sum(a{b=\"c d\"}) query=sum(e+f)");
    say(200, &vector(""));
    let unknown = source.read().await.unwrap_err();
    assert_eq!(unknown, "Prometheus (200 OK): 0 series, expected exactly one");
    let refusal = "{\"status\":\"error\",\"errorType\":\"timeout\",\"error\":\"query timed out\"}";
    say(503, refusal);
    let unknown = source.read().await.unwrap_err();
    let said = "Prometheus (503 Service Unavailable): the query failed: query timed out";
    assert_eq!(unknown, said);
    say(200, &"x".repeat(1 << 20));
    let unknown = source.read().await.unwrap_err();
    assert_eq!(unknown, "Prometheus answered more than 65536 bytes");
}

#[tokio::test]
async fn sources_that_are_away_say_so_in_time() {
    let closed = format!("127.0.0.1:{}", Program::free_port().expect("a free port"));
    let away = [
        format!("{{prometheus: {{url: 'http://{closed}', waiting: up}}}}"),
        format!("{{redisList: {{url: 'redis://{closed}', key: jobs}}}}"),
        format!("{{sqs: {{queueUrl: 'http://{closed}/1/jobs'}}}}"),
    ];
    for signal in away {
        let source = source(&signal).await;
        let read = tokio::time::timeout(Duration::from_secs(10), source.read());
        assert!(read.await.expect("in time").is_err(), "{signal}");
    }
}
