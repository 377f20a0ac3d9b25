//! What an operator may not have meant to risk, told once at start.

/// Servers by what would be lost with them.
#[derive(Default)]
pub(super) struct Losses {
    pub unsaved: Vec<String>,
    pub unverified: Vec<String>,
    pub stopping_all: Vec<String>,
}

impl Losses {
    /// Tells the operator, in one line for each kind.
    pub fn warn(&self) {
        let Self { unsaved, unverified, stopping_all } = self;
        if !unsaved.is_empty() {
            tracing::warn!(
                servers = unsaved.join(", "),
                "nothing is saved to disk: a restart loses the work that waits or is in flight \
                 and the sealed groups that were not taken; set appendonly yes"
            );
        }
        if !unverified.is_empty() {
            let servers = unverified.join(", ");
            tracing::warn!(servers, "cannot see whether data is saved to disk: no CONFIG GET");
        }
        if !stopping_all.is_empty() {
            let servers = stopping_all.join(", ");
            tracing::warn!(
                servers,
                "one lost master stops the whole cluster; set cluster-require-full-coverage no"
            );
        }
    }
}
