//! Parts that are built with Go: what is built, what the build depends on, and which files of
//! their modules are kept beside the program.

use std::fs;

use crate::{Error, place};

/// A Go module of ours.
#[derive(Debug)]
pub(crate) struct GoModule {
    /// Its folder, from the root of the repository.
    pub(crate) folder: &'static str,
    /// The files in it that the build depends on.
    pub(crate) sources: &'static [&'static str],
    /// The program of a dependency that is built; none for the module's own.
    pub(crate) dependency: Option<&'static str>,
    /// For the linker.
    pub(crate) linker_flags: &'static str,
    /// The program is linked under each of these names; none when it has only the part's name.
    pub(crate) link_names: &'static [&'static str],
    /// What is kept beside the program.
    pub(crate) manifests: Option<Manifests>,
}

/// Manifests of a Go module, copied beside the program when it is built, so that tests need no Go.
#[derive(Debug)]
pub(crate) struct Manifests {
    /// The module that has them.
    pub(crate) module: &'static str,
    /// Custom resource definitions, by their paths in the module; kept in [`CRDS_FOLDER`].
    pub(crate) crds: &'static [&'static str],
    /// Webhook configurations, likewise; kept as [`WEBHOOKS_FILE`].
    pub(crate) webhooks: Option<&'static str>,
}

/// Beside a program: the folder of its custom resource definitions.
pub(crate) const CRDS_FOLDER: &str = "crds";
/// Beside a program: the configurations of its webhooks.
pub(crate) const WEBHOOKS_FILE: &str = "webhooks.yaml";

impl GoModule {
    /// Changes with everything that the built part depends on.
    ///
    /// # Errors
    ///
    /// When a file of the module cannot be read.
    pub(super) fn fingerprint(&self) -> Result<u64, Error> {
        let folder = place::repository().join(self.folder);
        let mut hash = OFFSET_BASIS;
        for name in self.sources {
            let file = folder.join(name);
            let content = fs::read(&file).map_err(Error::io("read", &file))?;
            hash = hash_on(hash_on(hash, &content), self.linker_flags.as_bytes());
        }
        hash = hash_on(hash, self.dependency.unwrap_or_default().as_bytes());
        Ok(self.manifests.as_ref().map_or(hash, |manifests| manifests.hash_on(hash)))
    }
}

impl Manifests {
    /// Changes with the list of files; their content changes only with the part's version.
    pub(super) fn fingerprint(&self) -> u64 {
        self.hash_on(OFFSET_BASIS)
    }

    fn hash_on(&self, hash: u64) -> u64 {
        let paths = self.crds.iter().copied().chain(self.webhooks);
        paths.fold(hash, |hash, path| hash_on(hash, path.as_bytes()))
    }
}

const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

/// Changes with the bytes.
pub(super) fn fingerprint(bytes: &[u8]) -> u64 {
    hash_on(OFFSET_BASIS, bytes)
}

/// FNV-1a, continued.
fn hash_on(hash: u64, bytes: &[u8]) -> u64 {
    const PRIME: u64 = 0x0100_0000_01b3;
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME))
}
