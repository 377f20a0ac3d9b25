//! The floor of a cycle: two bare scripts, at a given batch and number of units in flight.
//!
//! `pop` takes units from the ready set, gives each the next token and sets its deadline; `remove`
//! checks the token and removes the unit. No states, groups, holders or counters: what is left is
//! what any queue with fencing tokens has to pay on one Redis.

use std::rc::Rc;

use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, RedisError, Script};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::Instant;

/// Bytes of a unit's specification.
pub const SPEC_BYTES: usize = 1024;
/// Long enough that no deadline passes while the floor is measured.
const LEASE_TTL_MS: u32 = 15_000;
/// Units put into Redis by one pipeline before the clock starts: about 1 MiB with specifications.
const UNITS_A_PIPELINE: u32 = 1_000;

const READY: &str = "{floor:0}:ready";
const LEASE: &str = "{floor:0}:lease";
const TOKEN: &str = "{floor:0}:token";
const SPECS: &str = "{floor:0}:specs";

/// Whether the specification of 1 KiB is stored, returned by `pop` and deleted by `remove`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Spec {
    LeftOut,
    Copied,
}

/// What one measurement does.
#[derive(Clone, Copy)]
pub struct Load {
    pub units: u32,
    pub units_in_flight: usize,
    /// Units a call. Callers run at the same time over one connection, as many as keep no more
    /// than `units_in_flight` units leased.
    pub batch: usize,
    pub spec: Spec,
}

/// Cycles per second: units enqueued first, untimed, then all of them popped and removed.
///
/// # Errors
/// When Redis cannot be reached or refuses a command.
///
/// # Panics
/// When a unit is left over: then the figure would be wrong.
pub async fn measure_floor(
    connection: &mut MultiplexedConnection,
    load: Load,
) -> Result<f64, RedisError> {
    let _: () = connection.del(&[READY, LEASE, TOKEN, SPECS]).await?;
    enqueue(connection, load).await?;
    let scripts = Rc::new(Scripts::of(load));
    scripts.pop.load_async(connection).await?;
    scripts.remove.load_async(connection).await?;

    let caller_count = (load.units_in_flight / load.batch).max(1);
    let started = Instant::now();
    let removed = LocalSet::new()
        .run_until(async {
            let mut callers = JoinSet::new();
            for _ in 0..caller_count {
                let (scripts, connection) = (Rc::clone(&scripts), connection.clone());
                callers.spawn_local(async move { scripts.cycle_until_empty(connection).await });
            }
            let mut removed = 0;
            while let Some(caller) = callers.join_next().await {
                removed += caller.expect("callers neither panic nor are cancelled")?;
            }
            Ok::<u32, RedisError>(removed)
        })
        .await?;
    let elapsed = started.elapsed();

    assert_eq!(removed, load.units, "units removed of those enqueued");
    Ok(f64::from(load.units) / elapsed.as_secs_f64())
}

async fn enqueue(connection: &mut MultiplexedConnection, load: Load) -> Result<(), RedisError> {
    let spec = vec![b'x'; SPEC_BYTES];
    for first in (0..load.units).step_by(UNITS_A_PIPELINE as usize) {
        let mut pipeline = redis::pipe();
        for number in first..load.units.min(first + UNITS_A_PIPELINE) {
            let unit = unit_id(number);
            pipeline.zadd(READY, &unit, number).ignore();
            if load.spec == Spec::Copied {
                pipeline.hset(SPECS, &unit, &spec).ignore();
            }
        }
        let _: () = pipeline.query_async(connection).await?;
    }
    Ok(())
}

/// As long as a real one: a group's id and the slot.
fn unit_id(number: u32) -> String {
    format!("group-{:08}.{:04x}", number / 8, number % 8)
}

struct Scripts {
    pop: Script,
    remove: Script,
    batch: usize,
    spec: Spec,
}

/// Units with their tokens, then their specifications if they were asked for.
type Granted = (Vec<(Vec<u8>, u64)>, Vec<Vec<u8>>);

impl Scripts {
    fn of(load: Load) -> Self {
        let pop = Script::new(include_str!("../lua/pop.lua"));
        let remove = Script::new(include_str!("../lua/remove.lua"));
        Self { pop, remove, batch: load.batch, spec: load.spec }
    }

    async fn cycle_until_empty(
        &self,
        mut connection: MultiplexedConnection,
    ) -> Result<u32, RedisError> {
        let mut removed = 0;
        loop {
            let mut pop = self.pop.key(READY);
            pop.key(LEASE).key(TOKEN).arg(self.batch).arg(LEASE_TTL_MS);
            let mut remove = self.remove.key(LEASE);
            remove.key(TOKEN);
            if self.spec == Spec::Copied {
                pop.key(SPECS);
                remove.key(SPECS);
            }
            let (units, _specs): Granted = pop.invoke_async(&mut connection).await?;
            if units.is_empty() {
                return Ok(removed);
            }
            for (unit, token) in &units {
                remove.arg(unit).arg(token);
            }
            removed += remove.invoke_async::<u32>(&mut connection).await?;
        }
    }
}
