//! The rules for names, labels and annotations. Each returns the broken rules in upstream's words.
//! Source: k/k staging/src/k8s.io/apimachinery/pkg/util/validation/validation.go.

use std::sync::LazyLock;

use regex::Regex;

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("the pattern is a constant of this module")
}

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const LABEL_1035: &str = "[a-z]([-a-z0-9]*[a-z0-9])?";
const QUALIFIED: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const LABEL_VALUE: &str = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";

static LABEL_RE: LazyLock<Regex> = LazyLock::new(|| pattern(&format!("^{LABEL}$")));
static SUBDOMAIN_RE: LazyLock<Regex> = LazyLock::new(|| pattern(&format!("^{SUBDOMAIN}$")));
static LABEL_1035_RE: LazyLock<Regex> = LazyLock::new(|| pattern(&format!("^{LABEL_1035}$")));
static QUALIFIED_RE: LazyLock<Regex> = LazyLock::new(|| pattern(&format!("^{QUALIFIED}$")));
static LABEL_VALUE_RE: LazyLock<Regex> = LazyLock::new(|| pattern(&format!("^{LABEL_VALUE}$")));
const SYSCTL_SEGMENT: &str = "[a-z0-9]([-_a-z0-9]*[a-z0-9])?";
static SYSCTL_RE: LazyLock<Regex> = LazyLock::new(|| pattern(&format!("^{}$", sysctl_pattern())));
static ENV_RE: LazyLock<Regex> = LazyLock::new(|| pattern("^[ -<>-~]+$"));

fn regex_error(text: &str, regex: &str, examples: &[&str]) -> String {
    let examples = examples.iter().map(|e| format!("'{e}'")).collect::<Vec<_>>().join(",  or ");
    format!("{text} (e.g. {examples}, regex used for validation is '{regex}')")
}

fn too_long(max: usize) -> String {
    format!("must be no more than {max} bytes")
}

fn sysctl_pattern() -> String {
    format!(r"({SYSCTL_SEGMENT}[\./])*{SYSCTL_SEGMENT}")
}

/// A kernel parameter, its parts separated by dots or slashes.
/// Source: k/k pkg/apis/core/validation/validation.go IsValidSysctlName.
pub(crate) fn sysctl(name: &str) -> Vec<String> {
    const MAX: usize = 253;
    if name.len() <= MAX && SYSCTL_RE.is_match(name) {
        return Vec::new();
    }
    vec![format!("must have at most {MAX} characters and match regex {}", sysctl_pattern())]
}

/// DNS-1123 label, at most 63 bytes.
pub(crate) fn dns_label(name: &str) -> Vec<String> {
    let mut broken = Vec::new();
    if name.len() > 63 {
        broken.push(too_long(63));
    }
    if !LABEL_RE.is_match(name) {
        let text = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must \
                    start and end with an alphanumeric character";
        broken.push(regex_error(text, LABEL, &["my-name", "123-abc"]));
    }
    broken
}

/// DNS-1123 subdomain, at most 253 bytes.
pub(crate) fn dns_subdomain(name: &str) -> Vec<String> {
    let mut broken = Vec::new();
    if name.len() > 253 {
        broken.push(too_long(253));
    }
    if !SUBDOMAIN_RE.is_match(name) {
        let text = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
                    and must start and end with an alphanumeric character";
        broken.push(regex_error(text, SUBDOMAIN, &["example.com"]));
    }
    broken
}

/// DNS-1035 label, at most 63 bytes: names of Services.
pub(crate) fn dns1035_label(name: &str) -> Vec<String> {
    let mut broken = Vec::new();
    if name.len() > 63 {
        broken.push(too_long(63));
    }
    if !LABEL_1035_RE.is_match(name) {
        let text = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an \
                    alphabetic character, and end with an alphanumeric character";
        broken.push(regex_error(text, LABEL_1035, &["my-name", "abc-123"]));
    }
    broken
}

/// A name that is one path segment: RBAC objects.
pub(crate) fn path_segment(name: &str) -> Vec<String> {
    if matches!(name, "." | "..") {
        return vec![format!("may not be '{name}'")];
    }
    ["/", "%"].iter().filter(|c| name.contains(**c)).map(|c| format!("may not contain '{c}'")).collect()
}

/// `prefix/name` keys of labels, annotations, taints and finalizers.
pub(crate) fn qualified(name: &str) -> Vec<String> {
    let mut broken = Vec::new();
    let local = match name.split_once('/') {
        None => name,
        Some((prefix, rest)) => {
            if rest.contains('/') {
                let text = "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start \
                            and end with an alphanumeric character";
                let rule = regex_error(text, QUALIFIED, &["MyName", "my.name", "123-abc"]);
                return vec![rule + " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"];
            }
            if prefix.is_empty() {
                broken.push("prefix part must be non-empty".into());
            } else {
                broken.extend(dns_subdomain(prefix).into_iter().map(|rule| format!("prefix part {rule}")));
            }
            rest
        }
    };
    if local.is_empty() {
        broken.push("name part must be non-empty".into());
    } else if local.len() > 63 {
        broken.push(format!("name part {}", too_long(63)));
    }
    if !QUALIFIED_RE.is_match(local) {
        let text = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                    alphanumeric character";
        broken.push(regex_error(text, QUALIFIED, &["MyName", "my.name", "123-abc"]));
    }
    broken
}

/// Values of labels.
pub(crate) fn label_value(value: &str) -> Vec<String> {
    let mut broken = Vec::new();
    if value.len() > 63 {
        broken.push(too_long(63));
    }
    if !LABEL_VALUE_RE.is_match(value) {
        let text = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and \
                    must start and end with an alphanumeric character";
        broken.push(regex_error(text, LABEL_VALUE, &["MyValue", "my_value", "12345"]));
    }
    broken
}

/// Names of environment variables: printable ASCII without `=`.
pub(crate) fn env_name(name: &str) -> Vec<String> {
    if ENV_RE.is_match(name) {
        return Vec::new();
    }
    vec!["a valid environment variable name must consist only of printable ASCII characters other than '='".into()]
}

/// Keys of ConfigMaps and Secrets.
pub(crate) fn config_key(key: &str) -> Vec<String> {
    static KEY_RE: LazyLock<Regex> = LazyLock::new(|| pattern("^[-._a-zA-Z0-9]+$"));
    let mut broken = Vec::new();
    if key.len() > 253 {
        broken.push(too_long(253));
    }
    if !KEY_RE.is_match(key) {
        let text = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'";
        broken.push(regex_error(text, "[-._a-zA-Z0-9]+", &["key.name", "KEY_NAME", "key-name"]));
    }
    if matches!(key, "." | "..") {
        broken.push(format!("must not be '{key}'"));
    } else if key.starts_with("..") {
        broken.push("must not start with '..'".into());
    }
    broken
}

/// Names of ports: IANA service names.
pub(crate) fn port_name(name: &str) -> Vec<String> {
    let mut broken = Vec::new();
    let bytes = name.as_bytes();
    if name.len() > 15 {
        broken.push("must be no more than 15 characters".to_owned());
    }
    if !bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-') {
        broken.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".into());
    }
    if !bytes.iter().any(u8::is_ascii_lowercase) {
        broken.push("must contain at least one letter (a-z)".into());
    }
    if name.contains("--") {
        broken.push("must not contain consecutive hyphens".into());
    }
    if bytes.first() == Some(&b'-') || bytes.last() == Some(&b'-') {
        broken.push("must not begin or end with a hyphen".into());
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_judged_as_upstream_judges_them() {
        for (rule, good, bad) in [
            (dns_label as fn(&str) -> Vec<String>, vec!["a", "a-1"], vec!["", "A", "a.b", "-a"]),
            (dns_subdomain, vec!["a.b", "a-1.b"], vec!["a_B", "a..b", ".a"]),
            (qualified, vec!["a", "example.com/A_b", "kubernetes.io/x"], vec!["", "/a", "a/", "a/b/c", "a b"]),
            (label_value, vec!["", "x", "A_b.c"], vec!["-", "a b"]),
            (env_name, vec!["A", "a-b", "a.b"], vec!["", "a=b", "ä"]),
            (sysctl, vec!["kernel.shm_rmid_forced", "net/ipv4/ip_local_port_range"], vec!["foo-", "bar..", "A.b", ""]),
            (port_name, vec!["http", "a-1"], vec!["1", "HTTP", "a--b", "averyveryverylongname"]),
        ] {
            for name in good {
                assert!(rule(name).is_empty(), "{name}");
            }
            for name in bad {
                assert!(!rule(name).is_empty(), "{name}");
            }
        }
    }
}
