//! A real Redis Cluster of three masters, made without `redis-cli`.

use tokio::sync::OnceCell;

use super::{
    Redis, RedisAuthority, RedisOptions,
    talk::{field, is_in_sync},
};
use crate::{EVENT_LIMIT, Error, port::free_port, until};

const MASTERS: usize = 3;
const SLOTS: usize = 16_384;
/// After which a silent node counts as failed, in ms; a replica is promoted some time after that.
const NODE_TIMEOUT_MS: &str = "1000";

/// A running Cluster of this test's own; every node is killed on drop.
#[derive(Debug)]
pub struct RedisCluster {
    /// The masters first, in the order of their slots; then the replicas of each in turn.
    pub nodes: Vec<Redis>,
}

impl RedisCluster {
    /// Starts one whose nodes have these options, and waits until every node sees it whole.
    ///
    /// One lost master does not stop the others (`cluster-require-full-coverage no`).
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] without `redis-server`; others when it does not get ready.
    pub async fn start(replicas_per_master: usize, options: RedisOptions) -> Result<Self, Error> {
        let mut cluster = Self { nodes: Vec::new() };
        for _ in 0..MASTERS * (1 + replicas_per_master) {
            let bus_port = free_port()?.to_string();
            let options = options.clone().arguments(&[
                "--cluster-enabled",
                "yes",
                "--cluster-port",
                &bus_port,
                "--cluster-node-timeout",
                NODE_TIMEOUT_MS,
                "--cluster-require-full-coverage",
                "no",
            ]);
            let options = if options.authority.is_some() {
                options.arguments(&["--tls-cluster", "yes", "--tls-replication", "yes"])
            } else {
                options
            };
            let mut node = options.start().await?;
            node.bus_port = Some(bus_port);
            cluster.nodes.push(node);
        }
        cluster.join().await?;
        Ok(cluster)
    }

    /// One without replicas for all tests of a process, which must leave it as it is; each works on
    /// a run of its own.
    ///
    /// # Errors
    ///
    /// As [`Self::start`]; the next test that asks tries again.
    pub async fn shared() -> Result<&'static Self, Error> {
        static SHARED: OnceCell<RedisCluster> = OnceCell::const_new();
        SHARED.get_or_try_init(|| Self::start(0, Redis::options())).await
    }

    /// `redis+cluster://` and two of its masters.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis+cluster://{},{}", self.nodes[0].address(), self.nodes[1].address())
    }

    /// The same over TLS, for nodes with an authority.
    #[must_use]
    pub fn tls_url(&self, authority: &RedisAuthority) -> String {
        let ca = authority.certificate();
        format!("rediss+cluster://127.0.0.1:{}?ca={}", self.nodes[0].tls_port(), ca.display())
    }

    /// Which master has a key to begin with.
    ///
    /// # Errors
    ///
    /// When no node answers.
    pub async fn master_of(&self, key: &str) -> Result<usize, Error> {
        for node in &self.nodes {
            if let Ok(answer) = node.talk(&["CLUSTER", "KEYSLOT", key]).await
                && let Some(slot) = answer.first().and_then(|slot| slot.parse::<usize>().ok())
            {
                return Ok((0..MASTERS).rfind(|index| slot >= first_slot(*index)).unwrap_or(0));
            }
        }
        Err(Error::Unexpected("no node of the redis cluster answers".to_owned()))
    }

    /// Waits until every node knows all others and sees every slot served, and replicas have their
    /// masters' data.
    ///
    /// # Errors
    ///
    /// When that does not come within 30 s.
    pub async fn settled(&self) -> Result<(), Error> {
        self.joined().await?;
        until("the replicas of the redis cluster", EVENT_LIMIT, || async {
            for node in &self.nodes {
                is_in_sync(&node.talk(&["INFO", "replication"]).await.ok()?).then_some(())?;
            }
            Some(())
        })
        .await
    }

    async fn joined(&self) -> Result<(), Error> {
        until("the redis cluster to be whole", EVENT_LIMIT, || async {
            for node in &self.nodes {
                let state = node.talk(&["CLUSTER", "INFO"]).await.ok()?;
                let is_whole = field(&state, "cluster_state") == Some("ok")
                    && field(&state, "cluster_slots_ok") == Some("16384")
                    && field(&state, "cluster_known_nodes")?.parse() == Ok(self.nodes.len());
                is_whole.then_some(())?;
            }
            Some(())
        })
        .await
    }

    async fn join(&self) -> Result<(), Error> {
        for (index, node) in self.nodes.iter().enumerate() {
            let epoch = (index + 1).to_string();
            node.talk(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]).await?;
            if index < MASTERS {
                let (first, after) = (first_slot(index), first_slot(index + 1));
                let (first, last) = (first.to_string(), (after - 1).to_string());
                node.talk(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]).await?;
            }
        }
        for other in &self.nodes[1..] {
            let port = other.cluster_port().to_string();
            let bus_port = other.bus_port.as_deref().unwrap_or_default();
            self.nodes[0].talk(&["CLUSTER", "MEET", "127.0.0.1", &port, bus_port]).await?;
        }
        self.joined().await?;
        for (index, replica) in self.nodes.iter().enumerate().skip(MASTERS) {
            let id = self.nodes[index % MASTERS].talk(&["CLUSTER", "MYID"]).await?;
            replica.talk(&["CLUSTER", "REPLICATE", &id[0]]).await?;
        }
        self.settled().await
    }
}

fn first_slot(index: usize) -> usize {
    index * SLOTS / MASTERS
}
