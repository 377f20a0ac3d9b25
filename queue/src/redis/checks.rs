//! Checks at start: is this Redis fit for a queue? Each server that holds a part of it is looked
//! at, by INFO as far as that goes, because many managed services forbid CONFIG GET.

use std::sync::atomic::Ordering;

use redis::InfoDict;

use super::Durability;
use super::address::{RedisAddress, Topology};
use super::link::{Link, LinkError, LinkErrorKind, Server};
use super::losses::Losses;
use super::setup::is_memory_short;

/// Oldest server: `#!lua` headers and script flags came with 7.0.
const OLDEST_MAJOR_VERSION: u32 = 7;

/// What the checks found out.
pub(super) struct ServerFacts {
    /// Whether writes that must last wait for a replica.
    pub waits_for_replica: bool,
}

/// A server, as it describes itself.
struct Candidate<'a> {
    server: &'a Server,
    name: String,
    info: InfoDict,
}

/// Checks every server that holds a part of the data.
///
/// Of a Cluster, servers that are away are left out: their shards are away, the others work.
pub(super) async fn check(
    link: &Link,
    address: &RedisAddress,
    durability: Durability,
) -> Result<ServerFacts, LinkError> {
    if link.unserved_slots() > 0 {
        let problem = format!("{} of its slots have no server yet", link.unserved_slots());
        return Err(LinkError::new(LinkErrorKind::Away, link.name(), problem));
    }
    let mut waits_for_replica = false;
    let mut losses = Losses::default();
    let mut away = Vec::new();
    let masters = link.masters();
    for server in &masters {
        let candidate = match Candidate::ask(server).await {
            Ok(candidate) => candidate,
            Err(error) if address.topology == Topology::Cluster && error.is_passing() => {
                away.push(error);
                continue;
            }
            Err(error) => return Err(error),
        };
        candidate.check_kind(address)?;
        candidate.check_version()?;
        candidate.check_memory()?;
        waits_for_replica = match (durability, &address.topology) {
            (Durability::Fast, _) => false,
            (Durability::Safe, Topology::Single) if candidate.replicas() == 0 => {
                candidate.check_disk().await?;
                false
            }
            (Durability::Safe, Topology::Single) => true,
            (Durability::Safe, _) => {
                candidate.check_replicas()?;
                true
            }
        };
        candidate.look_for_losses(durability, &mut losses).await;
    }
    losses.warn();
    match away.pop() {
        Some(error) if away.len() + 1 == masters.len() => Err(error),
        None => Ok(ServerFacts { waits_for_replica }),
        Some(error) => {
            let count = away.len() + 1;
            tracing::warn!(count, %error, "servers of the redis cluster are away and unchecked");
            Ok(ServerFacts { waits_for_replica: durability == Durability::Safe })
        }
    }
}

impl<'a> Candidate<'a> {
    async fn ask(server: &'a Server) -> Result<Self, LinkError> {
        let mut question = redis::pipe();
        question.cmd("INFO");
        let (info,): (InfoDict,) = server.query(&question).await?;
        let is_valkey = info.get::<String>("server_name").as_deref() == Some("valkey");
        let at = server.endpoint().map(|endpoint| endpoint.to_string()).unwrap_or_default();
        let name = format!("{} {at}", if is_valkey { "valkey" } else { "redis" });
        Ok(Self { server, name, info })
    }

    fn text(&self, field: &str) -> String {
        self.info.get(field).unwrap_or_default()
    }

    fn number(&self, field: &str) -> u64 {
        self.info.get(field).unwrap_or(0)
    }

    fn replicas(&self) -> u64 {
        self.number("connected_slaves")
    }

    fn unfit(&self, problem: impl ToString) -> LinkError {
        LinkError::unfit(&self.name, problem)
    }

    fn away(&self, problem: impl ToString) -> LinkError {
        LinkError::new(LinkErrorKind::Away, &self.name, problem)
    }

    fn check_kind(&self, address: &RedisAddress) -> Result<(), LinkError> {
        if self.text("redis_mode") == "sentinel" {
            let problem = "it is a Sentinel: write redis+sentinel://host:port/MASTER_NAME";
            return Err(self.unfit(problem));
        }
        if self.number("cluster_enabled") == 1 && address.topology != Topology::Cluster {
            let problem = format!("it runs in cluster mode: write {}", address.cluster_form());
            return Err(self.unfit(problem));
        }
        if self.text("role") == "slave" {
            // Passing: where a name points to the master, it moves after a fail-over.
            let master = format!("{}:{}", self.text("master_host"), self.text("master_port"));
            return Err(self.away(format!("it is a replica of {master}: name the master")));
        }
        Ok(())
    }

    fn check_version(&self) -> Result<(), LinkError> {
        // Valkey says which Redis it is compatible with, beside its own version.
        let version = self.text("redis_version");
        let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        if major.is_none_or(|major| major < OLDEST_MAJOR_VERSION) {
            return Err(
                self.unfit(format!("must be Redis 7.0 or newer, or Valkey, got {version:?}"))
            );
        }
        if self.number("loading") == 1 {
            return Err(self.away("it is loading its data"));
        }
        Ok(())
    }

    fn check_memory(&self) -> Result<(), LinkError> {
        self.server.is_memory_short.store(is_memory_short(&self.info), Ordering::Relaxed);
        let eviction = self.text("maxmemory_policy");
        if eviction == "noeviction" || self.number("maxmemory") == 0 {
            return Ok(());
        }
        Err(self.unfit(format!(
            "must not evict keys, or work is lost in silence: maxmemory-policy must be \
             noeviction, got {eviction}; change it with CONFIG SET or in the parameter group"
        )))
    }

    /// A write that a replica has is lost when another is promoted, or when a master that was cut
    /// off goes on taking writes.
    fn check_replicas(&self) -> Result<(), LinkError> {
        // INFO has this line exactly when min-replicas-to-write is at least 1.
        if self.info.get::<String>("min_slaves_good_slaves").is_none() {
            return Err(self.unfit(
                "durability safe needs min-replicas-to-write 1 or more, got 0; set it on every \
                 server, or use durability fast",
            ));
        }
        if self.replicas() == 0 {
            let problem = "durability safe needs a replica and none is connected: add one, or \
                           wait until it is back";
            return Err(self.away(problem));
        }
        Ok(())
    }

    /// Safe mode without replicas needs every write on disk before it is acknowledged.
    async fn check_disk(&self) -> Result<(), LinkError> {
        let appendonly = if self.number("aof_enabled") == 1 { "yes" } else { "no" };
        let appendfsync = self.setting("appendfsync").await?;
        let checks = [
            ("appendonly", Some(appendonly), "yes"),
            ("appendfsync", appendfsync.as_deref(), "always"),
        ];
        for (setting, got, wanted) in checks {
            if got == Some(wanted) {
                continue;
            }
            return Err(self.unfit(match got {
                Some(got) => format!(
                    "durability safe without a replica needs {setting} {wanted}, got {got}; set \
                     it, add a replica, or use durability fast"
                ),
                None => format!(
                    "durability safe without a replica needs {setting} {wanted}, which CONFIG GET \
                     may not be asked for; allow it, add a replica, or use durability fast"
                ),
            }));
        }
        Ok(())
    }

    /// Notes what would be lost with this server that its operator may not have meant.
    async fn look_for_losses(&self, durability: Durability, losses: &mut Losses) {
        let name = || self.name.clone();
        if self.number("cluster_enabled") == 1
            && let Ok(Some(coverage)) = self.setting("cluster-require-full-coverage").await
            && coverage == "yes"
        {
            losses.stopping_all.push(name());
        }
        if durability == Durability::Safe || self.number("aof_enabled") == 1 {
            return;
        }
        match self.setting("save").await {
            Ok(Some(save)) if save.is_empty() => losses.unsaved.push(name()),
            Ok(Some(_)) => {}
            _ => losses.unverified.push(name()),
        }
    }

    /// A setting; `None` where CONFIG GET is not allowed.
    async fn setting(&self, name: &str) -> Result<Option<String>, LinkError> {
        let mut question = redis::pipe();
        question.cmd("CONFIG").arg("GET").arg(name);
        match self.server.query::<(Vec<String>,)>(&question).await {
            Ok((pair,)) => Ok(pair.into_iter().nth(1)),
            Err(error) if error.kind == LinkErrorKind::Unfit || error.code() == Some("ERR") => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}
