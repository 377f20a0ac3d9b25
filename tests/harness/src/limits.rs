//! What the kernel lets a test have.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Error;

/// Lets this process have so many files and sockets open; many systems begin with 1,024.
///
/// # Errors
///
/// [`Error::Unexpected`] when the system allows fewer.
pub fn allow_open_files(count: u64) -> Result<(), Error> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= count) {
        return Ok(());
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum: limit.maximum }).map_err(
        |error| {
            let most = limit.maximum.map_or_else(|| "any number".to_owned(), |it| it.to_string());
            Error::Unexpected(format!(
                "{count} open files are needed, {most} allowed (`ulimit -Hn`): {error}"
            ))
        },
    )
}
