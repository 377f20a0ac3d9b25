//! The rights that Ebbtide needs on a server with access control lists.
//!
//! A user with the rule of [`acl_rule`] can do everything that one run needs, and nothing to the
//! keys of others:
//!
//! ```text
//! ACL SETUSER ebbtide on >PASSWORD resetkeys ~{RUN:* resetchannels &{RUN:c}:wake -@all
//!     +@read +@write -@dangerous +fcall +function|load +time +wait +ping
//!     +publish +subscribe +unsubscribe +info +config|get +cluster|slots +asking
//! ```
//!
//! - `@read` and `@write` without `@dangerous`: what the functions call, each command checked;
//! - `info`, `config|get`: the checks at start and the watch on memory. Without `config|get` (many
//!   managed services forbid it) the checks use what INFO shows and say what they could not see;
//!   durability safe on a single server does need it;
//! - `wait`: durability safe with replicas; `cluster|slots` and `asking`: a Cluster only;
//! - `select` must be added for a database other than 0.
//!
//! A user of a Sentinel needs `+sentinel|get-master-addr-by-name +ping` there.

use ebbtide_core::ids::RunId;

/// What an error message says about a right that is missing.
pub(super) const HOW_TO_GRANT: &str = "; grant the user what Ebbtide needs: ACL SETUSER name \
    ~{RUN:* &{RUN:c}:wake +@read +@write -@dangerous +fcall +function|load +time +wait +ping \
    +publish +subscribe +unsubscribe +info +config|get +cluster|slots +asking";

/// Arguments of `ACL SETUSER name on >password …` for a user that works on one run.
pub fn acl_rule(run: &RunId) -> Vec<String> {
    let keys = [format!("~{{{run}:*"), format!("&{{{run}:c}}:wake")];
    let commands = "-@all +@read +@write -@dangerous +fcall +function|load +time +wait +ping \
                    +publish +subscribe +unsubscribe +info +config|get +cluster|slots +asking";
    keys.into_iter().chain(commands.split_whitespace().map(str::to_owned)).collect()
}

/// Whether a script's error says that its user may not call a command or see a key.
pub(super) fn is_denial(details: &str) -> bool {
    details.contains("The user executing the script")
}
