//! A real Redis with replicas, watched by three real Sentinels that promote one when it fails.

use std::fs;

use tokio::sync::OnceCell;

use super::{
    Redis, RedisOptions,
    talk::{field, is_in_sync, talk_as},
};
use crate::{
    EVENT_LIMIT, Error,
    folder::RunFolder,
    parts,
    port::free_port,
    process::{Launch, Service},
    until,
};

const SENTINELS: usize = 3;
/// The name that the Sentinels know the master by.
const MASTER: &str = "main";

/// A master, its replicas and their Sentinels; all are killed on drop.
#[derive(Debug)]
pub struct RedisSentinels {
    /// The first is the master to begin with.
    pub nodes: Vec<Redis>,
    sentinels: Vec<Sentinel>,
}

#[derive(Debug)]
struct Sentinel {
    service: Service,
    port: u16,
    password: Option<&'static str>,
}

impl RedisSentinels {
    /// Starts a master and replicas with these options, and three Sentinels that count a server as
    /// lost after one second; waits until they all know each other.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] without `redis-server`; others when it does not get ready.
    pub async fn start(replicas: usize, options: RedisOptions) -> Result<Self, Error> {
        Self::start_as(replicas, options, None).await
    }

    /// One with a replica that every write must reach, for all tests of a process, which must leave
    /// it as it is; each works on a run of its own.
    ///
    /// # Errors
    ///
    /// As [`Self::start`]; the next test that asks tries again.
    pub async fn shared() -> Result<&'static Self, Error> {
        static SHARED: OnceCell<RedisSentinels> = OnceCell::const_new();
        let options = || Redis::options().arguments(&["--min-replicas-to-write", "1"]);
        SHARED.get_or_try_init(|| Self::start(1, options())).await
    }

    /// The same with Sentinels that ask for a password.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub async fn start_with_password(
        replicas: usize,
        options: RedisOptions,
        password: &'static str,
    ) -> Result<Self, Error> {
        Self::start_as(replicas, options, Some(password)).await
    }

    async fn start_as(
        replicas: usize,
        options: RedisOptions,
        password: Option<&'static str>,
    ) -> Result<Self, Error> {
        let master = options.clone().start().await?;
        let replica_of = format!("127.0.0.1 {}", master.port());
        let mut nodes = vec![master];
        for _ in 0..replicas {
            nodes.push(options.clone().arguments(&["--replicaof", &replica_of]).start().await?);
        }
        let mut set = Self { nodes, sentinels: Vec::new() };
        for _ in 0..SENTINELS {
            set.sentinels.push(Sentinel::start(set.nodes[0].port(), password)?);
        }
        set.settled().await?;
        for sentinel in &set.sentinels {
            // They ask a replica how it is each second, not each ten.
            sentinel.talk(&["SENTINEL", "DEBUG", "INFO-PERIOD", "1000"]).await?;
        }
        Ok(set)
    }

    /// `redis+sentinel://`, all Sentinels, and the master's name.
    #[must_use]
    pub fn url(&self) -> String {
        let ports = self.sentinels.iter().map(|sentinel| sentinel.port);
        let hosts: Vec<String> = ports.map(|port| format!("127.0.0.1:{port}")).collect();
        format!("redis+sentinel://{}/{MASTER}", hosts.join(","))
    }

    /// Which node the Sentinels name as the master; none while they do not agree.
    pub async fn master(&self) -> Option<usize> {
        let mut named = None;
        for sentinel in &self.sentinels {
            let question = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER];
            let answer = sentinel.talk(&question).await.ok()?;
            let port: u16 = answer.get(1)?.parse().ok()?;
            if named.is_some_and(|named| named != port) {
                return None;
            }
            named = Some(port);
        }
        self.nodes.iter().position(|node| Some(node.port()) == named)
    }

    /// Waits until another node than this is the master, by its own account too.
    ///
    /// # Errors
    ///
    /// When that does not come within 30 s.
    pub async fn promoted(&self, lost: usize) -> Result<usize, Error> {
        until("another master", EVENT_LIMIT, || async {
            let master = self.master().await.filter(|master| *master != lost)?;
            let state = self.nodes[master].talk(&["INFO", "replication"]).await.ok()?;
            (field(&state, "role") == Some("master")).then_some(master)
        })
        .await
    }

    /// Waits until the master has all other nodes as replicas with its data and every Sentinel
    /// knows them all.
    ///
    /// # Errors
    ///
    /// When that does not come within 30 s.
    pub async fn settled(&self) -> Result<(), Error> {
        until("master, replicas and sentinels to know each other", EVENT_LIMIT, || async {
            let master = self.master().await?;
            let state = self.nodes[master].talk(&["INFO", "replication"]).await.ok()?;
            let replicas = self.nodes.len() - 1;
            let is_online = |line: &&str| line.starts_with("slave") && line.contains("online");
            let online = state.first()?.lines().filter(is_online).count();
            (online == replicas && is_in_sync(&state)).then_some(())?;
            for sentinel in &self.sentinels {
                let facts = sentinel.talk(&["SENTINEL", "MASTER", MASTER]).await.ok()?;
                let fact = |name: &str| {
                    let place = facts.iter().position(|text| text == name)?;
                    facts.get(place + 1)?.parse::<usize>().ok()
                };
                let knows_all = fact("num-other-sentinels") == Some(SENTINELS - 1)
                    && fact("num-slaves") == Some(replicas);
                knows_all.then_some(())?;
            }
            Some(())
        })
        .await
    }

    /// Starts a killed server again, as a replica of the master, and waits until it has the data.
    ///
    /// A server that comes back has old data. Sentinels that lose the master in that moment would
    /// promote it, and everything since would be lost; so it is no candidate until it has caught
    /// up.
    ///
    /// # Errors
    ///
    /// When it does not get ready, or does not catch up within 30 s.
    pub async fn rejoin(&mut self, index: usize) -> Result<(), Error> {
        let master = until("a master", EVENT_LIMIT, || self.master()).await?;
        let replica_of = format!("127.0.0.1 {}", self.nodes[master].port());
        let as_replica = ["--replicaof", &replica_of, "--replica-priority", "0"];
        self.nodes[index].restart_with(&as_replica).await?;
        self.settled().await?;
        self.nodes[index].talk(&["CONFIG", "SET", "replica-priority", "100"]).await?;
        until("the sentinels to take the replica for a candidate", EVENT_LIMIT, || async {
            for sentinel in &self.sentinels {
                let replicas = sentinel.talk(&["SENTINEL", "REPLICAS", MASTER]).await.ok()?;
                let mut names = replicas.iter().zip(replicas.iter().skip(1));
                let is_not_yet =
                    |(name, value): (&String, &String)| name == "slave-priority" && value == "0";
                (!names.any(is_not_yet)).then_some(())?;
            }
            Some(())
        })
        .await
    }

    /// Kills one Sentinel; the others still agree.
    pub fn kill_sentinel(&mut self, index: usize) {
        self.sentinels[index].service.kill();
    }
}

impl Sentinel {
    fn start(master_port: u16, password: Option<&'static str>) -> Result<Self, Error> {
        let located = parts::REDIS.locate()?;
        let port = free_port()?;
        let folder = RunFolder::create("sentinel")?;
        let file = folder.data().join("sentinel.conf");
        let majority = SENTINELS / 2 + 1;
        let lines = password
            .map(|password| format!("requirepass {password}\nsentinel sentinel-pass {password}"));
        let lines = lines.unwrap_or_default();
        let text = format!(
            "bind 127.0.0.1\nport {port}\n\
             sentinel monitor {MASTER} 127.0.0.1 {master_port} {majority}\n\
             sentinel down-after-milliseconds {MASTER} 1000\n\
             sentinel failover-timeout {MASTER} 4000\n{lines}\n"
        );
        fs::write(&file, text).map_err(Error::io("write", &file))?;
        let launch =
            Launch::new("sentinel", &located.path).arguments(["sentinel.conf", "--sentinel"]);
        Ok(Self { service: Service::start(launch, folder)?, port, password })
    }

    async fn talk(&self, words: &[&str]) -> Result<Vec<String>, Error> {
        talk_as(self.port, self.password, words).await
    }
}
