//! The way to Redis: one type in front of a single server, a master behind Sentinels, or a Cluster.
//!
//! Every call is a pipeline to the server that has its key. Calls are repeated here only where that
//! does no harm and was asked for. A call that must last goes, with the WAIT that makes it last, in
//! one pipeline on one connection: WAIT speaks only of what its own connection has written.

mod cluster;
mod connected;
mod dial;
mod error;
mod sentinel;
mod server;
mod slots;
mod trust;
mod wakes;

use std::sync::Arc;
use std::time::Duration;

use redis::{FromRedisValue, Pipeline, ServerError, Value};

use super::address::{RedisAddress, Topology};
use super::library::Function;
use cluster::Cluster;
use connected::Lane;
use dial::{Dialer, refused};
pub(super) use error::{LinkError, LinkErrorKind};
use sentinel::Sentinels;
pub(super) use server::Server;
use server::{Kept, Place, decode};

/// How long one call may take before it counts as not answered.
const CALL_TIME_LIMIT: Duration = Duration::from_secs(2);

/// How long a peer may leave packets unanswered until its connection counts as broken.
const PEER_SILENCE_LIMIT: Duration = Duration::from_secs(5);

/// How long a write that must last waits for a replica; the call needs the rest of its time.
const REPLICA_TIME_LIMIT: Duration = Duration::from_secs(1);

/// Bounds of the pause between reconnects.
const RECONNECT_DELAY_MIN: Duration = Duration::from_millis(50);
const RECONNECT_DELAY_MAX: Duration = Duration::from_secs(2);

/// How a call is delivered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Delivery<'a> {
    /// Whether it may be sent again when its connection broke.
    pub may_repeat: bool,
    /// The key to mark, beside the call's own, when a replica must have the write. WAIT may answer
    /// at once on a connection that has written nothing (seen on Valkey 8 and 9, not on Redis 7.0):
    /// after a write that is repeated and was done already, on a new connection, it would vouch for
    /// what no replica has. Behind a mark it never does.
    pub mark_key: Option<&'a str>,
}

/// A way to one Redis; cheap to clone.
#[derive(Clone)]
pub(super) struct Link {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    dialer: Dialer,
    route: Route,
}

enum Route {
    One(Kept),
    Cluster(Cluster),
}

impl Link {
    /// Begins to connect to every server that holds a part of the data.
    pub async fn connect(address: &RedisAddress) -> Result<Self, LinkError> {
        let dialer = Dialer::new(address)?;
        let nodes = address.nodes.clone();
        let route = match (&address.topology, nodes.first()) {
            (Topology::Sentinel { master, login }, _) => {
                let (master, sentinels) = (master.clone(), dialer.for_sentinels(login));
                let sentinels = Sentinels { dialer: sentinels, nodes, master };
                Route::One(Server::keep(dialer.clone(), Place::Master(sentinels)))
            }
            (Topology::Single, Some(node)) => {
                Route::One(Server::keep(dialer.clone(), Place::At(node.clone())))
            }
            _ => Route::Cluster(Cluster::connect(dialer.clone(), nodes).await?),
        };
        let link = Self { shared: Arc::new(Shared { name: address.to_string(), dialer, route }) };
        Ok(link)
    }

    /// What to call this Redis in messages: its address without credentials.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Every server that holds a part of the data, as far as they are known.
    pub fn masters(&self) -> Vec<Arc<Server>> {
        match &self.shared.route {
            Route::One(kept) => vec![kept.server.clone()],
            Route::Cluster(cluster) => cluster.masters(),
        }
    }

    /// Slots of a Cluster that no server has.
    pub fn unserved_slots(&self) -> usize {
        match &self.shared.route {
            Route::One(_) => 0,
            Route::Cluster(cluster) => cluster.unserved_slots(),
        }
    }

    /// The server that holds a key, as far as that is known.
    pub fn server_of(&self, key: &str) -> Option<Arc<Server>> {
        match &self.shared.route {
            Route::One(kept) => Some(kept.server.clone()),
            Route::Cluster(cluster) => cluster.server_of(key).ok(),
        }
    }

    /// Calls a function of the library on the server that holds its keys.
    pub async fn call_function<T: FromRedisValue>(
        &self,
        function: Function,
        keys: &[String],
        arguments: &[impl AsRef<[u8]>],
        delivery: Delivery<'_>,
    ) -> Result<T, LinkError> {
        let key = keys.first().map_or("", String::as_str);
        let mut call = redis::pipe();
        let invocation = call.cmd("FCALL").arg(function.name()).arg(keys.len());
        invocation.arg(keys);
        for argument in arguments {
            invocation.arg(argument.as_ref());
        }
        let lane = if let Some(mark_key) = delivery.mark_key {
            call.cmd("FCALL").arg(Function::ControlMark.name()).arg(1).arg(mark_key);
            call.cmd("WAIT").arg(1).arg(REPLICA_TIME_LIMIT.as_millis() as u64);
            Lane::Waits
        } else {
            Lane::Calls
        };
        let (mut server, mut values) = self.send(key, &call, lane, delivery.may_repeat).await?;
        if values.first().and_then(refused).is_some_and(is_library_missing) {
            // Nothing was carried out. In a Cluster the library lands where the call landed.
            server.load_library().await?;
            (server, values) = self.send(key, &call, lane, delivery.may_repeat).await?;
        }
        let name = server.name();
        let has_mark = delivery.mark_key.is_some();
        let mut values = values.into_iter();
        let reply = values.next().into_iter().collect();
        let (reply,): (T,) = decode(&name, reply)?;
        if has_mark {
            let ((), acknowledged): ((), u64) = decode(&name, values.collect())?;
            if acknowledged == 0 {
                let problem = "no replica acknowledged the write in time";
                return Err(LinkError::new(LinkErrorKind::Silent, name, problem));
            }
        }
        Ok(reply)
    }

    /// Sends commands that may be repeated and whose keys are all of the hash tag of `key`.
    pub async fn query<T: FromRedisValue>(
        &self,
        key: &str,
        pipeline: &Pipeline,
    ) -> Result<T, LinkError> {
        let (server, values) = self.send(key, pipeline, Lane::Calls, true).await?;
        decode(&server.name(), values)
    }

    async fn send(
        &self,
        key: &str,
        pipeline: &Pipeline,
        lane: Lane,
        may_repeat: bool,
    ) -> Result<(Arc<Server>, Vec<Value>), LinkError> {
        match self.send_once(key, pipeline, lane).await {
            // A broken connection costs only a reconnect.
            Err(error) if may_repeat && error.kind == LinkErrorKind::Broken => {
                self.send_once(key, pipeline, lane).await
            }
            sent => sent,
        }
    }

    async fn send_once(
        &self,
        key: &str,
        pipeline: &Pipeline,
        lane: Lane,
    ) -> Result<(Arc<Server>, Vec<Value>), LinkError> {
        match &self.shared.route {
            Route::One(kept) => {
                let values = kept.server.send(pipeline, lane).await?;
                Ok((kept.server.clone(), values))
            }
            Route::Cluster(cluster) => cluster.send(key, pipeline, lane).await,
        }
    }
}

/// Whether a server has no such function: it was restarted without its data, or never had it.
fn is_library_missing(refusal: &ServerError) -> bool {
    refusal.details().is_some_and(|details| details.contains("Function not found"))
}
