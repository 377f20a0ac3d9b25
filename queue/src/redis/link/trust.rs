//! Which certificates of servers are trusted: read once, when a link begins.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

use super::super::address::Tls;
use super::error::LinkError;

/// What makes TLS of a connection; trusts exactly the authorities of the address, or the system's.
pub(super) fn connector(tls: &Tls, name: &str) -> Result<TlsConnector, LinkError> {
    let roots = match &tls.authorities {
        Some(file) => authorities_in(file).map_err(|problem| {
            LinkError::unfit(name, format!("ca {}: {problem}", file.display()))
        })?,
        None => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                let problem = "this system trusts no authority: install its package of \
                               certificates, or add ?ca=/path.pem to the address";
                return Err(LinkError::unfit(name, problem));
            }
            roots
        }
    };
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| LinkError::unfit(name, error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn authorities_in(file: &Path) -> Result<RootCertStore, String> {
    let bytes = std::fs::read(file).map_err(|error| error.to_string())?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&bytes) {
        let certificate = certificate.map_err(|error| format!("it is no PEM: {error}"))?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    if roots.is_empty() {
        return Err("it holds no certificate in PEM".to_owned());
    }
    Ok(roots)
}
