//! The floor of a cycle: two bare scripts, at a given batch and number of units in flight.
//!
//! `floor/pop.lua` takes units from the ready set, gives each the next token and sets its deadline;
//! `floor/remove.lua` checks the token and removes the unit. No states, groups, holders or
//! counters: what is left is what any queue with fencing tokens has to pay on one Redis. Units are
//! enqueued before the clock starts; a cycle counts once its removal is acknowledged. Any unit left
//! over is an error.

use anyhow::ensure;
use futures::future::try_join_all;
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, RedisError, Script};

use super::meter::{Meter, Rate};
use super::server::Server;
use super::sizes::UNITS_IN_FLIGHT;

/// Bytes of a unit's specification.
const SPEC_BYTES: usize = 1024;
/// Long enough that no deadline passes while the floor is measured.
const LEASE_TTL_MS: u32 = 60_000;
/// Units put into Redis by one pipeline before the clock starts: about 1 MiB with specifications.
const UNITS_A_PIPELINE: usize = 1_000;

/// Whether the specification of 1 KiB is stored, returned by `pop` and deleted by `remove`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spec {
    LeftOut,
    Copied,
}

/// Cycles per second of `units` units, `batch` a call. Callers run at the same time over one
/// connection, as many as keep no more than 100 units leased.
///
/// # Errors
/// Redis refuses a command, or a unit is left over.
pub async fn measure(
    server: &Server,
    name: &str,
    units: usize,
    batch: usize,
    spec: Spec,
) -> anyhow::Result<Rate> {
    let floor = Floor::new(name, batch, spec);
    let mut connection = server.connection();
    let _: () = connection.unlink(&floor.keys()).await?;
    floor.enqueue(&mut connection, units).await?;
    floor.pop.load_async(&mut connection).await?;
    floor.remove.load_async(&mut connection).await?;

    let meter = Meter::start(Some(server)).await?;
    let callers = (0..(UNITS_IN_FLIGHT / batch).max(1)).map(|_| floor.cycle(server.connection()));
    let removed: usize = try_join_all(callers).await?.into_iter().sum();
    let rate = meter.stop(Some(server), removed).await?;
    ensure!(removed == units, "the floor removed {removed} units of {units}");
    let _: () = connection.unlink(&floor.keys()).await?;
    Ok(rate)
}

/// Removes what an interrupted measurement has left.
///
/// # Errors
/// Redis gives no answer.
pub async fn clear(server: &Server, name: &str) -> Result<(), RedisError> {
    server.connection().unlink(&Floor::new(name, 1, Spec::LeftOut).keys()).await
}

/// The scripts and their keys: ready units, leases, tokens, specifications.
struct Floor {
    ready: String,
    lease: String,
    token: String,
    specs: String,
    pop: Script,
    remove: Script,
    batch: usize,
    spec: Spec,
}

/// Units with their tokens, then their specifications if they were asked for.
type Granted = (Vec<(Vec<u8>, u64)>, Vec<Vec<u8>>);

impl Floor {
    fn new(name: &str, batch: usize, spec: Spec) -> Self {
        let key = |part: &str| format!("{{{name}-floor}}:{part}");
        Self {
            ready: key("ready"),
            lease: key("lease"),
            token: key("token"),
            specs: key("specs"),
            pop: Script::new(include_str!("floor/pop.lua")),
            remove: Script::new(include_str!("floor/remove.lua")),
            batch,
            spec,
        }
    }

    fn keys(&self) -> [&str; 4] {
        [&self.ready, &self.lease, &self.token, &self.specs]
    }

    async fn enqueue(
        &self,
        connection: &mut MultiplexedConnection,
        units: usize,
    ) -> Result<(), RedisError> {
        let spec = vec![b'x'; SPEC_BYTES];
        for first in (0..units).step_by(UNITS_A_PIPELINE) {
            let mut pipeline = redis::pipe();
            for number in first..units.min(first + UNITS_A_PIPELINE) {
                let unit = unit_id(number);
                pipeline.zadd(&self.ready, &unit, number).ignore();
                if self.spec == Spec::Copied {
                    pipeline.hset(&self.specs, &unit, &spec).ignore();
                }
            }
            let _: () = pipeline.query_async(connection).await?;
        }
        Ok(())
    }

    /// Pops and removes until nothing is left; gives how many units it removed.
    async fn cycle(&self, mut connection: MultiplexedConnection) -> Result<usize, RedisError> {
        let mut removed = 0;
        loop {
            let mut pop = self.pop.key(&self.ready);
            pop.key(&self.lease).key(&self.token).arg(self.batch).arg(LEASE_TTL_MS);
            let mut remove = self.remove.key(&self.lease);
            remove.key(&self.token);
            if self.spec == Spec::Copied {
                pop.key(&self.specs);
                remove.key(&self.specs);
            }
            let (units, _specs): Granted = pop.invoke_async(&mut connection).await?;
            if units.is_empty() {
                return Ok(removed);
            }
            for (unit, token) in &units {
                remove.arg(unit).arg(token);
            }
            removed += remove.invoke_async::<usize>(&mut connection).await?;
        }
    }
}

/// As long as a real one: a group's id and the slot.
fn unit_id(number: usize) -> String {
    format!("group-{:08}.{:04x}", number / 8, number % 8)
}
