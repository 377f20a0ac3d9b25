//! The ways to damage a run of [`Run::fill`](super::world::Run::fill), and what each may cost.

use super::world::WHOLE;

/// Changes one small number of a record: KEYS hash, ARGV field, which, by how much.
pub const CHANGE_NUMBER: &str = "local bytes, at = redis.call('HGET', KEYS[1], ARGV[1]), nil \
     if ARGV[2] == 'tokens' then \
       at = select(7, struct.unpack('>BBI7I2c0I6I2c0', bytes)) + 9 \
     else at = ({ ended = 14, done = 16 })[ARGV[2]] end \
     local byte = string.char(string.byte(bytes, at) + tonumber(ARGV[3])) \
     bytes = string.sub(bytes, 1, at - 1) .. byte .. string.sub(bytes, at + 1) \
     redis.call('HSET', KEYS[1], ARGV[1], bytes)";

/// Deletes the last entry of a stream.
pub const DROP_LAST: &str = "local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1) \
     redis.call('XDEL', KEYS[1], last[1][1])";

/// Spoils the token ids of a chunk that has three, each in one byte; its head stays good.
pub const GARBLE_IDS: &str = "local bytes = redis.call('HGET', KEYS[1], ARGV[1]) \
     local at = #bytes - 15 \
     bytes = string.sub(bytes, 1, at) .. '\\200\\200\\200' .. string.sub(bytes, at + 4) \
     redis.call('HSET', KEYS[1], ARGV[1], bytes)";

/// A way to damage a run.
pub struct Damage {
    pub name: &'static str,
    /// Redis commands; a word `:key` is a key of the shard.
    pub commands: &'static [&'static str],
    /// What must be found: subject, and how the problem begins.
    pub found: &'static [(&'static str, &'static str)],
    /// Groups that cannot be saved.
    pub lost_groups: &'static [&'static str],
    /// Most tokens that may be thrown away.
    pub tokens_wasted: u64,
}

/// Nothing is lost by this damage.
const fn harmless(
    name: &'static str,
    commands: &'static [&'static str],
    found: &'static [(&'static str, &'static str)],
) -> Damage {
    Damage { name, commands, found, lost_groups: &[], tokens_wasted: 0 }
}

/// Only tokens are lost by this damage.
const fn costly(
    name: &'static str,
    commands: &'static [&'static str],
    found: &'static [(&'static str, &'static str)],
    tokens_wasted: u64,
) -> Damage {
    Damage { tokens_wasted, ..harmless(name, commands, found) }
}

pub const DAMAGES: &[Damage] = &[
    harmless(
        "lease-entry",
        &["ZREM :lease:generate partly.0002"],
        &[("partly.0002", "is in no queue")],
    ),
    harmless(
        "ready-entry",
        &["ZREM :ready:generate fresh.0001"],
        &[("fresh.0001", "is in no queue")],
    ),
    harmless(
        "ready-entry-of-a-resumed-unit",
        &["ZREM :ready:generate mixed.0001"],
        &[("mixed.0001", "is in no queue")],
    ),
    harmless(
        "two-queues",
        &["ZADD :lease:generate 99999999999999 fresh.0000", "ZADD :ready:generate 5 mixed.0000"],
        &[("fresh.0000", "is also in lease:generate"), ("mixed.0000", "is also in ready:generate")],
    ),
    harmless(
        "wrong-place",
        &["ZADD :ready:generate 7 fresh.0002"],
        &[("fresh.0002", "stands at the wrong place of ready:generate")],
    ),
    costly(
        "last-chunk-at-work",
        &["HDEL :chunks mixed.0000/1"],
        &[("mixed.0000", "has lost stored tokens")],
        3,
    ),
    costly(
        "first-chunk-in-the-queue",
        &["HDEL :chunks mixed.0001/0"],
        &[("mixed.0001", "has lost stored tokens")],
        7,
    ),
    costly(
        "origin",
        &["HDEL :chunks mixed.0000/o0"],
        &[("mixed.0000", "has lost stored tokens")],
        7,
    ),
    costly(
        "garbled-chunk",
        &["HSET :chunks mixed.0001/1 nonsense!"],
        &[("mixed.0001", "has lost stored tokens")],
        3,
    ),
    costly(
        "garbled-ids",
        &["GARBLE_IDS :chunks mixed.0001/1"],
        &[("mixed.0001", "has 7 tokens by its record, 0 are stored")],
        3,
    ),
    costly(
        "chunk-of-a-complete-sample",
        &["HDEL :chunks partly.0000/0"],
        &[("partly.0000", "has lost stored tokens")],
        WHOLE as u64,
    ),
    costly(
        "chunk-in-the-buffer",
        &["HDEL :chunks sealed.0001/1"],
        &[("sealed.0001", "has lost stored tokens")],
        7,
    ),
    harmless(
        "record-of-a-unit-without-tokens",
        &["HDEL :units partly.0002"],
        &[("partly.0002", "has lost its record")],
    ),
    harmless(
        "record-of-a-unit-at-work",
        &["HDEL :units mixed.0000"],
        &[("mixed.0000", "has lost its record")],
    ),
    harmless(
        "garbled-record",
        &["HSET :units mixed.0001 nonsense"],
        &[("mixed.0001", "has a damaged record")],
    ),
    costly(
        "record-of-a-complete-sample",
        &["HDEL :units partly.0001"],
        &[("partly.0001", "has lost its record")],
        WHOLE as u64,
    ),
    costly(
        "record-in-the-buffer",
        &["HDEL :units sealed.0000"],
        &[("sealed.0000", "has lost its record")],
        WHOLE as u64,
    ),
    Damage {
        lost_groups: &["mixed"],
        ..costly("prompt", &["HDEL :specs mixed"], &[("mixed", "has lost its prompt")], 14)
    },
    Damage {
        lost_groups: &["sealed"],
        ..costly(
            "prompt-in-the-buffer",
            &["HDEL :specs sealed"],
            &[("sealed", "has lost its prompt")],
            36,
        )
    },
    costly("group", &["HDEL :groups mixed"], &[("mixed", "has lost its record")], 14),
    costly(
        "garbled-group",
        &["HSET :groups partly nonsense"],
        &[("partly", "has a damaged record")],
        24,
    ),
    costly(
        "group-in-the-buffer",
        &["HDEL :groups sealed"],
        &[("sealed", "has lost its record")],
        36,
    ),
    harmless(
        "entry-in-the-buffer",
        &["DROP_LAST :out"],
        &[("sealed", "is sealed and not in the buffer")],
    ),
    harmless(
        "counts-of-a-group",
        &["CHANGE :groups partly ended 1", "CHANGE :groups sealed done -1"],
        &[("partly", "counts its slots wrongly"), ("sealed", "counts its slots wrongly")],
    ),
    harmless(
        "counts-of-a-unit",
        &["CHANGE :units mixed.0000 tokens 2"],
        &[("mixed.0000", "counts its tokens wrongly")],
    ),
    harmless(
        "held",
        &["HSET :counters held:a 9 held:nobody 2"],
        &[
            ("a of shard 0", "holds another number of units than counted"),
            ("nobody of shard 0", "holds another number of units than counted"),
        ],
    ),
    harmless(
        "numbers-given",
        &["HSET :counters token 0 sequence 3"],
        &[
            ("counter token of shard 0", "counts less than was given"),
            ("counter sequence of shard 0", "counts less than was given"),
        ],
    ),
    harmless(
        "sums",
        &["HINCRBY :counters enqueued -2", "HINCRBY :counters tokens_generated -5"],
        &[
            ("shard 0", "slots: 13 counted, 15 accounted for"),
            ("shard 0", "tokens: 105 counted, 110 accounted for"),
        ],
    ),
    harmless(
        "left-overs",
        &[
            "HSET :units ghost.0000 x fresh.0009 x",
            "HSET :history ghost.0001 x",
            "HSET :specs phantom x",
            "HSET :chunks ghost.0000/0 x mixed.0000/7 x mixed.0000/o5 x",
            "ZADD :ready:generate 9 ghost.0003",
            "ZADD :lease:reward 9 fresh.0007",
        ],
        &[
            ("ghost.0000", "belongs to no group"),
            ("fresh.0009", "belongs to nothing"),
            ("ghost.0001", "belongs to no group"),
            ("phantom", "belongs to no group"),
            ("ghost.0000/0", "belongs to no group"),
            ("mixed.0000/7", "belongs to nothing"),
            ("mixed.0000/o5", "belongs to nothing"),
            ("ghost.0003", "belongs to no group"),
            ("fresh.0007", "belongs to nothing"),
        ],
    ),
    costly(
        "many-at-once",
        &[
            "ZREM :lease:generate partly.0002 mixed.0000",
            "HDEL :units mixed.0001 partly.0000",
            "HDEL :chunks mixed.0000/1 sealed.0002/0",
            "ZADD :ready:reward 4 fresh.0000",
            "HSET :counters held:b 0 token 1",
            "DEL :expiry",
        ],
        &[("mixed.0001", "has lost its record"), ("sealed.0002", "has lost stored tokens")],
        WHOLE as u64 + 3 + WHOLE as u64,
    ),
];
