//! ServiceAccount tokens: JWTs signed with the cluster's ES256 key.
//! Source: k/k pkg/serviceaccount/{jwt,claims}.go.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use podlab_api::ApiError;
use rcgen::{KeyPair, PublicKeyData, SigningKey};
use rustls_pki_types::{SignatureVerificationAlgorithm, alg_id};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::pki::PkiError;

/// Signs and verifies tokens.
pub(crate) struct TokenSigner {
    key: KeyPair,
    key_id: String,
    issuer: String,
    verifier: &'static dyn SignatureVerificationAlgorithm,
}

impl std::fmt::Debug for TokenSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenSigner").field("issuer", &self.issuer).finish_non_exhaustive()
    }
}

/// Hex SHA-256.
pub(crate) fn fingerprint(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

impl TokenSigner {
    /// A signer with a PKCS#8 PEM key.
    ///
    /// # Errors
    /// When the key cannot be read, or is not ECDSA P-256.
    pub fn new(key_pem: &str, issuer: &str) -> Result<Self, PkiError> {
        let key = KeyPair::from_pem(key_pem)?;
        let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
        let found = algorithms
            .all
            .iter()
            .copied()
            .find(|a| a.public_key_alg_id() == alg_id::ECDSA_P256 && a.signature_alg_id() == alg_id::ECDSA_SHA256);
        let verifier = found.ok_or_else(|| PkiError::Tls(rustls::Error::General("ES256 is not supported".into())))?;
        let key_id = URL_SAFE_NO_PAD.encode(Sha256::digest(key.der_bytes()));
        Ok(Self { key, key_id, issuer: issuer.to_owned(), verifier })
    }

    /// `iss` of the tokens.
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// A signed token.
    ///
    /// # Errors
    /// 500 when the key refuses to sign.
    pub fn sign(&self, claims: &Value) -> Result<String, ApiError> {
        let failed = |why: &str| ApiError::internal(format!("Internal error occurred: sign token: {why}"));
        let header = json!({"alg": "ES256", "kid": self.key_id});
        let body = format!("{}.{}", encode(header.to_string()), encode(claims.to_string()));
        let der = self.key.sign(body.as_bytes()).map_err(|e| failed(&e.to_string()))?;
        let raw = raw_signature(&der).ok_or_else(|| failed("unexpected form of signature"))?;
        Ok(format!("{body}.{}", encode(raw)))
    }

    /// The claims of a token that this key signed. Expiry and audience are the caller's to check.
    pub fn verify(&self, token: &str) -> Option<Value> {
        let (body, signature) = token.rsplit_once('.')?;
        let (header, claims) = body.split_once('.')?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
        let header: Value = serde_json::from_slice(&decode(header)?).ok()?;
        if header.get("alg")?.as_str()? != "ES256" {
            return None;
        }
        let der = der_signature(&decode(signature)?)?;
        self.verifier.verify_signature(self.key.der_bytes(), body.as_bytes(), &der).ok()?;
        let claims: Value = serde_json::from_slice(&decode(claims)?).ok()?;
        (claims.get("iss")?.as_str()? == self.issuer).then_some(claims)
    }

    /// The public key as a JSON web key set.
    pub fn jwks(&self) -> Value {
        // An uncompressed point: 4, then x and y of 32 bytes each.
        let point = self.key.der_bytes();
        let (x, y) = point.get(1..65).map_or((&[][..], &[][..]), |p| p.split_at(32));
        json!({"keys": [{"use": "sig", "kty": "EC", "kid": self.key_id, "crv": "P-256", "alg": "ES256",
            "x": encode(x), "y": encode(y)}]})
    }
}

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// `r || s` of a DER `SEQUENCE { INTEGER r, INTEGER s }`.
fn raw_signature(der: &[u8]) -> Option<[u8; 64]> {
    let body = der.strip_prefix(&[0x30])?;
    let body = body.get(1..)?;
    let (r, rest) = der_integer(body)?;
    let (s, _) = der_integer(rest)?;
    let mut out = [0; 64];
    for (half, number) in out.chunks_mut(32).zip([r, s]) {
        let trimmed = &number[number.iter().take_while(|b| **b == 0).count()..];
        half.get_mut(32_usize.checked_sub(trimmed.len())?..)?.copy_from_slice(trimmed);
    }
    Some(out)
}

fn der_integer(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let body = der.strip_prefix(&[0x02])?;
    let (len, rest) = body.split_first()?;
    rest.split_at_checked(usize::from(*len))
}

fn der_signature(raw: &[u8]) -> Option<Vec<u8>> {
    if raw.len() != 64 {
        return None;
    }
    let mut body = Vec::with_capacity(72);
    for half in raw.chunks(32) {
        let trimmed = &half[half.iter().take_while(|b| **b == 0).count().min(31)..];
        let pad = usize::from(trimmed[0] & 0x80 != 0);
        body.push(0x02);
        body.push(u8::try_from(trimmed.len() + pad).ok()?);
        body.extend(std::iter::repeat_n(0, pad));
        body.extend_from_slice(trimmed);
    }
    let mut out = vec![0x30, u8::try_from(body.len()).ok()?];
    out.append(&mut body);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_verifies_with_its_key_and_no_other() {
        let pem = |()| KeyPair::generate().unwrap().serialize_pem();
        let signer = TokenSigner::new(&pem(()), "iss").unwrap();
        let other = TokenSigner::new(&pem(()), "iss").unwrap();
        for n in 0..20 {
            let token = signer.sign(&json!({"iss": "iss", "sub": n})).unwrap();
            assert_eq!(signer.verify(&token).unwrap()["sub"], n);
            assert!(other.verify(&token).is_none());
            assert!(signer.verify(&token[..token.len() - 2]).is_none());
        }
        assert!(signer.verify("a.b.c").is_none());
    }
}
