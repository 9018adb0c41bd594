//! The cluster's certificate authority: a small CA that signs server and client certificates, the key that signs
//! ServiceAccount tokens, and kubeconfig text. Keys are ECDSA P-256; certificates do not expire within a run.

use std::{
    fs,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::{ClientConfig, RootCertStore, ServerConfig, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject};

/// What can go wrong with certificates.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A key or certificate could not be made or read.
    #[error("make certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// PEM text that is none.
    #[error("read PEM: {0}")]
    Pem(#[from] rustls_pki_types::pem::Error),
    /// TLS refused the material.
    #[error("set up TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The client verifier could not be built.
    #[error("set up client verification: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// A certificate and its private key, as PEM text.
#[derive(Clone)]
pub struct Identity {
    /// Certificate, PEM.
    pub certificate: String,
    /// Private key, PKCS#8 PEM.
    pub key: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

impl Identity {
    fn der(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), PkiError> {
        let chain = CertificateDer::pem_slice_iter(self.certificate.as_bytes()).collect::<Result<_, _>>()?;
        let key = PrivatePkcs8KeyDer::from_pem_slice(self.key.as_bytes())?;
        Ok((chain, PrivateKeyDer::Pkcs8(key)))
    }
}

/// The authority of one cluster.
pub struct Authority {
    ca: Identity,
    service_account_key: String,
    /// The bearer token of the administrator.
    admin_token: String,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Authority {
    /// A fresh authority, kept nowhere.
    ///
    /// # Errors
    /// [`PkiError::Certificate`] when the machine gives no randomness.
    pub fn new() -> Result<Self, PkiError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "kubernetes");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        let certificate = params.self_signed(&key)?.pem();
        let service_account_key = KeyPair::generate()?.serialize_pem();
        // A fresh P-256 key is the randomness at hand that is fit for a secret.
        let admin_token = crate::auth::token::fingerprint(KeyPair::generate()?.serialized_der());
        Ok(Self { ca: Identity { certificate, key: key.serialize_pem() }, service_account_key, admin_token })
    }

    /// The authority kept in `dir`, made there (files mode 0600) when absent.
    ///
    /// # Errors
    /// [`PkiError`] naming the file.
    pub fn load(dir: &Path) -> Result<Self, PkiError> {
        const FILES: [&str; 4] = ["ca.crt", "ca.key", "sa.key", "admin.token"];
        let at = |name: &str| dir.join(name);
        let failed = |path: PathBuf| move |source| PkiError::File { path, source };
        if at(FILES[3]).exists() {
            let read = |name: &str| fs::read_to_string(at(name)).map_err(failed(at(name)));
            let ca = Identity { certificate: read(FILES[0])?, key: read(FILES[1])? };
            return Ok(Self { ca, service_account_key: read(FILES[2])?, admin_token: read(FILES[3])?.trim().into() });
        }
        fs::create_dir_all(dir).map_err(failed(dir.into()))?;
        let made = Self::new()?;
        let texts = [&made.ca.certificate, &made.ca.key, &made.service_account_key, &made.admin_token];
        for (name, text) in FILES.iter().zip(texts) {
            write_private(&at(name), text).map_err(failed(at(name)))?;
        }
        Ok(made)
    }

    /// The CA certificate, PEM.
    pub fn ca_pem(&self) -> &str {
        &self.ca.certificate
    }

    /// The key that signs ServiceAccount tokens, PKCS#8 PEM.
    pub fn service_account_key_pem(&self) -> &str {
        &self.service_account_key
    }

    /// The bearer token of the administrator (`kubernetes-admin`, group `system:masters`).
    pub fn admin_token(&self) -> &str {
        &self.admin_token
    }

    /// A serving certificate for the given DNS names and IP addresses; the first one is its common name.
    ///
    /// # Errors
    /// [`PkiError::Certificate`] for a name that fits no certificate.
    pub fn server_cert(&self, sans: &[&str]) -> Result<Identity, PkiError> {
        let mut params = CertificateParams::new(sans.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>())?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, sans.first().copied().unwrap_or("server"));
        self.sign(params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A client certificate: user `cn` in groups `organizations`.
    ///
    /// # Errors
    /// [`PkiError::Certificate`] when signing fails.
    pub fn client_cert(&self, cn: &str, organizations: &[&str]) -> Result<Identity, PkiError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, cn);
        for organization in organizations {
            params.distinguished_name.push(DnType::OrganizationName, *organization);
        }
        self.sign(params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(&self, mut params: CertificateParams, usage: ExtendedKeyUsagePurpose) -> Result<Identity, PkiError> {
        let issuer = Issuer::from_ca_cert_pem(&self.ca.certificate, KeyPair::from_pem(&self.ca.key)?)?;
        let key = KeyPair::generate()?;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages = vec![usage];
        let certificate = params.signed_by(&key, &issuer)?.pem();
        Ok(Identity { certificate, key: key.serialize_pem() })
    }

    fn roots(&self) -> Result<Arc<RootCertStore>, PkiError> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(self.ca.certificate.as_bytes()) {
            roots.add(certificate?)?;
        }
        Ok(Arc::new(roots))
    }

    /// TLS for a server that also takes (but does not demand) client certificates of this authority.
    ///
    /// # Errors
    /// [`PkiError`] when the material is refused.
    pub fn server_config(&self, identity: &Identity) -> Result<ServerConfig, PkiError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(self.roots()?, provider.clone())
            .allow_unauthenticated()
            .build()?;
        let (chain, key) = identity.der()?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }

    /// TLS for a client that trusts this authority and, given an identity, shows it.
    ///
    /// # Errors
    /// [`PkiError`] when the material is refused.
    pub fn client_config(&self, identity: Option<&Identity>) -> Result<ClientConfig, PkiError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(self.roots()?);
        Ok(match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let (chain, key) = identity.der()?;
                builder.with_client_auth_cert(chain, key)?
            }
        })
    }

    /// A kubeconfig for `server` (`https://host:port`) that shows a client certificate.
    pub fn kubeconfig(&self, server: &str, cluster: &str, user: &str, identity: &Identity) -> String {
        let data = |text: &str| STANDARD.encode(text);
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: {cluster}\n  cluster:\n    server: {server}\n    \
             certificate-authority-data: {}\nusers:\n- name: {user}\n  user:\n    client-certificate-data: {}\n    \
             client-key-data: {}\ncontexts:\n- name: {cluster}\n  context:\n    cluster: {cluster}\n    user: {user}\n\
             current-context: {cluster}\n",
            data(self.ca_pem()),
            data(&identity.certificate),
            data(&identity.key),
        )
    }
}

/// Writes a file that only its owner can read.
fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
