//! A custom worker's side of the agent's socket. Every answer and every event is held to the
//! description that the agent itself serves.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use serde_json::{Value, json};

use crate::described::problems;
use crate::world::within;

/// A folder for a socket, removed at the end of the test.
pub struct SocketFolder(PathBuf);

impl SocketFolder {
    pub fn new() -> Self {
        let path = std::env::temp_dir().join(format!("ebbtide-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn socket(&self) -> PathBuf {
        self.0.join("agent.sock")
    }

    /// The API once somebody serves it.
    pub async fn api(&self) -> Api {
        Api::at(&self.socket()).await
    }
}

impl Drop for SocketFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// One client.
#[derive(Clone)]
pub struct Api {
    client: reqwest::Client,
    document: Value,
}

impl Api {
    async fn at(socket: &Path) -> Self {
        let client = reqwest::Client::builder().no_proxy().unix_socket(socket).build().unwrap();
        let document = within(async {
            let mut ticks = tokio::time::interval(std::time::Duration::from_millis(10));
            loop {
                ticks.tick().await;
                let asked = client.get("http://localhost/v1/openapi.json").send().await;
                if let Ok(answer) = asked {
                    break answer.json().await.unwrap();
                }
            }
        })
        .await;
        Self { client, document }
    }

    /// The answer to any request, held to the description.
    pub async fn send(&self, method: &str, path: &str, body: String) -> (u16, Value) {
        let method: reqwest::Method = method.to_uppercase().parse().unwrap();
        let name = method.as_str().to_lowercase();
        let request = self.client.request(method, format!("http://localhost{path}"));
        let answer = within(request.body(body).send()).await.expect("the agent answers");
        let status = answer.status().as_u16();
        let value: Value = within(answer.json()).await.expect("JSON");
        let operation = &self.document["paths"][path.split('?').next().unwrap()][name];
        let described = &operation["responses"][status.to_string()];
        let schema = match described.is_object() {
            true => &described["content"]["application/json"]["schema"],
            // Also what is asked wrongly is answered in the one form of errors.
            false if status >= 400 => &self.document["components"]["schemas"]["Error"],
            false => panic!("{path} does not describe {status}"),
        };
        let found = problems(&self.document, schema, &value, path);
        assert!(found.is_empty(), "{found:#?}");
        (status, value)
    }

    pub async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.send("post", path, body.to_string()).await
    }

    pub async fn get(&self, path: &str) -> Value {
        let (status, value) = self.send("get", path, String::new()).await;
        assert_eq!(status, 200, "{value}");
        value
    }

    /// Leases to generate under version 0, without waiting.
    pub async fn lease(&self, worker: &str, limit: usize) -> Vec<Value> {
        let body = json!({"worker": worker, "limit": limit, "weights_version": 0});
        let (status, mut answer) = self.post("/v1/lease", body).await;
        assert_eq!(status, 200, "{answer}");
        answer["grants"].as_array_mut().map(std::mem::take).unwrap()
    }

    /// Leases until there are so many.
    pub async fn lease_all(&self, worker: &str, count: usize) -> Vec<Value> {
        let mut grants = Vec::new();
        while grants.len() < count {
            let body = json!({"worker": worker, "limit": count - grants.len(),
                "weights_version": 0, "wait_ms": 5_000});
            let (status, mut answer) = self.post("/v1/lease", body).await;
            assert!(status == 200 || answer["error"]["code"] == "gate_closed", "{answer}");
            if status == 200 {
                grants.append(answer["grants"].as_array_mut().unwrap());
            }
        }
        grants
    }

    /// Names units in a call; gives the word for each.
    pub async fn call(&self, path: &str, worker: &str, units: Vec<Value>) -> Vec<String> {
        let (status, answer) = self.post(path, json!({"worker": worker, "units": units})).await;
        assert_eq!(status, 200, "{answer}");
        let replies = answer["replies"].as_array().unwrap();
        replies.iter().map(|reply| reply["reply"].as_str().unwrap().to_owned()).collect()
    }

    /// Opens a stream of notices.
    pub async fn listen(&self, worker: &str) -> Notices {
        let url = format!("http://localhost/v1/notices?worker={worker}");
        let answer = within(self.client.get(url).send()).await.expect("the agent answers");
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        let stream = answer.bytes_stream().boxed();
        Notices { stream, text: String::new(), document: self.document.clone() }
    }
}

/// One stream of notices.
pub struct Notices {
    stream: BoxStream<'static, reqwest::Result<Bytes>>,
    text: String,
    document: Value,
}

impl Notices {
    /// The next event; none when the stream has ended.
    pub async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            let Some((event, rest)) = self.text.split_once("\n\n") else {
                let Some(Ok(bytes)) = within(self.stream.next()).await else { return None };
                self.text.push_str(std::str::from_utf8(&bytes).unwrap());
                continue;
            };
            let mut lines = event.lines();
            let name =
                lines.next().and_then(|line| line.strip_prefix("event: ")).map(str::to_owned);
            let data = lines.next().and_then(|line| line.strip_prefix("data: "));
            let data = data.map(|data| serde_json::from_str::<Value>(data).unwrap());
            self.text = rest.to_owned();
            if let (Some(name), Some(data)) = (name, data) {
                self.check(&name, &data);
                return Some((name, data));
            }
        }
    }

    fn check(&self, name: &str, data: &Value) {
        let schema = match name {
            "state" => "StateEvent",
            "notice" => "Notice",
            "release" => "ReleaseEvent",
            "keep" => "KeepEvent",
            "reopened" => "ReopenedEvent",
            other => panic!("{other} is not described"),
        };
        let schema = &self.document["components"]["schemas"][schema];
        let found = problems(&self.document, schema, data, name);
        assert!(found.is_empty(), "{found:#?}");
    }

    /// The next event of this name; others are passed over.
    pub async fn wait_for(&mut self, wanted: &str) -> Value {
        loop {
            let (name, data) = self.next().await.expect("the stream goes on");
            if name == wanted {
                return data;
            }
        }
    }
}

/// A unit as calls name it, with more fields.
pub fn unit(grant: &Value, more: Value) -> Value {
    let mut unit = json!({"unit": grant["unit"], "fencing_token": grant["fencing_token"]});
    for (key, value) in more.as_object().unwrap() {
        unit[key] = value.clone();
    }
    unit
}

/// Tokens `from` up to `to` of a response, each its own place in it.
pub fn tokens(grant: &Value, from: u32, to: u32) -> Value {
    let ids: Vec<u32> = (from..to).collect();
    let logprobs: Vec<f32> = ids.iter().map(|_| -0.5).collect();
    unit(grant, json!({"offset": from, "token_ids": ids, "logprobs": logprobs}))
}
