//! Image references, normalised as Docker does: `busybox` is `docker.io/library/busybox:latest`.
//! Source of the grammar: distribution/reference.

use std::fmt;

use super::ImageError;

/// A normalised reference. It has a tag, a digest, or both.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    /// Registry, e.g. `registry.test` or `localhost:5000`.
    pub domain: String,
    /// Repository within it.
    pub path: String,
    /// Tag; `latest` when neither tag nor digest was given.
    pub tag: Option<String>,
    /// Digest with its algorithm.
    pub digest: Option<String>,
}

impl Reference {
    /// Parses and normalises.
    ///
    /// # Errors
    /// [`ImageError::Reference`] with Docker's words.
    pub fn parse(text: &str) -> Result<Self, ImageError> {
        let fail = |why| ImageError::Reference(text.to_owned(), why);
        if text.is_empty() || text.len() > 1024 {
            return Err(fail("invalid reference format"));
        }
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) if is_digest(digest) => (rest, Some(digest.to_owned())),
            Some(_) => return Err(fail("invalid reference format")),
            None => (text, None),
        };
        // A colon after the last slash begins the tag; one before it is a port.
        let (name, tag) = match rest.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            _ => (rest, None),
        };
        if tag.is_some_and(|t| !is_tag(t)) {
            return Err(fail("invalid reference format"));
        }
        if digest.is_none() && tag.is_none() && is_hex(name, 64) {
            return Err(fail("invalid repository name, cannot specify 64-byte hexadecimal strings"));
        }
        let (domain, path) = match name.split_once('/') {
            Some((first, rest))
                if first.contains(['.', ':'])
                    || first == "localhost"
                    || first.chars().any(|c| c.is_ascii_uppercase()) =>
            {
                (if first == "index.docker.io" { "docker.io" } else { first }, rest.to_owned())
            }
            _ => ("docker.io", name.to_owned()),
        };
        let path = if domain == "docker.io" && !path.contains('/') { format!("library/{path}") } else { path };
        if path.chars().any(|c| c.is_ascii_uppercase()) {
            return Err(fail("invalid reference format: repository name must be lowercase"));
        }
        if !is_domain(domain) || !path.split('/').all(is_component) || path.len() > 255 {
            return Err(fail("invalid reference format"));
        }
        let tag = tag.map(ToOwned::to_owned).or_else(|| digest.is_none().then(|| "latest".to_owned()));
        Ok(Self { domain: domain.to_owned(), path, tag, digest })
    }

    /// Registry and repository.
    pub fn name(&self) -> String {
        format!("{}/{}", self.domain, self.path)
    }

    /// What is asked of the registry: the digest when there is one.
    pub fn target(&self) -> &str {
        self.digest.as_deref().or(self.tag.as_deref()).unwrap_or("latest")
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.domain, self.path)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

fn is_hex(s: &str, len: usize) -> bool {
    s.len() == len && s.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// Whether this is a digest we can check.
pub(crate) fn is_digest(s: &str) -> bool {
    s.strip_prefix("sha256:").is_some_and(|h| is_hex(h, 64))
}

fn is_tag(s: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    s.len() <= 128 && s.bytes().next().is_some_and(word) && s.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

fn is_domain(s: &str) -> bool {
    let (host, port) = s.rsplit_once(':').map_or((s, None), |(h, p)| (h, Some(p)));
    let label = |l: &str| {
        !l.is_empty()
            && !l.starts_with('-')
            && !l.ends_with('-')
            && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    host.split('.').all(label) && port.is_none_or(|p| p.parse::<u16>().is_ok())
}

/// Lower-case words joined by one `.`, one or two `_`, or any number of `-`.
fn is_component(s: &str) -> bool {
    let alnum = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let edges = s.starts_with(alnum) && s.ends_with(alnum);
    edges
        && s.chars().all(|c| alnum(c) || matches!(c, '.' | '_' | '-'))
        && s.split(alnum).all(|sep| matches!(sep, "" | "." | "_" | "__") || sep.bytes().all(|b| b == b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_normalise_as_docker_does() {
        let d = format!("sha256:{}", "a".repeat(64));
        for (given, want) in [
            ("busybox", "docker.io/library/busybox:latest"),
            ("a/b:1", "docker.io/a/b:1"),
            ("localhost/x", "localhost/x:latest"),
            ("localhost:5000/x/y:v1.2_3", "localhost:5000/x/y:v1.2_3"),
            ("registry.test/testimage:1", "registry.test/testimage:1"),
            ("index.docker.io/x", "docker.io/library/x:latest"),
            (&format!("q.io/a__b/c--d@{d}"), &format!("q.io/a__b/c--d@{d}")),
            (&format!("q.io/a:1@{d}"), &format!("q.io/a:1@{d}")),
        ] {
            assert_eq!(Reference::parse(given).map(|r| r.to_string()).unwrap(), want, "{given}");
        }
    }

    #[test]
    fn what_is_no_reference_is_refused() {
        for bad in [
            "",
            "UPPER",
            "a..b",
            "a:",
            "a:b:c d",
            "a@sha256:1",
            "-a",
            "a_",
            "a/b//c",
            "x.io:99999/a",
            &"a".repeat(64),
            "a___b",
            "../x",
        ] {
            assert!(Reference::parse(bad).is_err(), "{bad}");
        }
    }
}
