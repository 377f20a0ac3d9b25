//! The Lua scripts, each with its header and the shared prelude.

use std::sync::LazyLock;

use redis::Script;

/// One of [`SCRIPTS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum ScriptName {
    Enqueue,
    Lease,
    Renew,
    Write,
    Reap,
    Reclaim,
    FailGroup,
    SetVersion,
    Take,
    Acknowledge,
    TakeOver,
    Status,
    Scan,
    Failures,
    ControlPut,
    ControlRead,
    ControlRemove,
    ControlDrain,
    ControlClaim,
}

const PRELUDE: &str = include_str!("../../lua/prelude.lua");

/// What a script that frees or finishes work declares: it must run even when memory is full.
const FINISHES: &str = "#!lua flags=allow-oom\n";
/// What a script that adds work declares: refused when memory is full.
const ADDS: &str = "#!lua\n";
/// What a script that only reads declares.
const READS: &str = "#!lua flags=no-writes\n";

macro_rules! shard_script {
    ($header:expr, $file:literal) => {
        Script::new(&format!("{}{PRELUDE}\n{}", $header, include_str!($file)))
    };
}

macro_rules! control_script {
    ($header:expr, $file:literal) => {
        Script::new(&format!("{}{}", $header, include_str!($file)))
    };
}

/// All scripts, indexed by [`ScriptName`].
pub(super) static SCRIPTS: LazyLock<[Script; 19]> = LazyLock::new(|| {
    [
        shard_script!(ADDS, "../../lua/enqueue.lua"),
        shard_script!(FINISHES, "../../lua/lease.lua"),
        shard_script!(FINISHES, "../../lua/renew.lua"),
        shard_script!(FINISHES, "../../lua/write.lua"),
        shard_script!(FINISHES, "../../lua/reap.lua"),
        shard_script!(FINISHES, "../../lua/reclaim.lua"),
        shard_script!(FINISHES, "../../lua/fail_group.lua"),
        shard_script!(FINISHES, "../../lua/set_version.lua"),
        shard_script!(FINISHES, "../../lua/take.lua"),
        shard_script!(FINISHES, "../../lua/acknowledge.lua"),
        shard_script!(FINISHES, "../../lua/take_over.lua"),
        shard_script!(READS, "../../lua/status.lua"),
        shard_script!(READS, "../../lua/scan.lua"),
        shard_script!(READS, "../../lua/failures.lua"),
        control_script!(FINISHES, "../../lua/control_put.lua"),
        control_script!(READS, "../../lua/control_read.lua"),
        control_script!(FINISHES, "../../lua/control_remove.lua"),
        control_script!(FINISHES, "../../lua/control_drain.lua"),
        control_script!(FINISHES, "../../lua/control_claim.lua"),
    ]
});
