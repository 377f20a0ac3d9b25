//! A Cluster: each call goes to the master of its slot, and follows it when it moves.
//!
//! The client library has a Cluster client; it is not used, because it repeats calls by itself (a
//! LEASE must not be), and because it stops all calls while it reconnects to a node that does not
//! answer: one lost master would stop every shard.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Pipeline, Value};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::super::address::Endpoint;
use super::RECONNECT_DELAY_MAX;
use super::connected::Lane;
use super::dial::{Dialer, refused, server_name};
use super::error::{LinkError, LinkErrorKind};
use super::server::{Kept, Place, Server};
use super::slots::{SlotChart, redirected, slot_of};
use crate::client::Backoff;

/// Redirections that one call follows: to where the slot is, and once more when it moves just then.
const REDIRECTIONS_LIMIT: usize = 3;

/// Between two looks at the slots while nothing says that they have moved.
const CHART_AGE_LIMIT: Duration = Duration::from_secs(30);

/// Shortest pause between two looks while calls fail.
const CHART_PAUSE: Duration = Duration::from_millis(200);

/// A Cluster and the task that keeps the chart of its slots.
pub(super) struct Cluster {
    shared: Arc<Shared>,
    _cartographer: JoinSet<()>,
}

struct Shared {
    dialer: Dialer,
    seeds: Vec<Endpoint>,
    chart: watch::Sender<Arc<SlotChart>>,
    servers: Mutex<BTreeMap<Endpoint, Kept>>,
    /// Chooses who is asked first: another one each time, so that no wrong view persists.
    turns: AtomicUsize,
    is_chart_wanted: Notify,
}

impl Cluster {
    /// Finds the Cluster's masters and begins to connect to each.
    pub async fn connect(dialer: Dialer, seeds: Vec<Endpoint>) -> Result<Self, LinkError> {
        let shared = Arc::new(Shared {
            dialer,
            seeds,
            chart: watch::Sender::default(),
            servers: Mutex::default(),
            turns: AtomicUsize::new(0),
            is_chart_wanted: Notify::new(),
        });
        shared.refresh().await?;
        let mut cartographer = JoinSet::new();
        cartographer.spawn(keep_chart(shared.clone()));
        Ok(Self { shared, _cartographer: cartographer })
    }

    /// Sends a pipeline whose keys all have the slot of `key`.
    pub async fn send(
        &self,
        key: &str,
        pipeline: &Pipeline,
        lane: Lane,
    ) -> Result<(Arc<Server>, Vec<Value>), LinkError> {
        let mut server = self.server_of(key)?;
        let mut is_asking = false;
        for _ in 0..REDIRECTIONS_LIMIT {
            let sent = if is_asking {
                let sent = server.send(&with_asking(pipeline), lane).await;
                sent.map(|values| values.into_iter().skip(1).step_by(2).collect())
            } else {
                server.send(pipeline, lane).await
            };
            let values: Vec<Value> = match sent {
                Ok(values) => values,
                Err(error) => {
                    self.shared.is_chart_wanted.notify_one();
                    return Err(error);
                }
            };
            // A refused first command was not carried out, and neither were those after it.
            let refusal = values.first().and_then(refused);
            let Some(refusal) = refusal.filter(|r| matches!(r.code(), "MOVED" | "ASK")) else {
                if values.iter().filter_map(refused).any(|r| r.code() == "CLUSTERDOWN") {
                    self.shared.is_chart_wanted.notify_one();
                }
                return Ok((server, values));
            };
            is_asking = refusal.code() == "ASK";
            if !is_asking {
                self.shared.is_chart_wanted.notify_one();
            }
            let asked = server.endpoint();
            let target = asked.and_then(|asked| redirected(refusal.details()?, &asked));
            let Some(target) = target else {
                return Err(LinkError::of_refusal(server.name(), refusal));
            };
            server = self.shared.server_at(&target);
        }
        let code = LinkErrorKind::Refused("TRYAGAIN".to_owned());
        Err(LinkError::new(code, server.name(), "the slot is being moved"))
    }

    /// The masters that have slots.
    pub fn masters(&self) -> Vec<Arc<Server>> {
        let masters = self.shared.chart.borrow().masters();
        masters.iter().map(|endpoint| self.shared.server_at(endpoint)).collect()
    }

    /// The master of a key's slot.
    pub fn server_of(&self, key: &str) -> Result<Arc<Server>, LinkError> {
        let slot = slot_of(key);
        let master = self.shared.chart.borrow().master_of(slot).cloned();
        let Some(master) = master else {
            self.shared.is_chart_wanted.notify_one();
            let problem = format!("no server has slot {slot}");
            return Err(LinkError::new(LinkErrorKind::Away, self.shared.name(), problem));
        };
        Ok(self.shared.server_at(&master))
    }

    /// Slots that no server has.
    pub fn unserved_slots(&self) -> usize {
        self.shared.chart.borrow().unserved()
    }
}

impl Shared {
    fn name(&self) -> String {
        let seeds: Vec<String> = self.seeds.iter().map(Endpoint::to_string).collect();
        format!("redis cluster {}", seeds.join(","))
    }

    fn servers(&self) -> MutexGuard<'_, BTreeMap<Endpoint, Kept>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn server_at(&self, endpoint: &Endpoint) -> Arc<Server> {
        let keep = || Server::keep(self.dialer.clone(), Place::At(endpoint.clone()));
        self.servers().entry(endpoint.clone()).or_insert_with(keep).server.clone()
    }

    /// Asks for the slots: those we are connected to, then every other node and the address.
    async fn refresh(&self) -> Result<(), LinkError> {
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        let connected: Vec<Arc<Server>> =
            self.servers().values().map(|kept| kept.server.clone()).filter(|s| s.is_up()).collect();
        let first = turn % connected.len().max(1);
        for server in connected.iter().cycle().skip(first).take(connected.len()) {
            let Some(endpoint) = server.endpoint() else { continue };
            if let Ok(values) = server.send(&question(), Lane::Calls).await
                && let Ok(chart) = read_chart(&values, &endpoint)
            {
                self.adopt(chart);
                return Ok(());
            }
        }
        let mut strangers = self.seeds.clone();
        strangers.extend(self.chart.borrow().nodes.iter().cloned());
        let mut problems = Vec::new();
        for endpoint in &strangers {
            match self.ask_stranger(endpoint).await {
                Ok(chart) => {
                    self.adopt(chart);
                    return Ok(());
                }
                Err(error) if error.kind == LinkErrorKind::Unfit => return Err(error),
                Err(error) => problems.push(error.to_string()),
            }
        }
        Err(LinkError::new(LinkErrorKind::Away, self.name(), problems.join("; ")))
    }

    async fn ask_stranger(&self, endpoint: &Endpoint) -> Result<SlotChart, LinkError> {
        let line = self.dialer.dial(endpoint).await?;
        let mut connection = line.connection.clone();
        let values = connection.send_packed_commands(&question(), 0, 1).await;
        let server = server_name(endpoint);
        let values = values.map_err(|error| LinkError::of_connection(&server, &error))?;
        read_chart(&values, endpoint)
    }

    fn adopt(&self, chart: SlotChart) {
        let masters = chart.masters();
        self.servers().retain(|endpoint, _| masters.contains(endpoint));
        for endpoint in &masters {
            self.server_at(endpoint);
        }
        let chart = Arc::new(chart);
        let is_new = self.chart.send_replace(chart.clone()) != chart;
        if is_new {
            let unserved = chart.unserved();
            tracing::info!(masters = masters.len(), unserved, "slots of the redis cluster");
        }
    }
}

async fn keep_chart(shared: Arc<Shared>) {
    let mut backoff = Backoff::new(CHART_PAUSE, RECONNECT_DELAY_MAX);
    loop {
        // Either it is wanted, or it is old.
        let _ = timeout(CHART_AGE_LIMIT, shared.is_chart_wanted.notified()).await;
        match shared.refresh().await {
            Ok(()) => backoff.reset(),
            Err(error) => {
                tracing::debug!(%error, "no node of the redis cluster says where the slots are");
            }
        }
        tokio::time::sleep(backoff.next_pause()).await;
    }
}

fn question() -> Pipeline {
    let mut question = redis::pipe();
    question.cmd("CLUSTER").arg("SLOTS");
    question
}

fn read_chart(values: &[Value], asked: &Endpoint) -> Result<SlotChart, LinkError> {
    let server = server_name(asked);
    match values.first() {
        Some(Value::ServerError(refusal)) if refusal.code() == "ERR" => {
            let problem = "it is not in cluster mode: write redis:// in place of redis+cluster://";
            Err(LinkError::unfit(server, problem))
        }
        Some(Value::ServerError(refusal)) => Err(LinkError::of_refusal(server, refusal)),
        answer => answer.and_then(|answer| SlotChart::read(answer, asked)).ok_or_else(|| {
            let problem = "its answer to CLUSTER SLOTS is not understood";
            LinkError::new(LinkErrorKind::Unreadable, server, problem)
        }),
    }
}

/// The same pipeline for a node that is about to get the slot: each command needs an ASKING.
fn with_asking(pipeline: &Pipeline) -> Pipeline {
    let mut asking = redis::pipe();
    for command in pipeline.cmd_iter() {
        asking.cmd("ASKING").add_command(command.clone());
    }
    asking
}
