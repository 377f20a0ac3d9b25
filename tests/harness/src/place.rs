//! Where the harness keeps things: the one table of its folders.

use std::{
    env,
    path::{Path, PathBuf},
};

use crate::Error;

/// The root of the repository.
pub(crate) fn repository() -> PathBuf {
    let harness = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = harness.ancestors().nth(2).expect("the harness lies two folders below the root");
    root.to_owned()
}

/// Cargo's target folder, absolute.
pub(crate) fn target() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR").map(PathBuf::from) {
        Some(folder) if folder.is_absolute() => folder,
        Some(folder) => repository().join(folder),
        None => repository().join("target"),
    }
}

/// Folders and logs of running services, one folder per test process.
pub(crate) fn runs() -> PathBuf {
    target().join("tests-run")
}

/// Which parts took part and which tests were skipped in this test run.
pub(crate) fn report() -> PathBuf {
    target().join("tests-report")
}

/// Python's virtual environment for the parts that are Python packages.
pub(crate) fn virtual_environment() -> PathBuf {
    target().join("tests-venv")
}

/// Built parts; kept over clones and `cargo clean`, because they take minutes to build.
pub(crate) fn cache() -> Result<PathBuf, Error> {
    let cache_home = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|folder| folder.is_absolute())
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    cache_home.map(|folder| folder.join("ebbtide-tests")).ok_or_else(|| {
        Error::Unexpected("no cache folder: neither XDG_CACHE_HOME nor HOME is set".into())
    })
}

/// The first program of this name on `PATH`.
pub(crate) fn on_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}
