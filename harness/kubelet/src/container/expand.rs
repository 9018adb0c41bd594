//! `$(VAR)` expansion. Source: k/k third_party/forked/golang/expansion/expand.go.

/// Replaces `$(NAME)` by what `lookup` knows; unknown names stay as written and `$$` becomes `$`.
pub(crate) fn expand(input: &str, lookup: &dyn Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(input.len());
    let mut rest = input;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let mut chars = after.chars();
        match chars.next() {
            None => {
                out.push('$');
                rest = "";
            }
            Some('$') => {
                out.push('$');
                rest = &after[1..];
            }
            Some('(') => match after.find(')') {
                Some(end) => {
                    let name = &after[1..end];
                    match lookup(name) {
                        Some(value) => out.push_str(&value),
                        None => {
                            out.push_str("$(");
                            out.push_str(name);
                            out.push(')');
                        }
                    }
                    rest = &after[end + 1..];
                }
                None => {
                    out.push_str("$(");
                    rest = &after[1..];
                }
            },
            Some(c) => {
                out.push('$');
                out.push(c);
                rest = chars.as_str();
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_expand_and_everything_else_stays() {
        let lookup = |n: &str| (n == "A").then(|| "x".to_owned());
        for (input, expect) in [
            ("$(A)y", "xy"),
            ("$$(A)", "$(A)"),
            ("$(B)", "$(B)"),
            ("$A $", "$A $"),
            ("$(A", "$(A"),
            ("kill -SEGV $$$$", "kill -SEGV $$"),
            ("é$é$(A)", "é$éx"),
        ] {
            assert_eq!(expand(input, &lookup), expect, "{input}");
        }
    }
}
