//! A run on a real Redis, nodes as their agents would report them, and the commands beside it.

use std::time::Duration;

use ebbtide_harness::{EVENT_LIMIT, Redis};
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::control::{
    DrainReason, DrainRecord, DrainRequest, NodeNames, NodeRecord, NodeState,
};
use serde_json::Value;

use crate::programs::{EBBTIDE, queue};

/// What a command said.
pub struct Said {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Said {
    pub fn json(&self) -> Value {
        let complaint = |error| panic!("{error}: {}{}", self.out, self.err);
        serde_json::from_str(&self.out).unwrap_or_else(complaint)
    }
}

pub struct Run {
    pub name: String,
    pub url: String,
    pub queue: WorkQueue,
}

impl Run {
    /// A new run of its own on `redis`.
    pub async fn begin(redis: &Redis, name: &str) -> Self {
        Self { name: name.to_owned(), url: redis.url(), queue: queue(redis, name, 2).await }
    }

    /// `ebbtide …`, to its end.
    pub async fn command(&self, arguments: &[&str]) -> Said {
        let output = tokio::process::Command::new(EBBTIDE)
            .args(arguments)
            .args(["--redis", &self.url, "--run", &self.name])
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(EVENT_LIMIT, output).await;
        let output = output.expect("every command is bounded").unwrap();
        Said {
            code: output.status.code().unwrap(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// The same with `--output json`: exit code and what it said.
    pub async fn json(&self, arguments: &[&str]) -> (i32, Value) {
        let said = self.command(&[arguments, &["--output", "json"]].concat()).await;
        (said.code, said.json())
    }

    /// A node in service that nobody runs.
    pub async fn put_node(&self, node: &str, replica: &str) {
        let holder = format!("{node}/boot-1/agent-1").parse().unwrap();
        self.queue
            .put_node(NodeRecord {
                replica: replica.parse().unwrap(),
                instance_id: Some(format!("i-{node}")),
                in_flight: 3,
                ..NodeRecord::new(holder, NodeState::Ready)
            })
            .await
            .unwrap();
    }

    /// A drain that somebody else asked for.
    pub async fn request(&self, replica: &str, reason: DrainReason) -> DrainRecord {
        let request = DrainRequest {
            replica: replica.parse().unwrap(),
            request_id: format!("another-{replica}"),
            generation: 0,
            reason,
            remaining: Duration::from_secs(100),
            lost: NodeNames::default(),
        };
        self.queue.request_drain(request).await.unwrap()
    }
}
