//! Which requests of the emulated IMDS fail, and how.

use std::collections::HashMap;
use std::time::Duration;

/// Stands for every path in [`super::ImdsHandle::fault`].
pub const EVERY_PATH: &str = "*";

/// One way for a request to fail. It comes before any check of the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Answers this HTTP status with an XHTML body.
    Status(u16),
    /// Answers correctly, this much later.
    Delay(Duration),
    /// Never answers; the connection stays open until the client gives up.
    Hang,
    /// Answers 200 with this body, which may be anything.
    Body(String),
}

/// The faults set, by path.
#[derive(Default)]
pub(super) struct Faults {
    by_path: HashMap<String, (Fault, Option<u32>)>,
}

impl Faults {
    pub(super) fn set(&mut self, path: &str, fault: Fault, times: Option<u32>) {
        self.by_path.insert(path.to_owned(), (fault, times));
    }

    pub(super) fn clear(&mut self) {
        self.by_path.clear();
    }

    /// The fault that meets a request for `path` now; one with a count is used up by it.
    pub(super) fn take(&mut self, path: &str) -> Option<Fault> {
        let key = if self.by_path.contains_key(path) { path } else { EVERY_PATH };
        let (fault, times) = self.by_path.get_mut(key)?;
        let Some(left) = times else {
            return Some(fault.clone());
        };
        let met = (*left > 0).then(|| fault.clone());
        *left = left.saturating_sub(1);
        if *left == 0 {
            self.by_path.remove(key);
        }
        met
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_fault_is_used_up_and_then_gone() {
        let mut faults = Faults::default();
        faults.set("/a", Fault::Status(503), Some(2));
        assert_eq!(faults.take("/a"), Some(Fault::Status(503)));
        assert_eq!(faults.take("/a"), Some(Fault::Status(503)));
        assert_eq!(faults.take("/a"), None);
    }

    #[test]
    fn fault_of_one_path_goes_before_one_of_every_path() {
        let mut faults = Faults::default();
        faults.set(EVERY_PATH, Fault::Hang, None);
        faults.set("/a", Fault::Status(500), None);
        assert_eq!(faults.take("/a"), Some(Fault::Status(500)));
        assert_eq!(faults.take("/b"), Some(Fault::Hang));
    }
}
