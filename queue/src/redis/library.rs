//! The functions that every shard runs: the Lua files of `queue/lua` as one Redis library.
//!
//! A library is loaded once and its functions are defined once, where a script would define them
//! anew at every call: that alone is half the time of a short call. Its name, and the names of its
//! functions, carry a checksum of the source, so that clients of two versions can work side by
//! side while a fleet is upgraded. Where they would read each other's records differently, the
//! layout's number in `setup.rs` must rise as well: then the second is refused.

use std::sync::LazyLock;

/// One function of the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
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
    Held,
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
    ControlResize,
    ControlClaim,
    ControlMark,
    ControlReport,
    ControlJournal,
    ControlStore,
}

impl Function {
    /// Its name in the files.
    fn plain_name(self) -> &'static str {
        match self {
            Self::Enqueue => "enqueue",
            Self::Exchange => "exchange",
            Self::Renew => "renew",
            Self::Reap => "reap",
            Self::Reclaim => "reclaim",
            Self::Requeue => "requeue",
            Self::FailGroup => "fail_group",
            Self::CancelRun => "cancel_run",
            Self::SetVersion => "set_version",
            Self::Take => "take",
            Self::Acknowledge => "acknowledge",
            Self::TakeOver => "take_over",
            Self::RemoveConsumer => "remove_consumer",
            Self::Status => "status",
            Self::Held => "held",
            Self::Scan => "scan",
            Self::Peek => "peek",
            Self::Trace => "trace",
            Self::Failures => "failures",
            Self::DropFailure => "drop_failure",
            Self::Audit => "audit",
            Self::ControlPut => "control_put",
            Self::ControlRead => "control_read",
            Self::ControlRemove => "control_remove",
            Self::ControlDrain => "control_drain",
            Self::ControlResize => "control_resize",
            Self::ControlClaim => "control_claim",
            Self::ControlMark => "control_mark",
            Self::ControlReport => "control_report",
            Self::ControlJournal => "control_journal",
            Self::ControlStore => "control_store",
        }
    }

    /// Its name in Redis.
    pub fn name(self) -> String {
        format!("{}{}", LIBRARY.prefix, self.plain_name())
    }
}

/// The library as it is loaded.
pub(super) struct Library {
    /// How the names of its functions begin.
    prefix: String,
    /// What FUNCTION LOAD takes.
    pub source: String,
}

macro_rules! files {
    ($($($name:literal)+),+ $(,)?) => {
        [$(concat!($(include_str!(concat!("../../lua/", $name, ".lua"))),+)),+]
    };
}

/// What the functions share. The order of all files is that of `queue/lua/ORDER`; a test holds the
/// two together.
const SHARED: [&str; 2] = files!["prelude", "inspecting"];

/// The functions, each a block of its own, with what it alone needs before it: all that is shared
/// must fit into the 200 local variables that Lua allows.
const BLOCKS: [&str; 31] = files![
    "enqueue",
    "writing" "leasing" "exchange",
    "renew",
    "reap",
    "reclaim",
    "requeue",
    "fail_group",
    "cancel_run",
    "set_version",
    "take",
    "acknowledge",
    "take_over",
    "remove_consumer",
    "status",
    "held",
    "scan",
    "peek",
    "trace",
    "failures",
    "drop_failure",
    "audit",
    "control_put",
    "control_read",
    "control_remove",
    "control_drain",
    "control_resize",
    "control_claim",
    "control_mark",
    "control_report",
    "control_journal",
    "control_store",
];

pub(super) static LIBRARY: LazyLock<Library> = LazyLock::new(|| {
    let blocks = BLOCKS.map(|block| format!("do\n{block}end\n"));
    let code = SHARED.concat() + &blocks.concat();
    let name = format!("ebbtide_{:08x}", crc32fast::hash(code.as_bytes()));
    let prefix = format!("{name}_");
    let source = format!("#!lua name={name}\nlocal PREFIX = '{prefix}'\n{code}");
    Library { prefix, source }
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_those_of_the_order_in_that_order() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
        let order = std::fs::read_to_string(folder.join("ORDER")).expect("the order is there");
        let read = |name: &str| {
            std::fs::read_to_string(folder.join(format!("{name}.lua"))).expect("it is there")
        };
        let (shared, blocks) = order.split_once("\n\n").expect("two parts");
        let joined = |line: &str| line.split(' ').map(read).collect::<String>();
        assert_eq!(shared.lines().map(joined).collect::<Vec<_>>(), SHARED);
        assert_eq!(blocks.lines().map(joined).collect::<Vec<_>>(), BLOCKS);
        let present = std::fs::read_dir(&folder).expect("the folder is there").count();
        assert_eq!(present, order.split_whitespace().count() + 1, "every file is listed");
    }
}
