//! A Python environment that one part has for itself.

use std::{fs, path::Path, path::PathBuf, process::Command};

use super::run;
use crate::{Error, Part, place};

/// The oldest Python that will do.
const OLDEST: (u32, u32) = (3, 11);

/// Names under which such a Python may be found.
const PYTHONS: [&str; 4] = ["python3", "python3.13", "python3.12", "python3.11"];

/// Makes the environment in `folder`, which is renamed afterwards: only `bin/python -m …` works.
pub(super) fn make(part: &Part, requirements: &str, folder: &Path) -> Result<(), Error> {
    let python = find_python(part)?;
    run(Command::new(python).args(["-m", "venv"]).arg(folder))?;
    let wanted = folder.join("requirements.txt");
    fs::write(&wanted, requirements).map_err(Error::io("write", &wanted))?;
    let pip = ["-m", "pip", "--disable-pip-version-check", "install", "--quiet"];
    // What is so large is kept once.
    let options = ["--no-deps", "--no-cache-dir", "--requirement"];
    run(Command::new(folder.join("bin/python")).args(pip).args(options).arg(&wanted))?;
    let packages = packages_of(folder)?;
    write(&packages.join("end_with_parent.py"), include_str!("end_with_parent.py"))?;
    write(&packages.join("end_with_parent.pth"), "import end_with_parent\n")?;
    // Its programs ask for the metadata of a package of the part's name.
    let metadata = packages.join(format!("{}-{}+cpu.dist-info", part.name, part.version));
    fs::create_dir_all(&metadata).map_err(Error::io("create", &metadata))?;
    let text =
        format!("Metadata-Version: 2.1\nName: {}\nVersion: {}+cpu\n", part.name, part.version);
    write(&metadata.join("METADATA"), &text)
}

fn find_python(part: &Part) -> Result<PathBuf, Error> {
    let (major, minor) = OLDEST;
    let question = format!("import ensurepip, sys, venv; sys.exit(sys.version_info < {OLDEST:?})");
    let will_do = |python: &PathBuf| {
        let answer = Command::new(python).args(["-c", &question]).output();
        answer.is_ok_and(|answer| answer.status.success())
    };
    PYTHONS.into_iter().filter_map(place::on_path).find(will_do).ok_or_else(|| {
        Error::missing(part.name, format!("it needs Python {major}.{minor} or later, with venv"))
    })
}

fn packages_of(folder: &Path) -> Result<PathBuf, Error> {
    let question = "import sysconfig; print(sysconfig.get_path('purelib'), end='')";
    let python = folder.join("bin/python");
    let answer = Command::new(&python).args(["-c", question]).output();
    let answer = answer.map_err(Error::io("start", &python))?;
    Ok(PathBuf::from(String::from_utf8_lossy(&answer.stdout).into_owned()))
}

fn write(file: &Path, text: &str) -> Result<(), Error> {
    fs::write(file, text).map_err(Error::io("write", file))
}
