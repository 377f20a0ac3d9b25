//! Somebody else who writes a pool's size: noticed, reported, not fought.

use std::time::Duration;

use crate::time::UnixMillis;

/// Looks in a row at which a pool must have another size than was asked for, before somebody else
/// is taken to write it.
const CONFLICT_LOOKS: u32 = 3;

/// How long a pool is left to the other writer: at most one write of ours in that time.
const CONFLICT_WINDOW: Duration = Duration::from_secs(300);

/// What was written here, and what was found instead.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct WriterMemory {
    /// The size that was last asked for and granted.
    asked: Option<u32>,
    /// Whether more was ever asked for, whatever became of it.
    has_tried: bool,
    /// Looks in a row that showed another size.
    strange_looks: u32,
    /// When a size was last asked for although another was found than before.
    written_back_at: Option<UnixMillis>,
    conflict: Option<Conflict>,
}

/// Somebody else writes the size of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Conflict {
    pub until: UnixMillis,
    /// What was asked for here.
    pub asked: u32,
    /// What was found.
    pub found: u32,
}

impl WriterMemory {
    /// A size was asked for and granted; `None` when nobody knows what holds now. Only a look
    /// that shows the size ends a row of strange ones: asking again and again does not.
    pub fn note_asked(&mut self, asked: Option<u32>) {
        self.asked = asked;
    }

    /// More was asked for, whatever became of it.
    pub fn note_tried(&mut self) {
        self.has_tried = true;
    }

    /// Whether what comes into the pool may have been asked for here.
    pub fn may_have_asked(&self) -> bool {
        self.has_tried || self.asked.is_some()
    }

    /// More was asked for and granted at `now`.
    pub fn note_raised(&mut self, now: UnixMillis) {
        if self.strange_looks > 0 {
            self.written_back_at = Some(now);
        }
    }

    /// What is taken to be asked for.
    pub fn asked(&self) -> Option<u32> {
        self.asked
    }

    /// A look at the pool showed this size.
    pub fn note_found(&mut self, found: u32, now: UnixMillis) {
        let Some(asked) = self.asked.filter(|asked| *asked != found) else {
            self.strange_looks = 0;
            return;
        };
        self.strange_looks += 1;
        // Who sets it again after it was written back once does so on purpose, however seldom.
        let is_fought = self.written_back_at.is_some_and(|at| now.since(at) < CONFLICT_WINDOW);
        if self.strange_looks >= CONFLICT_LOOKS || is_fought {
            self.conflict = Some(Conflict { until: now.plus(CONFLICT_WINDOW), asked, found });
            (self.asked, self.strange_looks) = (Some(found), 0);
        }
    }

    /// Whether the pool is left alone: somebody else writes its size, or seems to, and it was
    /// written back once already.
    pub fn is_left_alone(&self, now: UnixMillis) -> bool {
        self.conflict(now).is_some() || self.strange_looks > 1
    }

    /// The other writer that the pool is left to, as of `now`.
    pub fn conflict(&self, now: UnixMillis) -> Option<Conflict> {
        self.conflict.filter(|conflict| conflict.until > now)
    }
}
