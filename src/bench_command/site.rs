//! The Redis that is measured, and what the benchmark has there: every run is named before it is
//! begun, so that all of them can be removed, whenever the benchmark ends.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use ebbtide_core::ids::RunId;
use ebbtide_core::policy::Durability;
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::redis::{Layout, RedisOptions, RedisPort};

use super::floor;
use super::server::Server;
use super::sizes::Sizes;

/// Ended groups are remembered for as short as possible: nothing is sent twice to be told apart.
const DEDUP_WINDOW: Duration = Duration::from_secs(1);
/// Until what was sent before an interruption has been carried out.
const SETTLING_TIME: Duration = Duration::from_millis(300);

/// Where and how much is measured.
pub struct Site {
    pub url: String,
    pub shards: u16,
    pub sizes: Sizes,
    /// The server itself, where it can be asked.
    pub server: Option<Server>,
    /// Begins the name of every run.
    name: String,
    runs_begun: Cell<usize>,
    /// What may still have keys.
    open_runs: RefCell<Vec<RunId>>,
}

/// A run of the benchmark's own.
pub struct Run {
    pub id: RunId,
    pub queue: WorkQueue,
}

impl Site {
    /// A benchmark that has done nothing yet.
    pub fn new(url: &str, shards: u16, sizes: Sizes) -> Self {
        let name = format!("bench-{:08x}", rand::random::<u32>());
        let (runs_begun, open_runs) = (Cell::new(0), RefCell::default());
        let url = url.to_owned();
        Self { url, shards, sizes, server: None, name, runs_begun, open_runs }
    }

    /// Finds the Redis, and whether a queue may be there: whatever is wrong with it is said before
    /// anything is done.
    ///
    /// # Errors
    /// It is out of reach, or not fit for a queue.
    pub async fn reach(&mut self) -> anyhow::Result<()> {
        let run = self.begin().await?;
        self.end(run).await?;
        self.server = Server::connect(&self.url).await?;
        Ok(())
    }

    /// Begins every name that the benchmark uses in Redis.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Begins a run without anything in it.
    ///
    /// # Errors
    /// Redis gives no answer.
    pub async fn begin(&self) -> anyhow::Result<Run> {
        let number = self.runs_begun.get();
        self.runs_begun.set(number + 1);
        let id: RunId = format!("{}-{number}", self.name).parse()?;
        self.open_runs.borrow_mut().push(id.clone());
        let queue = self.client(&id).await?;
        Ok(Run { id, queue })
    }

    /// Another client of a run, on connections of its own.
    ///
    /// # Errors
    /// Redis gives no answer.
    pub async fn client(&self, run: &RunId) -> anyhow::Result<WorkQueue> {
        Ok(WorkQueue::new(Arc::new(self.port(run).await?)))
    }

    async fn port(&self, run: &RunId) -> anyhow::Result<RedisPort> {
        let layout =
            Layout { shard_count: self.shards, stage_count: 1, dedup_window: DEDUP_WINDOW };
        let options = RedisOptions {
            url: self.url.clone(),
            run: run.clone(),
            layout: Some(layout),
            durability: Durability::Fast,
        };
        Ok(RedisPort::connect(options).await?)
    }

    /// Removes a run.
    ///
    /// # Errors
    /// Redis gives no answer; the run is removed at the end.
    pub async fn end(&self, run: Run) -> anyhow::Result<()> {
        drop(run.queue);
        self.port(&run.id).await?.remove_run().await?;
        self.open_runs.borrow_mut().retain(|open| *open != run.id);
        Ok(())
    }

    /// Removes everything that the benchmark has in Redis. After an interruption, what was sent
    /// and not answered may still be carried out: this waits for it.
    ///
    /// # Errors
    /// Redis gives no answer; the message names what is left.
    pub async fn clear(&self, is_interrupted: bool) -> anyhow::Result<()> {
        if is_interrupted {
            tokio::time::sleep(SETTLING_TIME).await;
        }
        let left = || format!("keys with the names {{{}-…}} are left in Redis", self.name);
        for run in self.open_runs.take() {
            let port = self.port(&run).await.with_context(left)?;
            port.remove_run().await.with_context(left)?;
        }
        if let Some(server) = &self.server {
            floor::clear(server, &self.name).await.with_context(left)?;
        }
        Ok(())
    }
}
