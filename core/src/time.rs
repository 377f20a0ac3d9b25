//! Wall-clock moments as plain numbers.
//!
//! Nothing on this floor reads a clock: `now` arrives as an argument. A [`UnixMillis`] always
//! belongs to one named clock (the Redis server's for everything in the queue, the node's for
//! notices); moments of two clocks are not compared, but for one place that says why.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Milliseconds since 1970-01-01T00:00:00Z.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct UnixMillis(pub u64);

impl UnixMillis {
    /// The moment `duration` later; stays at the largest moment instead of wrapping.
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(whole_millis(duration)))
    }

    /// The moment `duration` earlier; stays at zero instead of wrapping.
    pub fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(whole_millis(duration)))
    }

    /// Time from `earlier` until this moment; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// Time left from `now` until this moment; zero if it has passed.
    pub fn remaining(self, now: Self) -> Duration {
        self.since(now)
    }
}

impl fmt::Display for UnixMillis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown =
            i64::try_from(self.0).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
        match shown {
            Some(timestamp) => timestamp.fmt(f),
            None => write!(f, "{}ms", self.0),
        }
    }
}

/// Durations as whole milliseconds, for `serde(with)`.
pub(crate) mod as_millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    use super::whole_millis;

    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(whole_millis(*duration))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

/// A duration in whole milliseconds, capped at `u64::MAX`.
pub fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
