//! Hints that something has changed: what they say, and who waits for them in this process.

use tokio::sync::Notify;

/// What a message on the wake channel says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hint {
    /// There may be work, or something finished.
    Work,
    /// The control keys have changed in a way that cannot wait: a drain, a policy version, a
    /// request to the trainer. Work may have changed with them.
    Control,
}

impl Hint {
    /// The body of its message.
    pub(crate) fn body(self) -> &'static str {
        match self {
            Self::Work => "",
            Self::Control => "control",
        }
    }

    /// What a message says.
    pub(crate) fn of_body(body: &[u8]) -> Self {
        if body == Self::Control.body().as_bytes() { Self::Control } else { Self::Work }
    }
}

/// Those who wait, by what they wait for.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    work: Notify,
    control: Notify,
}

impl Hints {
    /// Waits for the next one.
    pub(crate) async fn woken(&self, hint: Hint) {
        match hint {
            Hint::Work => self.work.notified().await,
            Hint::Control => self.control.notified().await,
        }
    }

    /// Wakes all who wait for this.
    pub(crate) fn wake(&self, hint: Hint) {
        self.work.notify_waiters();
        if hint == Hint::Control {
            self.control.notify_waiters();
        }
    }
}
