//! The syntax of names, labels and keys, with Kubernetes' messages for violations. Each function returns the messages
//! (empty if the text is valid). Reads text only, never objects.

/// Longest DNS-1123 label and label value.
pub const LABEL_MAX: usize = 63;
/// Longest DNS-1123 subdomain.
pub const SUBDOMAIN_MAX: usize = 253;

const LABEL_FMT: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN_FMT: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const DNS1035_FMT: &str = "[a-z]([-a-z0-9]*[a-z0-9])?";
const QUALIFIED_FMT: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const LABEL_VALUE_FMT: &str = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";
const CONFIG_KEY_FMT: &str = "[-._a-zA-Z0-9]+";

fn pattern(message: &str, format: &str, examples: &[&str]) -> String {
    let mut out = format!("{message} (e.g. ");
    for (i, example) in examples.iter().enumerate() {
        if i > 0 {
            out.push_str(" or ");
        }
        out.push_str(&format!("'{example}', "));
    }
    out.push_str(&format!("regex used for validation is '{format}')"));
    out
}

fn too_long(max: usize) -> String {
    format!("must be no more than {max} characters")
}

fn is_lower(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

fn is_dns_label_shape(text: &str) -> bool {
    let bytes = text.as_bytes();
    match (bytes.first(), bytes.last()) {
        (Some(first), Some(last)) => {
            is_lower(*first) && is_lower(*last) && bytes.iter().all(|b| is_lower(*b) || *b == b'-')
        }
        _ => false,
    }
}

fn is_subdomain_shape(text: &str) -> bool {
    text.split('.').all(is_dns_label_shape)
}

fn is_name_shape(text: &str) -> bool {
    let bytes = text.as_bytes();
    match (bytes.first(), bytes.last()) {
        (Some(first), Some(last)) => {
            first.is_ascii_alphanumeric()
                && last.is_ascii_alphanumeric()
                && bytes
                    .iter()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        }
        _ => false,
    }
}

/// A DNS-1123 label (`my-name`): namespaces, containers, volumes.
pub fn dns1123_label(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    if text.len() > LABEL_MAX {
        out.push(too_long(LABEL_MAX));
    }
    if !is_dns_label_shape(text) {
        if is_subdomain_shape(text) {
            out.push("must not contain dots".to_owned());
        } else {
            out.push(pattern(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character",
                LABEL_FMT,
                &["my-name", "123-abc"],
            ));
        }
    }
    out
}

/// A DNS-1123 subdomain (`example.com`): most names.
pub fn dns1123_subdomain(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    if text.len() > SUBDOMAIN_MAX {
        out.push(too_long(SUBDOMAIN_MAX));
    }
    if !is_subdomain_shape(text) {
        out.push(pattern(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character",
            SUBDOMAIN_FMT,
            &["example.com"],
        ));
    }
    out
}

/// A DNS-1035 label (`abc-123`): services.
pub fn dns1035_label(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    if text.len() > LABEL_MAX {
        out.push(too_long(LABEL_MAX));
    }
    if !is_dns_label_shape(text) || !text.starts_with(|c: char| c.is_ascii_lowercase()) {
        out.push(pattern(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character",
            DNS1035_FMT,
            &["my-name", "abc-123"],
        ));
    }
    out
}

/// A qualified name (`example.com/MyName`): label keys, annotation keys, extended resources.
pub fn qualified_name(text: &str) -> Vec<String> {
    const MESSAGE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
    const EXAMPLES: [&str; 3] = ["MyName", "my.name", "123-abc"];
    let mut out = Vec::new();
    let name = match text.split_once('/') {
        None => text,
        Some((_, name)) if name.contains('/') => {
            let mut message = pattern(
                &format!("a qualified name {MESSAGE}"),
                QUALIFIED_FMT,
                &EXAMPLES,
            );
            message.push_str(
                " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
            );
            return vec![message];
        }
        Some((prefix, name)) => {
            if prefix.is_empty() {
                out.push("prefix part must be non-empty".to_owned());
            } else {
                out.extend(
                    dns1123_subdomain(prefix)
                        .into_iter()
                        .map(|m| format!("prefix part {m}")),
                );
            }
            name
        }
    };
    if name.is_empty() {
        out.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_MAX {
        out.push(format!("name part {}", too_long(LABEL_MAX)));
    }
    if !is_name_shape(name) {
        out.push(pattern(
            &format!("name part {MESSAGE}"),
            QUALIFIED_FMT,
            &EXAMPLES,
        ));
    }
    out
}

/// A label's value: empty, or alphanumerics with `-`, `_` and `.` inside.
pub fn label_value(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    if text.len() > LABEL_MAX {
        out.push(too_long(LABEL_MAX));
    }
    if !text.is_empty() && !is_name_shape(text) {
        out.push(pattern(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
            LABEL_VALUE_FMT,
            &["MyValue", "my_value", "12345"],
        ));
    }
    out
}

/// The name of an environment variable: printable ASCII without `=`.
pub fn env_name(text: &str) -> Vec<String> {
    if text.is_empty() {
        return vec!["environment variable name must be non-empty".to_owned()];
    }
    if text.bytes().all(|b| (0x20..0x7f).contains(&b) && b != b'=') {
        return Vec::new();
    }
    vec!["a valid environment variable name must consist only of printable ASCII characters other than '='".to_owned()]
}

/// A key of a ConfigMap or Secret.
pub fn config_key(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    if text.len() > SUBDOMAIN_MAX {
        out.push(too_long(SUBDOMAIN_MAX));
    }
    if text.is_empty()
        || !text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'))
    {
        out.push(pattern(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            CONFIG_KEY_FMT,
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    if text == "." {
        out.push("must not be '.'".to_owned());
    } else if text == ".." {
        out.push("must not be '..'".to_owned());
    } else if text.starts_with("..") {
        out.push("must not start with '..'".to_owned());
    }
    out
}

/// The name of a port: at most 15 of lower case alphanumerics and `-`, with a letter.
pub fn port_name(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    if text.len() > 15 {
        out.push(too_long(15));
    }
    if text.is_empty() || !text.bytes().all(|b| is_lower(b) || b == b'-') {
        out.push(
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned(),
        );
    }
    if !text.bytes().any(|b| b.is_ascii_lowercase()) {
        out.push("must contain at least one letter (a-z)".to_owned());
    }
    if text.contains("--") {
        out.push("must not contain consecutive hyphens".to_owned());
    }
    if text.starts_with('-') || text.ends_with('-') {
        out.push("must not begin or end with a hyphen".to_owned());
    }
    out
}

/// A port's number.
pub fn port_number(port: i64) -> Vec<String> {
    if (1..=65535).contains(&port) {
        Vec::new()
    } else {
        vec![in_range(1, 65535)]
    }
}

/// Kubernetes' message for a number outside its range.
pub fn in_range(low: i64, high: i64) -> String {
    format!("must be between {low} and {high}, inclusive")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_their_syntax() {
        type Rule = fn(&str) -> Vec<String>;
        let long = "a".repeat(64);
        let table: [(Rule, &[&str], &[&str]); 8] = [
            (
                dns1123_label,
                &["a", "a-1", "1"],
                &["", "A", "-a", "a-", "a.b", "a_b", &long],
            ),
            (
                dns1123_subdomain,
                &["a.b", "a", "1.2", &long],
                &["", ".a", "a..b", "a.-b", "A"],
            ),
            (dns1035_label, &["a", "a1"], &["1a", "", "a.b"]),
            (
                qualified_name,
                &["a", "A_b.c", "x.io/a"],
                &["", "/a", "x/", "a/b/c", "X.io/a", "-a"],
            ),
            (label_value, &["", "a", "A.b_c-d"], &["-", "a b", &long]),
            (env_name, &["A", "a.b", "1", "A B"], &["", "A=B", "é"]),
            (
                config_key,
                &["a", "a.b", "_"],
                &["", ".", "..", "..a", "a/b"],
            ),
            (
                port_name,
                &["http", "a-1"],
                &["", "1", "A", "a--b", "-a", "a234567890123456"],
            ),
        ];
        for (i, (rule, good, bad)) in table.into_iter().enumerate() {
            for text in good {
                assert!(rule(text).is_empty(), "rule {i}: {text}");
            }
            for text in bad {
                assert!(!rule(text).is_empty(), "rule {i}: {text}");
            }
        }
        assert_eq!(dns1123_label(&long), ["must be no more than 63 characters"]);
    }
}
