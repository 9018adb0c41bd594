//! Image names: parsing, the default tag, and what a pull policy asks for.
//!
//! Source: github.com/distribution/reference (grammar and messages); k/k pkg/util/parsers/parsers.go.

/// Why an image name is not one. `Display` is upstream's text after `couldn't parse image name "<n>": `.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InvalidName {
    /// Not of the grammar at all.
    Format,
    /// An upper-case letter in the repository.
    Uppercase(String),
    /// 64 hex digits alone.
    Id,
    /// Repository over 255 characters.
    TooLong,
}

impl std::fmt::Display for InvalidName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Format => f.write_str("invalid reference format"),
            Self::Uppercase(part) => write!(f, "invalid reference format: repository name ({part}) must be lowercase"),
            Self::Id => f.write_str("invalid repository name, cannot specify 64-byte hexadecimal strings"),
            Self::TooLong => f.write_str("repository name must not be more than 255 characters"),
        }
    }
}

impl std::error::Error for InvalidName {}

/// An image name taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageName {
    /// Registry host with port; `docker.io` when the name has none.
    pub domain: String,
    /// Path inside the registry.
    pub path: String,
    /// Tag, if given.
    pub tag: Option<String>,
    /// Digest, if given.
    pub digest: Option<String>,
}

impl ImageName {
    /// Takes a name apart.
    ///
    /// # Errors
    /// [`InvalidName`] in upstream's words.
    pub fn parse(name: &str) -> Result<Self, InvalidName> {
        if name.len() == 64 && name.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
            return Err(InvalidName::Id);
        }
        let (rest, digest) = match name.split_once('@') {
            Some((rest, d)) if is_digest(d) => (rest, Some(d.to_owned())),
            Some(_) => return Err(InvalidName::Format),
            None => (name, None),
        };
        let (domain, remote) = match rest.split_once('/') {
            Some((host, path)) if host.contains(['.', ':']) || host == "localhost" || host.to_lowercase() != host => {
                (host, path)
            }
            _ => ("docker.io", rest),
        };
        let (path, tag) = match remote.rsplit_once(':') {
            Some((path, tag)) => (path, Some(tag)),
            None => (remote, None),
        };
        if path.to_lowercase() != path {
            return Err(InvalidName::Uppercase(path.to_owned()));
        }
        let path =
            if domain == "docker.io" && !path.contains('/') { format!("library/{path}") } else { path.to_owned() };
        let path_ok = path.split('/').all(is_component) && is_domain(domain);
        if !path_ok || tag.is_some_and(|t| !is_tag(t)) {
            return Err(InvalidName::Format);
        }
        if domain.len() + 1 + path.len() > 255 {
            return Err(InvalidName::TooLong);
        }
        Ok(Self { domain: domain.to_owned(), path, tag: tag.map(str::to_owned), digest })
    }
}

/// The name to give the runtime: as written, with `:latest` when it has neither tag nor digest.
///
/// # Errors
/// [`InvalidName`] in upstream's words.
pub fn with_default_tag(name: &str) -> Result<String, InvalidName> {
    let parsed = ImageName::parse(name)?;
    let complete = parsed.tag.is_some() || parsed.digest.is_some();
    Ok(if complete { name.to_owned() } else { format!("{name}:latest") })
}

/// `imagePullPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullPolicy {
    /// Ask the registry every time.
    Always,
    /// Pull what is not there.
    IfNotPresent,
    /// Never pull.
    Never,
}

impl PullPolicy {
    /// Absent means `IfNotPresent`; the API server fills it in.
    pub fn parse(s: Option<&str>) -> Self {
        match s {
            Some("Always") => Self::Always,
            Some("Never") => Self::Never,
            _ => Self::IfNotPresent,
        }
    }

    /// Whether to pull, given whether the image is on the node; `None` when it is missing and may not be pulled.
    pub fn decide(self, present: bool) -> Option<bool> {
        match (self, present) {
            (Self::Always, _) | (Self::IfNotPresent, false) => Some(true),
            (Self::IfNotPresent | Self::Never, true) => Some(false),
            (Self::Never, false) => None,
        }
    }
}

fn is_digest(d: &str) -> bool {
    let Some((algorithm, hex)) = d.split_once(':') else { return false };
    !algorithm.is_empty()
        && algorithm.bytes().all(|b| b.is_ascii_alphanumeric() || b"+._-".contains(&b))
        && hex.len() >= 32
        && hex.bytes().all(|b| b.is_ascii_hexdigit())
}

fn is_tag(t: &str) -> bool {
    let first = t.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_');
    first && t.len() <= 128 && t.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

fn is_component(c: &str) -> bool {
    let alnum = |b: u8| b.is_ascii_digit() || b.is_ascii_lowercase();
    let bytes = c.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
    if !alnum(*first) || !alnum(*last) || !bytes.iter().all(|b| alnum(*b) || b"._-".contains(b)) {
        return false;
    }
    // Between alphanumerics: one dot, one or two underscores, or any number of dashes.
    c.split(|ch: char| ch.is_ascii_alphanumeric())
        .filter(|sep| !sep.is_empty())
        .all(|sep| matches!(sep, "." | "_" | "__") || sep.bytes().all(|b| b == b'-'))
}

fn is_domain(d: &str) -> bool {
    let (host, port) = match d.rsplit_once(':') {
        Some((h, p)) if !d.ends_with(']') => (h, Some(p)),
        _ => (d, None),
    };
    let port_ok = port.is_none_or(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()));
    let v6 = host.starts_with('[') && host.ends_with(']');
    port_ok
        && (v6
            || host.split('.').all(|l| {
                !l.is_empty()
                    && !l.starts_with('-')
                    && !l.ends_with('-')
                    && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_take_the_default_tag_only_when_bare() {
        for (name, expect) in [
            ("busybox", "busybox:latest"),
            ("registry.test/testimage:1", "registry.test/testimage:1"),
            ("localhost:5000/a/b", "localhost:5000/a/b:latest"),
            ("a/b__c-d.e", "a/b__c-d.e:latest"),
        ] {
            assert_eq!(with_default_tag(name).as_deref(), Ok(expect), "{name}");
        }
        let pinned = format!("a/b@sha256:{}", "0".repeat(64));
        assert_eq!(with_default_tag(&pinned), Ok(pinned.clone()));
    }

    #[test]
    fn what_does_not_parse_says_why_in_upstreams_words() {
        for (name, expect) in [
            ("UPPER/Case:1", "invalid reference format: repository name (Case) must be lowercase"),
            ("a b", "invalid reference format"),
            ("a//b", "invalid reference format"),
            ("", "invalid reference format"),
            ("a:", "invalid reference format"),
            ("a@b", "invalid reference format"),
        ] {
            assert_eq!(with_default_tag(name).map_err(|e| e.to_string()), Err(expect.to_owned()), "{name}");
        }
    }
}
