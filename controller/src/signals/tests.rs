//! Laws of signals: what is no number is unknown, and so is what is old.

use std::sync::Mutex;

use super::*;

/// Bodies as Prometheus 3 answers them.
#[test]
fn one_number_is_read_and_all_else_says_what_it_is() {
    let vector = |values: &str| {
        let data = format!("{{\"resultType\":\"vector\",\"result\":[{values}]}}");
        format!("{{\"status\":\"success\",\"data\":{data}}}")
    };
    let sample = |value: &str| {
        format!("{{\"metric\":{{\"job\":\"sandbox\"}},\"value\":[1764547200.781,\"{value}\"]}}")
    };
    let scalar = "{\"status\":\"success\",\"data\":{\"resultType\":\"scalar\",\
                  \"result\":[1764547200.781,\"7\"]}}";
    let table = [
        (vector(&sample("42")), Ok(42)),
        (vector(&sample("0")), Ok(0)),
        (vector(&sample("2.25")), Ok(3)),
        (vector(&sample("1e3")), Ok(1000)),
        (scalar.to_owned(), Ok(7)),
        (vector(""), Err("0 series, expected exactly one")),
        (vector(&format!("{0},{0}", sample("1"))), Err("2 series, expected exactly one")),
        (vector(&sample("NaN")), Err("expected a number from 0, got NaN")),
        (vector(&sample("+Inf")), Err("expected a number from 0, got +Inf")),
        (vector(&sample("-1")), Err("expected a number from 0, got -1")),
        (vector("{\"metric\":{}}"), Err("expected a number from 0, got nothing")),
        (vector("{\"value\":[1]}"), Err("expected a number from 0, got nothing")),
        (vector("{\"value\":{\"1\":3}}"), Err("expected a number from 0, got nothing")),
        (vector("7"), Err("expected a number from 0, got nothing")),
        (vector("\"7\""), Err("expected a number from 0, got nothing")),
        (vector("[1764547200.781,\"7\"]"), Err("expected a number from 0, got nothing")),
        (vector("null"), Err("expected a number from 0, got nothing")),
        (
            scalar.replace("[1764547200.781,\"7\"]", "{}"),
            Err("expected a number from 0, got nothing"),
        ),
        (
            "{\"status\":\"error\",\"errorType\":\"bad_data\",\"error\":\"1:5: parse error\"}"
                .to_owned(),
            Err("the query failed: 1:5: parse error"),
        ),
        (
            vector(&sample("3")).replace("\"data\"", "\"warnings\":[\"store away\"],\"data\""),
            Err("the answer may lack a part: store away"),
        ),
        (
            "{\"status\":\"success\",\"data\":{\"resultType\":\"matrix\",\"result\":[]}}"
                .to_owned(),
            Err("expected a vector or a scalar, got a matrix"),
        ),
        ("<html>\n".to_owned(), Err("no answer to a query: <html>\\n")),
        ("{\"status\":\"success\"}".to_owned(), Err("no data: {\\\"status\\\":\\\"success\\\"}")),
    ];
    for (body, expected) in table {
        let found = prometheus::number(body.as_bytes());
        assert_eq!(found.as_ref().map_err(String::as_str), expected.as_ref().map_err(|it| *it));
    }
}

/// A source that answers what a test says, or never.
#[derive(Default)]
struct Said(Mutex<Option<Result<Reading, String>>>);

impl Said {
    fn say(&self, answer: Option<Result<Reading, String>>) {
        *self.0.lock().expect("no panic") = answer;
    }
}

struct Source(Arc<Said>);

#[async_trait]
impl SignalSource for Source {
    async fn read(&self) -> Result<Reading, String> {
        let answer = self.0.0.lock().expect("no panic").clone();
        match answer {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }
}

struct Sources(Arc<Said>);

impl SignalSources for Sources {
    fn open(&self, _signal: &ServiceSignal) -> Arc<dyn SignalSource> {
        Arc::new(Source(self.0.clone()))
    }
}

const LIST: &str = ", signal: {redisList: {key: todo}}";

fn policy(signal: &str) -> FleetPolicy {
    policy_with_tick(signal, "5s")
}

fn policy_with_tick(signal: &str, tick: &str) -> FleetPolicy {
    let text = format!(
        "apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {{name: run}}
spec:
  trainer: {{groupsPerStep: 2, groupSize: 1}}
  rollout: {{maxReplicas: 4, pools: [spot], tick: {tick}}}
  environment: {{maxReplicas: 4, pools: [cpus], itemsPerReplica: 2 {signal}}}
  pools:
    - {{name: spot, provider: local, market: spot, maxNodes: 8}}
    - {{name: cpus, provider: local, market: spot, maxNodes: 8}}
"
    );
    FleetPolicy::parse(&text, "test").expect("valid")
}

#[tokio::test(start_paused = true)]
async fn answer_that_does_not_come_again_grows_old_and_does_not_count() {
    let said = Arc::new(Said::default());
    let mut signals = Signals::new(Arc::new(Sources(said.clone())));
    let with_signal = policy(LIST);
    signals.follow(&with_signal);
    let reading = |signals: &Signals| signals.readings()[&Role::Environment].clone();
    assert_eq!(reading(&signals), Err("it has not answered yet".to_owned()));
    tokio::time::sleep(READ_LIMIT + Duration::from_secs(1)).await;
    assert_eq!(reading(&signals), Err("no answer within 4s".to_owned()));
    let told = Reading { waiting: 3, in_flight: None };
    said.say(Some(Ok(told)));
    tokio::time::sleep(Duration::from_secs(10)).await;
    let age = reading(&signals).expect("it has answered").1;
    assert!(age <= Duration::from_secs(5), "{age:?}");
    // A source that is asked in vain says so as soon as that is known.
    said.say(Some(Err("away".to_owned())));
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(reading(&signals), Err("away".to_owned()));
    // The same policy again changes nothing, one without the signal ends it.
    signals.follow(&with_signal);
    assert_eq!(reading(&signals), Err("away".to_owned()));
    signals.follow(&policy(""));
    assert!(signals.readings().is_empty());
}

#[tokio::test(start_paused = true)]
async fn answers_are_young_enough_however_seldom_a_decision_is_made() {
    let said = Arc::new(Said::default());
    let told = Reading { waiting: 3, in_flight: None };
    said.say(Some(Ok(told)));
    let mut signals = Signals::new(Arc::new(Sources(said)));
    let mut oldest = Duration::ZERO;
    signals.follow(&policy_with_tick(LIST, "60s"));
    for _ in 0..120 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let reading = signals.readings()[&Role::Environment].clone();
        oldest = oldest.max(reading.expect("it always answers").1);
    }
    assert!(oldest <= AGE_LIMIT / 2, "{oldest:?}");
}

/// A source that fails in a way that nobody thought of, at its first read.
struct Broken(Arc<Said>);

#[async_trait]
impl SignalSource for Broken {
    async fn read(&self) -> Result<Reading, String> {
        let answer = self.0.0.lock().expect("no panic").clone();
        answer.expect("a test of what is not expected")
    }
}

struct BrokenSources(Arc<Said>);

impl SignalSources for BrokenSources {
    fn open(&self, _signal: &ServiceSignal) -> Arc<dyn SignalSource> {
        Arc::new(Broken(self.0.clone()))
    }
}

#[tokio::test(start_paused = true)]
async fn source_whose_reader_has_failed_is_unknown_and_asked_anew() {
    let said = Arc::new(Said::default());
    let mut signals = Signals::new(Arc::new(BrokenSources(said.clone())));
    let told = Reading { waiting: 3, in_flight: None };
    said.say(Some(Ok(told)));
    let policy = policy(LIST);
    signals.follow(&policy);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let reading = |signals: &Signals| signals.readings()[&Role::Environment].clone();
    assert!(reading(&signals).is_ok());
    said.say(None);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let why = reading(&signals).expect_err("nobody asks it any more");
    assert_eq!(why, "it is not asked any more: that failed");
    said.say(Some(Ok(told)));
    signals.follow(&policy);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(reading(&signals).is_ok(), "it is asked again");
}
