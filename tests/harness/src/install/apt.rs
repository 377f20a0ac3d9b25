//! Debian packages; only as root.

use std::{process::Command, sync::OnceLock};

use super::run;
use crate::{Error, Part, place};

/// Installs a package, after refreshing the list of packages once.
pub(super) fn install(part: &Part, package: &str) -> Result<(), Error> {
    if place::on_path("apt-get").is_none() {
        let how = format!("this system has no apt-get; install {package} by its own means");
        return Err(Error::missing(part.name, how));
    }
    if !rustix::process::geteuid().is_root() {
        let how = format!("as root: apt-get install {package}");
        return Err(Error::missing(part.name, how));
    }
    static REFRESHED: OnceLock<()> = OnceLock::new();
    if REFRESHED.get().is_none() {
        run(apt_get().arg("update"))?;
        REFRESHED.get_or_init(|| ());
    }
    run(apt_get().args(["install", "--yes", "--no-install-recommends", package]))
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command
        .arg("--quiet")
        .env("DEBIAN_FRONTEND", "noninteractive")
        // Tests start their own services, so the package's is not started after installing it.
        .env("RUNLEVEL", "1");
    command
}
