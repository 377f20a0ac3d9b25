//! The Lua scripts, each with its header and the shared prelude.

use std::sync::LazyLock;

use redis::Script;

/// One of [`SCRIPTS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum ScriptName {
    Enqueue,
    Exchange,
    Renew,
    Reap,
    Reclaim,
    Requeue,
    FailGroup,
    CancelRun,
    SetVersion,
    Take,
    Acknowledge,
    TakeOver,
    RemoveConsumer,
    Status,
    Scan,
    Peek,
    Trace,
    Failures,
    DropFailure,
    Audit,
    ControlPut,
    ControlRead,
    ControlRemove,
    ControlDrain,
    ControlClaim,
}

/// What a script that frees or finishes work declares: it must run even when memory is full.
const FINISHES: &str = "#!lua flags=allow-oom\n";
/// What a script that adds work declares: refused when memory is full.
const ADDS: &str = "#!lua\n";
/// What a script that only reads declares.
const READS: &str = "#!lua flags=no-writes\n";

/// A script of a shard: its header, the prelude, and its own files.
macro_rules! shard_script {
    ($header:expr, $($file:literal),+) => {
        Script::new(&[
            $header,
            include_str!("../../lua/prelude.lua"),
            $(include_str!(concat!("../../lua/", $file, ".lua"))),+
        ].concat())
    };
}

/// A script on control keys.
macro_rules! control_script {
    ($header:expr, $file:literal) => {
        Script::new(&[$header, include_str!(concat!("../../lua/control_", $file, ".lua"))].concat())
    };
}

/// All scripts, indexed by [`ScriptName`].
pub(super) static SCRIPTS: LazyLock<[Script; 25]> = LazyLock::new(|| {
    [
        shard_script!(ADDS, "enqueue"),
        shard_script!(FINISHES, "writing", "leasing", "exchange"),
        shard_script!(FINISHES, "renew"),
        shard_script!(FINISHES, "reap"),
        shard_script!(FINISHES, "reclaim"),
        shard_script!(FINISHES, "requeue"),
        shard_script!(FINISHES, "fail_group"),
        shard_script!(FINISHES, "cancel_run"),
        shard_script!(FINISHES, "set_version"),
        shard_script!(FINISHES, "take"),
        shard_script!(FINISHES, "acknowledge"),
        shard_script!(FINISHES, "take_over"),
        shard_script!(FINISHES, "remove_consumer"),
        shard_script!(READS, "status"),
        shard_script!(READS, "inspecting", "scan"),
        shard_script!(READS, "inspecting", "peek"),
        shard_script!(READS, "inspecting", "trace"),
        shard_script!(READS, "failures"),
        shard_script!(FINISHES, "drop_failure"),
        shard_script!(FINISHES, "audit"),
        control_script!(FINISHES, "put"),
        control_script!(READS, "read"),
        control_script!(FINISHES, "remove"),
        control_script!(FINISHES, "drain"),
        control_script!(FINISHES, "claim"),
    ]
});
