//! Where each part lies on this machine: in the cache, in the virtual environment or on `PATH`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    Error,
    parts::{CRDS_FOLDER, Part, Source, WEBHOOKS_FILE},
    place,
};

/// Where a part lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// Its program; for [`PARTS`] with several names, the folder with one link per name.
    pub path: PathBuf,
    /// Its version as it says itself, or as it was installed.
    pub version: String,
}

impl Located {
    /// The custom resource definitions that came with the program.
    pub(crate) fn crds(&self) -> PathBuf {
        self.path.with_file_name(CRDS_FOLDER)
    }

    /// The configurations of its webhooks.
    pub(crate) fn webhooks(&self) -> PathBuf {
        self.path.with_file_name(WEBHOOKS_FILE)
    }
}

impl Part {
    /// Finds the part without installing anything.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] when it is not there, is too old, does not work or is not asked for.
    pub fn locate(&self) -> Result<Located, Error> {
        if !self.is_asked_for() {
            let option = format!("only tests/run --with-{} installs and uses it", self.name);
            return Err(Error::unasked(self.name, option));
        }
        match &self.source {
            Source::DebianPackage { program, oldest, .. } => {
                self.locate_on_path(program, &["--version"], *oldest)
            }
            Source::PythonPackage { requirements } => {
                let environment = place::virtual_environment();
                let installed = fs::read_to_string(environment.join(self.marker_name()));
                match installed {
                    Ok(installed) if installed == *requirements => {
                        Ok(self.pinned(environment.join("bin/python")))
                    }
                    _ => Err(self.missing("it is not in the virtual environment")),
                }
            }
            Source::PythonEnvironment { .. } => self.locate_in_cache(Path::new("bin/python")),
            Source::GoCommand { package, .. } => {
                let program = package.rsplit('/').next().unwrap_or(package);
                self.locate_in_cache(Path::new(program))
            }
            Source::GoModule(module) if module.link_names.is_empty() => {
                self.locate_in_cache(Path::new(self.name))
            }
            Source::GoModule(_) => self.locate_in_cache(Path::new("")),
            Source::WheelProgram { file, oldest, .. } => {
                let program = file.rsplit('/').next().unwrap_or(file);
                self.locate_on_path(program, &["--version"], *oldest)
                    .or_else(|_| self.locate_in_cache(Path::new(file)))
            }
            Source::KubectlLayer { file, version_arguments, oldest } => {
                let program = file.rsplit('/').next().unwrap_or(file);
                self.locate_in_cache(Path::new(file))
                    .or_else(|_| self.locate_on_path(program, version_arguments, *oldest))
            }
        }
    }

    fn locate_in_cache(&self, file: &Path) -> Result<Located, Error> {
        let path = self.cache_folder()?.join(file);
        if path.exists() {
            return Ok(self.pinned(path));
        }
        Err(self.missing(&format!("{} does not exist", path.display())))
    }

    fn locate_on_path(
        &self,
        program: &str,
        version_arguments: &[&str],
        oldest: (u32, u32),
    ) -> Result<Located, Error> {
        let Some(path) = place::on_path(program) else {
            return Err(self.missing(&format!("no {program} on PATH")));
        };
        let answer = Command::new(&path).args(version_arguments).output();
        let text = match &answer {
            Ok(answer) if answer.status.success() => String::from_utf8_lossy(&answer.stdout),
            _ => return Err(self.missing(&format!("{} does not work", path.display()))),
        };
        match version_in(&text) {
            Some((major, minor, version)) if (major, minor) >= oldest => {
                Ok(Located { path, version })
            }
            Some((.., version)) => Err(self.missing(&format!(
                "{} is {version}, at least {}.{} is needed",
                path.display(),
                oldest.0,
                oldest.1
            ))),
            None => Err(self.missing(&format!("{} does not say its version", path.display()))),
        }
    }

    fn pinned(&self, path: PathBuf) -> Located {
        Located { path, version: self.version.to_owned() }
    }

    fn missing(&self, found: &str) -> Error {
        Error::missing(self.name, format!("{found}; tests/run installs it ({})", self.how_to_get()))
    }
}

/// The first `major.minor…` in a program's answer.
fn version_in(text: &str) -> Option<(u32, u32, String)> {
    text.split(|character: char| !(character.is_ascii_digit() || character == '.')).find_map(
        |word| {
            let mut numbers = word.split('.').map(str::parse::<u32>);
            let major = numbers.next()?.ok()?;
            let minor = numbers.next()?.ok()?;
            Some((major, minor, word.to_owned()))
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_say_of_themselves() {
        for (text, expected) in [
            ("Redis server v=7.0.15 sha=00000000:0", Some((7, 0))),
            ("Client Version: v1.32.4-dispatcher", Some((1, 32))),
            ("v4.1.4+g05fa379", Some((4, 1))),
            ("no version here", None),
        ] {
            let found = version_in(text).map(|(major, minor, _)| (major, minor));
            assert_eq!(found, expected, "{text}");
        }
    }
}
