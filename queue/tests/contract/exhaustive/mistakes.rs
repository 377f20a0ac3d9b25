//! The shard as it is, and with one mistake each: the explorer must find every one of them.

use ebbtide_core::ids::{FencingToken, Holder, UnitId};
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::command::{Command, Then};
use ebbtide_queue::memory::MemoryShard;
use ebbtide_queue::reply::Reply;
use ebbtide_queue::state::UnitSnapshot;

use super::model::{BEGINNING, LEASE};

/// What is wrong with a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mistake {
    None,
    /// Any token will do.
    IgnoresTokens,
    /// Any holder will do.
    IgnoresHolders,
    /// The reaper's clock is ahead by a whole lease.
    ReapsTooEarly,
    /// What has run out is held for ever.
    NeverReaps,
    /// A repeated LEASE is a new one.
    ForgetsRequests,
    /// The tail of a hand-back is thrown away.
    DropsTails,
    /// An ended group is not remembered.
    ForgetsGroups,
    /// A trainer is handed groups that the replica does not know to be sealed.
    TakesWithoutWaiting,
}

impl Mistake {
    pub fn carry_out(self, shard: &mut MemoryShard, command: &Command, now: UnixMillis) -> Reply {
        let mut command = command.clone();
        let mut now_there = now;
        match (self, &mut command) {
            (Self::IgnoresTokens, Command::Write { writes, .. }) => {
                for write in writes {
                    let newest = newest_lease(shard, &write.unit);
                    write.fencing_token = newest.map_or(write.fencing_token, |(token, _)| token);
                }
            }
            (Self::IgnoresHolders, Command::Write { holder, writes }) => {
                let newest = newest_lease(shard, &writes[0].unit);
                *holder = newest.and_then(|(_, holder)| holder).unwrap_or_else(|| holder.clone());
            }
            (Self::ReapsTooEarly, Command::Reap { .. }) => now_there = now.plus(LEASE),
            (Self::NeverReaps, Command::Reap { .. } | Command::Lease(_)) => {
                now_there = BEGINNING;
            }
            (Self::ForgetsRequests, Command::Lease(request)) => {
                let leases = newest_tokens(shard);
                request.request_id = format!("{} {leases:?}", request.request_id);
            }
            (Self::DropsTails, Command::Write { writes, .. }) => {
                for write in writes.iter_mut().filter(|w| matches!(w.then, Then::HandBack(_))) {
                    write.tail.clear();
                }
            }
            _ => {}
        }
        shard.apply(&command, now_there)
    }
}

fn units(shard: &mut MemoryShard) -> Vec<UnitSnapshot> {
    match shard.apply(&Command::Scan { cursor: 0 }, UnixMillis(0)) {
        Reply::Page(page) => page.units,
        other => panic!("wanted units, got {other:?}"),
    }
}

fn newest_lease(shard: &mut MemoryShard, unit: &UnitId) -> Option<(FencingToken, Option<Holder>)> {
    let found = units(shard).into_iter().find(|found| found.unit == *unit)?;
    Some((found.fencing_token, found.holder))
}

fn newest_tokens(shard: &mut MemoryShard) -> Vec<FencingToken> {
    units(shard).into_iter().map(|unit| unit.fencing_token).collect()
}
