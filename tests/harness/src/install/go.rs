//! Parts built with the Go toolchain, one after the other: a build of the control plane takes all
//! cores and several gigabytes.

use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use super::run;
use crate::{Error, Part, parts::CONTROL_PLANE_LINKER_FLAGS, place};

/// `go install PACKAGE@VERSION` into `folder`.
pub(super) fn install_command(part: &Part, package: &str, folder: &Path) -> Result<(), Error> {
    run(go(part)?.args(["install", "-trimpath", "-ldflags", "-s -w", package]).env("GOBIN", folder))
}

/// Builds a module of ours and links the program under each of its names.
pub(super) fn build_module(
    part: &Part,
    module: &Path,
    link_names: &[&str],
    folder: &Path,
) -> Result<(), Error> {
    run(go(part)?
        .args(["build", "-trimpath", "-buildvcs=false"])
        .args(["-ldflags", CONTROL_PLANE_LINKER_FLAGS, "-o"])
        .arg(folder.join(part.name))
        .arg(".")
        .current_dir(module))?;
    for name in link_names {
        let link = folder.join(name);
        symlink(part.name, &link).map_err(Error::io("link", &link))?;
    }
    Ok(())
}

fn go(part: &Part) -> Result<Command, Error> {
    let usual_place = PathBuf::from("/usr/local/go/bin/go");
    let program = place::on_path("go").or_else(|| usual_place.is_file().then_some(usual_place));
    let Some(program) = program else {
        return Err(Error::missing(part.name, "it is built with Go: install Go 1.26 or newer"));
    };
    let mut command = Command::new(program);
    command.env("CGO_ENABLED", "0").env_remove("GOFLAGS");
    Ok(command)
}
