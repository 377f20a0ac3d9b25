//! The queue on Redis: each step is a Lua function on one shard, repeatable when its reply is lost.

mod access;
mod address;
mod checks;
mod control;
mod decode;
mod encode;
mod leading;
mod lengths;
mod library;
mod link;
mod losses;
mod setup;
mod together;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use ebbtide_core::ids::RunId;
pub use ebbtide_core::policy::Durability;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::client::{Hint, Hints, QueueError, QueuePort};
use crate::command::Command;
use crate::control::{ControlCommand, ControlReply};
use crate::reply::{Reply, WriteReply};
pub use access::acl_rule;
pub use address::{AddressError, RedisAddress};
pub use lengths::{GroupBacklog, RedisLengths};
use library::Function;
use link::{Delivery, Link, LinkError};
use together::{Exchanges, Request, Shard};

/// Times a call is sent: once more after a broken connection, which costs only a reconnect.
const CALL_TRIES: usize = 2;

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
#[derive(Clone)]
pub struct RedisOptions {
    /// Where Redis is, as [`RedisAddress`] reads it.
    pub url: String,
    /// The run.
    pub run: RunId,
    /// How the run is laid out; written by the first client, then checked. `None` takes what
    /// stands.
    pub layout: Option<Layout>,
    /// What an acknowledged write must survive.
    pub durability: Durability,
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url, run, layout, durability } = self;
        // The URL itself stays out: it may hold a password.
        let address = url.parse::<RedisAddress>();
        let address = address.map_or_else(|error| error.to_string(), |it| it.to_string());
        let mut shown = formatter.debug_struct("RedisOptions");
        shown.field("address", &address).field("run", run);
        shown.field("layout", layout).field("durability", durability).finish()
    }
}

/// One run's queue on Redis.
pub struct RedisPort {
    options: RedisOptions,
    link: Link,
    layout: Layout,
    /// By shard.
    exchanges: Vec<Exchanges>,
    /// Who waits for hints.
    hints: Arc<Hints>,
    /// What there is to tell on the wake channel.
    untold: watch::Sender<Option<Hint>>,
    /// What runs beside the calls; ends with the port.
    _tasks: JoinSet<()>,
}

impl RedisPort {
    /// Connects, checks that this Redis is fit for a queue, and agrees on the run's layout.
    ///
    /// # Errors
    /// [`QueueError::Unavailable`] when Redis does not answer (try again), and
    /// [`QueueError::Unsuitable`] when the URL is malformed, Redis must be set up differently or
    /// the run has another layout.
    pub async fn connect(options: RedisOptions) -> Result<Self, QueueError> {
        let address: RedisAddress = options
            .url
            .parse()
            .map_err(|error: AddressError| QueueError::Unsuitable { problem: error.to_string() })?;
        let explain = |error: LinkError| error.to_queue_error();
        let link = Link::connect(&address).await.map_err(explain)?;
        let facts = checks::check(&link, &address, options.durability).await.map_err(explain)?;
        let layout = setup::agree_on_layout(&link, &options).await?;
        let (hints, untold) = (Arc::new(Hints::default()), watch::Sender::new(None));
        let channel = keys::control(&options.run, "wake");
        let mut tasks = JoinSet::new();
        tasks.spawn(link.clone().listen(channel.clone(), hints.clone()));
        tasks.spawn(publish_hints(link.clone(), channel, untold.clone()));
        tasks.spawn(setup::watch_memory(link.clone()));
        let exchanges = (0..layout.shard_count).map(|shard| {
            let mark = facts.waits_for_replica.then(|| keys::mark(&options.run, shard));
            let keys = keys::of_shard(&options.run, shard);
            Exchanges::begin(Shard { link: link.clone(), keys, mark }, &mut tasks)
        });
        let exchanges = exchanges.collect();
        Ok(Self { options, link, layout, exchanges, hints, untold, _tasks: tasks })
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
        let run = &self.options.run;
        let mut removed = vec![control::all_keys(self).await?];
        for shard in 0..self.layout.shard_count {
            let mut keys = keys::of_shard(run, shard);
            keys.push(keys::mark(run, shard));
            removed.push(keys);
        }
        // One call for each hash tag: they may lie on different servers.
        for keys in removed {
            let mut pipeline = redis::pipe();
            for key in &keys {
                pipeline.cmd("UNLINK").arg(key).ignore();
            }
            let key = keys.first().map_or("", String::as_str);
            self.link.query::<()>(key, &pipeline).await.map_err(|e| e.to_queue_error())?;
        }
        Ok(())
    }

    async fn call_function<T: redis::FromRedisValue>(
        &self,
        name: Function,
        keys: &[String],
        arguments: &[Vec<u8>],
        tries: usize,
    ) -> Result<T, QueueError> {
        let delivery = Delivery { may_repeat: tries > 1, mark_key: None };
        self.deliver(name, keys, arguments, delivery).await
    }

    async fn deliver<T: redis::FromRedisValue>(
        &self,
        name: Function,
        keys: &[String],
        arguments: &[Vec<u8>],
        delivery: Delivery<'_>,
    ) -> Result<T, QueueError> {
        let reply = self.link.call_function(name, keys, arguments, delivery).await;
        reply.map_err(|error| error.to_queue_error())
    }
}

#[async_trait]
impl QueuePort for RedisPort {
    fn shard_count(&self) -> u16 {
        self.layout.shard_count
    }

    async fn call(&self, shard: u16, mut command: Command) -> Result<Reply, QueueError> {
        let exchanges = &self.exchanges[usize::from(shard)];
        let keys = &exchanges.shard.keys;
        let server = self.link.server_of(&keys[0]);
        if server.as_ref().is_some_and(|server| server.is_memory_short.load(Ordering::Relaxed)) {
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
        let call = encode::function_call(&command, self.layout);
        let chunks_key = keys::chunks(&self.options.run, shard);
        let mut fetch = decode::ChunkFetch::new(self.link.clone(), chunks_key);
        let reply = if call.function == Function::Exchange {
            let request = Request::of(&command, call.arguments, call.must_last);
            let answer = exchanges.ask(request).await?;
            decode::exchanged(&command, answer, &mut fetch).await
        } else {
            let delivery = exchanges.shard.delivery(true, call.must_last);
            let reply: redis::Value =
                self.deliver(call.function, keys, &call.arguments, delivery).await?;
            decode::reply(&command, reply, &mut fetch).await
        };
        let found_nothing = matches!(&reply, Ok(Reply::Lease(reply)) if reply.grants.is_empty());
        if let Some(server) = server.filter(|_| !found_nothing) {
            server.is_in_use.store(true, Ordering::Relaxed);
        }
        reply.map_err(|error| exchanges.shard.explain(&error))
    }

    async fn control(&self, command: ControlCommand) -> Result<ControlReply, QueueError> {
        control::carry_out(self, command).await
    }

    async fn woken(&self, hint: Hint) {
        self.hints.woken(hint).await;
    }

    async fn wake(&self, hint: Hint) {
        // The stronger one says both.
        self.untold.send_modify(|untold| {
            *untold = if *untold == Some(Hint::Control) { *untold } else { Some(hint) };
        });
    }
}

/// Tells hints beside the calls, so that a server that does not answer holds up nobody who has
/// something to tell; hints that come meanwhile become one.
async fn publish_hints(link: Link, channel: String, untold: watch::Sender<Option<Hint>>) {
    let mut waiting = untold.subscribe();
    loop {
        // The sender lives here, so the wait cannot end with an error.
        let _ = waiting.wait_for(Option::is_some).await;
        let Some(hint) = untold.send_replace(None) else { continue };
        // A lost hint does no harm: the keys are read every second anyway.
        if let Err(error) = link.publish(&channel, hint.body()).await {
            tracing::debug!(%error, "wake hint not sent");
        }
    }
}

/// The keys of a run.
mod keys {
    use ebbtide_core::ids::RunId;

    /// The hash of stored tokens, the only key that is also read outside functions.
    const CHUNKS: &str = "chunks";

    /// Keys of one shard in the order in which every function declares them.
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

    /// A key that is only written to, so that WAIT has something to wait for.
    pub fn mark(run: &RunId, shard: u16) -> String {
        format!("{{{run}:{shard}}}:mark")
    }

    /// A control key.
    pub fn control(run: &RunId, name: &str) -> String {
        format!("{{{run}:c}}:{name}")
    }
}
