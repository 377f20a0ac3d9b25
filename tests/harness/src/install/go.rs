//! Parts built with the Go toolchain, one after the other: a build of the control plane takes all
//! cores and several gigabytes.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;

use super::run;
use crate::{
    Error, Part,
    parts::{CRDS_FOLDER, GoModule, Manifests, STRIP, WEBHOOKS_FILE},
    place,
};

/// `go install PACKAGE@VERSION` into `folder`.
pub(super) fn install_command(
    part: &Part,
    package: &str,
    manifests: Option<&Manifests>,
    folder: &Path,
) -> Result<(), Error> {
    let versioned = format!("{package}@{}", part.version);
    run(go(part)?
        .args(["install", "-trimpath", "-ldflags", STRIP, &versioned])
        .env("GOBIN", folder))?;
    let Some(manifests) = manifests else { return Ok(()) };
    let module = format!("{}@{}", manifests.module, part.version);
    copy_manifests(manifests, &module_folder(part, &module, folder)?, folder)
}

/// Builds a module of ours and links the program under each of its names.
pub(super) fn build_module(part: &Part, module: &GoModule, folder: &Path) -> Result<(), Error> {
    let source = place::repository().join(module.folder);
    run(go(part)?
        .args(["build", "-trimpath", "-buildvcs=false"])
        .args(["-ldflags", module.linker_flags, "-o"])
        .arg(folder.join(part.name))
        .arg(module.dependency.unwrap_or("."))
        .current_dir(&source))?;
    for name in module.link_names {
        let link = folder.join(name);
        symlink(part.name, &link).map_err(Error::io("link", &link))?;
    }
    let Some(manifests) = &module.manifests else { return Ok(()) };
    copy_manifests(manifests, &module_folder(part, manifests.module, &source)?, folder)
}

/// Where Go keeps the content of a module; without `@VERSION` the version is that of the module in
/// `within`.
fn module_folder(part: &Part, module: &str, within: &Path) -> Result<PathBuf, Error> {
    let arguments = ["mod", "download", "-json", module];
    let mut command = go(part)?;
    command.args(arguments).current_dir(within).stdin(Stdio::null());
    let answer = command.output().map_err(Error::io("start", command.get_program()))?;
    let facts: Option<Value> = serde_json::from_slice(&answer.stdout).ok();
    match facts.as_ref().and_then(|facts| facts["Dir"].as_str()) {
        Some(folder) if answer.status.success() => Ok(PathBuf::from(folder)),
        _ => Err(Error::Command {
            command: format!("go {}", arguments.join(" ")),
            status: answer.status.to_string(),
            // With `-json` the reason is on standard output.
            stderr: [answer.stderr, answer.stdout]
                .map(|text| String::from_utf8_lossy(&text).into_owned())
                .concat(),
        }),
    }
}

fn copy_manifests(manifests: &Manifests, module: &Path, folder: &Path) -> Result<(), Error> {
    let crds = folder.join(CRDS_FOLDER);
    fs::create_dir(&crds).map_err(Error::io("create", &crds))?;
    for crd in manifests.crds {
        let name = crd.rsplit('/').next().unwrap_or(crd);
        copy(&module.join(crd), &crds.join(name))?;
    }
    match manifests.webhooks {
        Some(webhooks) => copy(&module.join(webhooks), &folder.join(WEBHOOKS_FILE)),
        None => Ok(()),
    }
}

fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    fs::copy(from, to).map(drop).map_err(Error::io("copy", from))
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
