//! Certificates, tokens and kubeconfigs of one control plane, made anew for each.

use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use serde_json::{Value, json};

use crate::Error;

const ADMINISTRATOR: &str = "administrator";

/// Users without any rights but those a test binds to them.
pub const NARROW_USERS: [&str; 4] = ["narrow-1", "narrow-2", "narrow-3", "narrow-4"];

#[derive(Debug)]
pub(crate) struct Credentials {
    folder: PathBuf,
    server_url: String,
}

impl Credentials {
    /// Writes everything the servers and the users need into `folder`.
    pub(crate) fn create(folder: &Path, server_url: String) -> Result<Self, Error> {
        let credentials = Self { folder: folder.to_owned(), server_url };
        credentials.write_certificates()?;
        let mut tokens = BTreeMap::new();
        for user in NARROW_USERS.into_iter().chain([ADMINISTRATOR]) {
            let token = random_token()?;
            credentials.write_kubeconfig(user, &token)?;
            tokens.insert(user, token);
        }
        let lines: String = tokens
            .iter()
            .map(|(user, token)| {
                let groups = if *user == ADMINISTRATOR { ",\"system:masters\"" } else { "" };
                format!("{token},{user},{user}{groups}\n")
            })
            .collect();
        write_secret(&credentials.tokens(), &lines)?;
        Ok(credentials)
    }

    pub(crate) fn authority(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    pub(crate) fn server_certificate(&self) -> PathBuf {
        self.folder.join("server.crt")
    }

    pub(crate) fn server_key(&self) -> PathBuf {
        self.folder.join("server.key")
    }

    pub(crate) fn account_key(&self) -> PathBuf {
        self.folder.join("service-accounts.key")
    }

    /// The API server reads only the public half from this kind of key.
    pub(crate) fn account_public_key(&self) -> PathBuf {
        self.folder.join("service-accounts.pub")
    }

    pub(crate) fn tokens(&self) -> PathBuf {
        self.folder.join("tokens.csv")
    }

    pub(crate) fn admin_kubeconfig(&self) -> PathBuf {
        self.kubeconfig_of(ADMINISTRATOR)
    }

    pub(crate) fn kubeconfig_of(&self, user: &str) -> PathBuf {
        self.folder.join(format!("{user}.kubeconfig"))
    }

    fn write_kubeconfig(&self, user: &str, token: &str) -> Result<(), Error> {
        let content = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{
                "name": "ebbtide-tests",
                "cluster": {
                    "server": self.server_url,
                    "certificate-authority": self.authority(),
                },
            }],
            "users": [{ "name": user, "user": { "token": token } }],
            "contexts": [{
                "name": "ebbtide-tests",
                "context": { "cluster": "ebbtide-tests", "user": user },
            }],
            "current-context": "ebbtide-tests",
        });
        write_secret(&self.kubeconfig_of(user), &content.to_string())
    }

    /// An authority, the API server's certificate for 127.0.0.1, and the key that signs tokens of
    /// service accounts.
    fn write_certificates(&self) -> Result<(), Error> {
        let refused =
            |error: rcgen::Error| Error::Unexpected(format!("making certificates: {error}"));
        let mut authority = CertificateParams::default();
        authority.distinguished_name.push(DnType::CommonName, "ebbtide-tests");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let authority_key = KeyPair::generate().map_err(refused)?;
        let authority_certificate = authority.self_signed(&authority_key).map_err(refused)?;

        let server_key = KeyPair::generate().map_err(refused)?;
        let names = ["127.0.0.1", "localhost", "kubernetes.default.svc"].map(String::from);
        let server = CertificateParams::new(names)
            .and_then(|it| it.signed_by(&server_key, &Issuer::new(authority, authority_key)))
            .map_err(refused)?;
        let account_key = KeyPair::generate().map_err(refused)?;

        write_secret(&self.authority(), &authority_certificate.pem())?;
        write_secret(&self.server_certificate(), &server.pem())?;
        write_secret(&self.server_key(), &server_key.serialize_pem())?;
        write_secret(&self.account_public_key(), &account_key.public_key_pem())?;
        write_secret(&self.account_key(), &account_key.serialize_pem())
    }
}

/// Writes a kubeconfig for the same cluster as another one, with a token instead of its user.
pub(super) fn write_for_token(file: &Path, other: &str, token: &str) -> Result<(), Error> {
    let mut content: Value = serde_json::from_str(other)
        .map_err(|error| Error::Unexpected(format!("kubeconfig is no JSON: {error}")))?;
    content["users"][0]["user"] = json!({ "token": token });
    write_secret(file, &content.to_string())
}

fn write_secret(file: &Path, content: &str) -> Result<(), Error> {
    fs::write(file, content)
        .and_then(|()| fs::set_permissions(file, fs::Permissions::from_mode(0o600)))
        .map_err(Error::io("write", file))
}

/// Other users of this machine can reach the API server too, so tokens are not guessable.
fn random_token() -> Result<String, Error> {
    let source = "/dev/urandom";
    let mut bytes = [0_u8; 16];
    fs::File::open(source)
        .and_then(|mut opened| opened.read_exact(&mut bytes))
        .map_err(Error::io("read", source))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
