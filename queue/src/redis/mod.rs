//! The queue on Redis: every step is a Lua script on one shard, repeatable when its reply is lost.

mod control;
mod decode;
mod encode;
mod library;
mod setup;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use ebbtide_core::ids::RunId;
pub use ebbtide_core::policy::Durability;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::client::{QueueError, QueuePort};
use crate::command::Command;
use crate::control::{ControlCommand, ControlReply};
use crate::reply::{Reply, WriteReply};
use library::{Function, LIBRARY};

/// How long one call may take before it counts as not answered.
const CALL_TIME_LIMIT: Duration = Duration::from_secs(2);

/// How long a peer may leave packets unanswered until its connection counts as broken. Without it
/// a server that vanished would be waited for a quarter of an hour, the kernel's own limit.
const PEER_SILENCE_LIMIT: Duration = Duration::from_secs(5);

/// Times a call is sent: once more after a broken connection, which costs only a reconnect.
const CALL_TRIES: usize = 2;

/// Bounds of the pause between reconnects.
const RECONNECT_DELAY_MIN: Duration = Duration::from_millis(50);
const RECONNECT_DELAY_MAX: Duration = Duration::from_secs(2);

/// What all clients of a run must agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Number of shards, at least 1.
    pub shard_count: u16,
    /// 1: units are generated; 2: and then scored.
    pub stage_count: u8,
    /// How long an ended group is remembered; the last client that says so is followed.
    pub dedup_window: Duration,
}

/// How a client finds its run.
#[derive(Debug, Clone)]
pub struct RedisOptions {
    /// `redis://[user:password@]host[:port][/db]`.
    pub url: String,
    /// The run.
    pub run: RunId,
    /// How the run is laid out; written by the first client, then checked. `None` takes what
    /// stands.
    pub layout: Option<Layout>,
    /// What an acknowledged write must survive.
    pub durability: Durability,
}

/// One run's queue on Redis.
pub struct RedisPort {
    options: RedisOptions,
    /// What to call this Redis in messages: its address without credentials.
    name: String,
    connection: ConnectionManager,
    layout: Layout,
    /// Whether writes wait for a replica (durability safe with replicas).
    waits_for_replica: bool,
    changed: Arc<Notify>,
    /// Whether the server has little memory left: then nothing is added, and what is there is
    /// finished first.
    is_memory_short: Arc<AtomicBool>,
    /// What runs beside the calls; ends with the port.
    _tasks: JoinSet<()>,
}

impl RedisPort {
    /// Connects, checks that this Redis is fit for a queue, and agrees on the run's layout.
    ///
    /// # Errors
    /// [`QueueError::Unavailable`] when Redis does not answer (try again), and
    /// [`QueueError::Unsuitable`] when it must be set up differently or the run has another layout.
    pub async fn connect(options: RedisOptions) -> Result<Self, QueueError> {
        let client = redis::Client::open(options.url.as_str()).map_err(|error| {
            // The URL itself stays out of the message: it may hold a password.
            let problem = format!(
                "redis URL must be redis://[user:password@]host:port, without TLS in this version: \
                 {error}"
            );
            QueueError::Unsuitable { problem }
        })?;
        let client = redis::Client::open(
            client.get_connection_info().clone().set_tcp_settings(
                TcpSettings::default()
                    .set_nodelay(true)
                    .set_keepalive(TcpKeepalive::new().with_time(PEER_SILENCE_LIMIT))
                    .set_user_timeout(PEER_SILENCE_LIMIT),
            ),
        )
        .map_err(|error| unavailable("redis", &error))?;
        let name = format!("redis {}", client.get_connection_info().addr());
        let config = ConnectionManagerConfig::new()
            .set_min_delay(RECONNECT_DELAY_MIN)
            .set_max_delay(RECONNECT_DELAY_MAX)
            .set_connection_timeout(Some(CALL_TIME_LIMIT))
            .set_response_timeout(Some(CALL_TIME_LIMIT))
            .set_number_of_retries(1);
        let mut connection = ConnectionManager::new_with_config(client.clone(), config)
            .await
            .map_err(|error| unavailable(&name, &error))?;
        let facts = setup::check_server(&mut connection, &name, options.durability).await?;
        let layout = setup::agree_on_layout(&mut connection, &name, &options).await?;
        let changed = Arc::new(Notify::new());
        let channel = keys::control(&options.run, "wake");
        let is_memory_short = Arc::new(AtomicBool::new(facts.is_memory_short));
        let mut tasks = JoinSet::new();
        tasks.spawn(listen_for_wakes(client, channel, changed.clone()));
        tasks.spawn(setup::watch_memory(connection.clone(), is_memory_short.clone()));
        let waits_for_replica = facts.waits_for_replica;
        Ok(Self {
            options,
            name,
            connection,
            layout,
            waits_for_replica,
            changed,
            is_memory_short,
            _tasks: tasks,
        })
    }

    /// The run.
    pub fn run(&self) -> &RunId {
        &self.options.run
    }

    /// Deletes everything that this run has in Redis. Clients that are still at work write anew.
    ///
    /// # Errors
    /// No answer; calling again goes on.
    pub async fn remove_run(&self) -> Result<(), QueueError> {
        let mut removed = control::all_keys(self).await?;
        for shard in 0..self.layout.shard_count {
            removed.extend(keys::of_shard(&self.options.run, shard));
        }
        let mut pipeline = redis::pipe();
        for key in removed {
            pipeline.cmd("UNLINK").arg(key).ignore();
        }
        let mut connection = self.connection.clone();
        let removed: Result<(), _> = pipeline.query_async(&mut connection).await;
        removed.map_err(|error| self.explain(&error))
    }

    async fn call_function<T: redis::FromRedisValue>(
        &self,
        name: Function,
        keys: &[String],
        arguments: &[Vec<u8>],
        tries: usize,
    ) -> Result<T, QueueError> {
        let mut call = redis::cmd("FCALL");
        call.arg(name.name()).arg(keys.len()).arg(keys).arg(arguments);
        let mut tries_left = tries;
        loop {
            let mut connection = self.connection.clone();
            match call.query_async(&mut connection).await {
                Ok(reply) => return Ok(reply),
                Err(error) if is_function_missing(&error) && tries_left > 0 => {
                    tries_left -= 1;
                    self.load_library().await?;
                }
                Err(error) if tries_left > 1 && error.is_io_error() && !error.is_timeout() => {
                    tries_left -= 1;
                }
                Err(error) => return Err(self.explain(&error)),
            }
        }
    }

    async fn load_library(&self) -> Result<(), QueueError> {
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg("REPLACE").arg(LIBRARY.source.as_str());
        let mut connection = self.connection.clone();
        let loaded: Result<(), _> = load.query_async(&mut connection).await;
        loaded.map_err(|error| self.explain(&error))
    }

    fn explain(&self, error: &redis::RedisError) -> QueueError {
        let is_passing = error.is_io_error()
            || error.is_connection_dropped()
            || matches!(error.code(), Some("LOADING" | "BUSY" | "TRYAGAIN" | "READONLY" | "OOM"));
        if is_passing {
            return unavailable(&self.name, error);
        }
        QueueError::Protocol { problem: format!("{}: {error}", self.name) }
    }

    /// In safe mode, waits until a replica has what was written.
    async fn make_durable(&self) -> Result<(), QueueError> {
        if !self.waits_for_replica {
            return Ok(());
        }
        let mut connection = self.connection.clone();
        let mut wait = redis::cmd("WAIT");
        wait.arg(1).arg(CALL_TIME_LIMIT.as_millis() as u64 / 2);
        let acknowledged: u64 =
            wait.query_async(&mut connection).await.map_err(|error| self.explain(&error))?;
        if acknowledged > 0 {
            return Ok(());
        }
        Err(QueueError::Unavailable {
            what: self.name.clone(),
            problem: "no replica acknowledged the write in time".to_owned(),
        })
    }
}

#[async_trait]
impl QueuePort for RedisPort {
    fn shard_count(&self) -> u16 {
        self.layout.shard_count
    }

    async fn call(&self, shard: u16, mut command: Command) -> Result<Reply, QueueError> {
        if self.is_memory_short.load(Ordering::Relaxed) {
            match &mut command {
                Command::Enqueue(_) | Command::Retry { .. } => {
                    return Ok(Reply::Write(WriteReply::Busy));
                }
                Command::Lease(request) | Command::Exchange { lease: request, .. } => {
                    request.allow_fresh = false;
                }
                _ => {}
            }
        }
        let keys = keys::of_shard(&self.options.run, shard);
        let call = encode::function_call(&command, self.layout);
        // What grants is not sent again from here: its holder may have closed its gate meanwhile.
        let grants = matches!(command, Command::Lease(_) | Command::Exchange { .. });
        let tries = if grants { 1 } else { CALL_TRIES };
        let reply: redis::Value =
            self.call_function(call.function, &keys, &call.arguments, tries).await?;
        let chunks_key = keys::chunks(&self.options.run, shard);
        let mut fetch = decode::ChunkFetch::new(self.connection.clone(), chunks_key);
        let reply =
            decode::reply(&command, reply, &mut fetch).await.map_err(|e| self.undecodable(e))?;
        if call.must_last {
            self.make_durable().await?;
        }
        Ok(reply)
    }

    async fn control(&self, command: ControlCommand) -> Result<ControlReply, QueueError> {
        control::carry_out(self, command).await
    }

    async fn woken(&self) {
        self.changed.notified().await;
    }

    async fn wake(&self) {
        let channel = keys::control(&self.options.run, "wake");
        let mut connection = self.connection.clone();
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(channel).arg("");
        // A lost hint does no harm: the keys are read every second anyway.
        if let Err(error) = publish.query_async::<u64>(&mut connection).await {
            tracing::debug!(%error, "wake hint not sent");
        }
    }
}

impl RedisPort {
    fn undecodable(&self, error: decode::DecodeError) -> QueueError {
        match error {
            decode::DecodeError::Redis(error) => self.explain(&error),
            decode::DecodeError::Shape(problem) => {
                QueueError::Protocol { problem: format!("{}: {problem}", self.name) }
            }
        }
    }
}

/// What Redis says when a server was restarted without its library, or never had it.
fn is_function_missing(error: &redis::RedisError) -> bool {
    error.to_string().contains("Function not found")
}

fn unavailable(name: &str, error: &redis::RedisError) -> QueueError {
    QueueError::Unavailable { what: name.to_owned(), problem: error.to_string() }
}

/// Turns messages on the wake channel into notifications, for as long as the port lives.
async fn listen_for_wakes(client: redis::Client, channel: String, changed: Arc<Notify>) {
    use futures::StreamExt;
    let mut delay = RECONNECT_DELAY_MIN;
    loop {
        if let Ok(mut subscription) = client.get_async_pubsub().await
            && subscription.subscribe(&channel).await.is_ok()
        {
            delay = RECONNECT_DELAY_MIN;
            let mut messages = subscription.on_message();
            while messages.next().await.is_some() {
                changed.notify_waiters();
            }
        }
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(RECONNECT_DELAY_MAX);
    }
}

/// The keys of a run.
mod keys {
    use ebbtide_core::ids::RunId;

    /// The hash of stored tokens, the only key that is also read outside scripts.
    const CHUNKS: &str = "chunks";

    /// Keys of one shard in the order in which every script declares them.
    pub fn of_shard(run: &RunId, shard: u16) -> Vec<String> {
        let names = [
            "ready:generate",
            "ready:reward",
            "lease:generate",
            "lease:reward",
            "units",
            "groups",
            "specs",
            CHUNKS,
            "history",
            "out",
            "failed",
            "counters",
            "version",
            "grants",
            "tombs",
            "expiry",
        ];
        names.iter().map(|name| of(run, shard, name)).collect()
    }

    /// The hash of a shard's stored tokens.
    pub fn chunks(run: &RunId, shard: u16) -> String {
        of(run, shard, CHUNKS)
    }

    fn of(run: &RunId, shard: u16, name: &str) -> String {
        format!("{{{run}:{shard}}}:{name}")
    }

    /// A control key.
    pub fn control(run: &RunId, name: &str) -> String {
        format!("{{{run}:c}}:{name}")
    }
}
