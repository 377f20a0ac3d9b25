//! Auto Scaling as the controller sees it: moto, and before it the two calls about lifecycle
//! actions that moto lacks, in AWS's words.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use ebbtide_harness::Moto;
use tokio::sync::watch;
use tokio::task::JoinHandle;

type Fields = BTreeMap<String, String>;

const COMPLETE: &str = "CompleteLifecycleAction";
const HEARTBEAT: &str = "RecordLifecycleActionHeartbeat";

/// What is wrong with the completion of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// So many calls are answered with a fault of AWS's own, and do nothing.
    Fails(u32),
    /// Calls are not answered, and do nothing.
    Hangs,
    /// They do what they ask for, and are not answered.
    LosesAnswers,
}

/// One call that was made.
#[derive(Debug, Clone)]
struct Asked {
    action: String,
    fields: Fields,
    is_done: bool,
}

/// See the module; ended on drop.
pub struct Hooks {
    pub url: String,
    way: Way,
    task: JoinHandle<()>,
}

#[derive(Clone)]
struct Way {
    moto: String,
    fault: Arc<Mutex<Fault>>,
    asked: Arc<Mutex<Vec<Asked>>>,
    calls: watch::Sender<usize>,
}

impl Hooks {
    /// Passes everything else on to `moto`.
    pub async fn start(moto: &Moto) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let way = Way {
            moto: moto.url(),
            fault: Arc::new(Mutex::new(Fault::None)),
            asked: Arc::default(),
            calls: watch::Sender::new(0),
        };
        let router = Router::new().fallback(answer).with_state(way.clone());
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, way, task }
    }

    /// What becomes of completions from now on.
    pub fn set(&self, fault: Fault) {
        *self.way.fault.lock().unwrap() = fault;
    }

    /// Heartbeats that were taken.
    pub fn heartbeats(&self) -> usize {
        self.way.done(HEARTBEAT).len()
    }

    /// Completions that were asked for, whatever became of them.
    pub fn tries(&self) -> usize {
        self.way.asked.lock().unwrap().iter().filter(|asked| asked.action == COMPLETE).count()
    }

    /// Completions that were carried out.
    pub fn completed(&self) -> Vec<Fields> {
        self.way.done(COMPLETE)
    }

    /// Waits until the calls are as wanted. Give it a time limit.
    pub async fn wait_until(&self, is_wanted: impl Fn(&Self) -> bool) {
        let mut calls = self.way.calls.subscribe();
        // The sender lives in `self`, so the wait cannot end with an error.
        let _ = calls.wait_for(|_| is_wanted(self)).await;
    }
}

impl Drop for Hooks {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Way {
    fn done(&self, action: &str) -> Vec<Fields> {
        let asked = self.asked.lock().unwrap();
        let done = asked.iter().filter(|asked| asked.action == action && asked.is_done);
        done.map(|asked| asked.fields.clone()).collect()
    }

    fn note(&self, action: &str, fields: Fields, is_done: bool) {
        let asked = Asked { action: action.to_owned(), fields, is_done };
        self.asked.lock().unwrap().push(asked);
        self.calls.send_modify(|calls| *calls += 1);
    }

    /// The fault of this completion.
    fn fault(&self) -> Fault {
        let mut fault = self.fault.lock().unwrap();
        match &mut *fault {
            Fault::Fails(0) => Fault::None,
            Fault::Fails(left) => {
                *left -= 1;
                Fault::Fails(1)
            }
            other => *other,
        }
    }

    async fn pass_on(&self, headers: &HeaderMap, body: Bytes) -> Response {
        let mut request = reqwest::Client::new().post(&self.moto).body(body);
        for name in ["authorization", "content-type", "x-amz-date"] {
            if let Some(value) = headers.get(name) {
                request = request.header(name, value.to_str().unwrap());
            }
        }
        match request.send().await {
            Ok(answer) => (answer.status(), answer.text().await.unwrap()).into_response(),
            Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
        }
    }
}

async fn answer(State(way): State<Way>, headers: HeaderMap, body: Bytes) -> Response {
    let text = String::from_utf8_lossy(&body).into_owned();
    let query = reqwest::Url::parse(&format!("http://aws/?{text}")).unwrap();
    let fields: Fields = query.query_pairs().into_owned().collect();
    let action = fields.get("Action").cloned().unwrap_or_default();
    if action != COMPLETE && action != HEARTBEAT {
        return way.pass_on(&headers, body).await;
    }
    let fault = if action == COMPLETE { way.fault() } else { Fault::None };
    if matches!(fault, Fault::Fails(_) | Fault::Hangs) {
        way.note(&action, fields, false);
        if fault == Fault::Hangs {
            std::future::pending::<()>().await;
        }
        let problem = said("Receiver", "InternalFailure", "try again");
        return (StatusCode::INTERNAL_SERVER_ERROR, problem).into_response();
    }
    let token = fields.get("LifecycleActionToken").cloned();
    let is_same = |done: &Fields| done.get("LifecycleActionToken") == token.as_ref();
    if way.done(COMPLETE).iter().any(is_same) {
        way.note(&action, fields, false);
        let token = token.unwrap_or_default();
        let message = format!("No active Lifecycle Action found with token {token}");
        let problem = said("Sender", "ValidationError", &message);
        return (StatusCode::BAD_REQUEST, problem).into_response();
    }
    way.note(&action, fields, true);
    if fault == Fault::LosesAnswers {
        std::future::pending::<()>().await;
    }
    format!(
        "<{action}Response xmlns=\"http://autoscaling.amazonaws.com/doc/2011-01-01/\">\
         <{action}Result></{action}Result><ResponseMetadata>\
         <RequestId>7c6e177f-f082-11e1-ac58-3714bEXAMPLE</RequestId></ResponseMetadata>\
         </{action}Response>"
    )
    .into_response()
}

fn said(kind: &str, code: &str, message: &str) -> String {
    format!(
        "<ErrorResponse xmlns=\"http://autoscaling.amazonaws.com/doc/2011-01-01/\"><Error>\
         <Type>{kind}</Type><Code>{code}</Code><Message>{message}</Message></Error>\
         <RequestId>42d59b56-7407-4c4a-be0f-4c88daeea257</RequestId></ErrorResponse>"
    )
}
