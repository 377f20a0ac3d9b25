//! Certificates for servers with TLS, signed by an authority of the test's own.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use crate::{Error, folder::RunFolder};

/// An authority, and one certificate of it for `127.0.0.1` and `localhost`.
#[derive(Debug)]
pub struct RedisAuthority {
    folder: RunFolder,
}

impl RedisAuthority {
    /// Makes one; the files go with it.
    ///
    /// # Errors
    ///
    /// When a file cannot be written.
    pub fn create() -> Result<Self, Error> {
        let folder = RunFolder::create("redis-authority")?;
        let failed = |error: rcgen::Error| Error::Unexpected(format!("certificate: {error}"));
        let mut authority = CertificateParams::default();
        // Another name than the server's: one that seems to have signed itself is not accepted.
        authority.distinguished_name.push(DnType::CommonName, "authority of a test");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().map_err(failed)?;
        let authority = CertifiedIssuer::self_signed(authority, key).map_err(failed)?;
        let names = ["127.0.0.1".to_owned(), "localhost".to_owned()];
        let mut server = CertificateParams::new(names).map_err(failed)?;
        server.distinguished_name.push(DnType::CommonName, "redis of a test");
        let server_key = KeyPair::generate().map_err(failed)?;
        let server = server.signed_by(&server_key, &authority).map_err(failed)?;
        let made = Self { folder };
        for (file, text) in [
            (made.certificate(), authority.pem()),
            (made.server_certificate(), server.pem()),
            (made.server_key(), server_key.serialize_pem()),
        ] {
            fs::write(&file, text).map_err(Error::io("write", &file))?;
        }
        Ok(made)
    }

    /// The authority's certificate in PEM, for clients.
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        self.folder.data().join("authority.pem")
    }

    /// Arguments of a server that speaks TLS on this port, beside its plain port.
    pub(super) fn arguments(&self, port: u16) -> Vec<String> {
        let text = |path: &Path| path.display().to_string();
        let pairs = [
            ("--tls-port", port.to_string()),
            ("--tls-cert-file", text(&self.server_certificate())),
            ("--tls-key-file", text(&self.server_key())),
            ("--tls-ca-cert-file", text(&self.certificate())),
            ("--tls-auth-clients", "no".to_owned()),
        ];
        pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
    }

    fn server_certificate(&self) -> PathBuf {
        self.folder.data().join("server.pem")
    }

    fn server_key(&self) -> PathBuf {
        self.folder.data().join("server-key.pem")
    }
}
