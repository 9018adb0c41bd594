//! The server's side of TLS, with client certificates required.

use std::sync::Arc;

use rustls::{RootCertStore, ServerConfig, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

use super::ServerError;
use crate::config::ServerTls;

pub(super) fn acceptor(tls: &ServerTls) -> Result<tokio_rustls::TlsAcceptor, ServerError> {
    let bad = |e: &dyn std::fmt::Display| ServerError::Tls(e.to_string());
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(tls.cert.as_bytes()).collect::<Result<_, _>>().map_err(|e| bad(&e))?;
    let key = PrivateKeyDer::from_pem_slice(tls.key.as_bytes()).map_err(|e| bad(&e))?;
    let mut roots = RootCertStore::empty();
    for ca in CertificateDer::pem_slice_iter(tls.client_ca.as_bytes()) {
        roots.add(ca.map_err(|e| bad(&e))?).map_err(|e| bad(&e))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().map_err(|e| bad(&e))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| bad(&e))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(|e| bad(&e))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(tokio_rustls::TlsAcceptor::from(Arc::new(config)))
}
