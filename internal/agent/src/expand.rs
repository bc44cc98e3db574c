//! `$(VAR)` in commands, arguments and values, as Kubernetes expands it. Pure.

/// Replaces `$(NAME)` by the value of NAME from `lookup`; without a value it stays unchanged, and
/// `$$` is an escaped `$`.
pub fn expand<'a>(text: &str, lookup: impl Fn(&str) -> Option<&'a str>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some(after) = rest.strip_prefix('(')
            && let Some(end) = after.find(')')
        {
            let name = &after[..end];
            match lookup(name) {
                Some(value) => out.push_str(value),
                None => {
                    out.push_str("$(");
                    out.push_str(name);
                    out.push(')');
                }
            }
            rest = &after[end + 1..];
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lookup(name: &str) -> Option<&'static str> {
        match name {
            "A" => Some("a"),
            "B" => Some("$(A)"),
            "EMPTY" => Some(""),
            _ => None,
        }
    }

    #[test]
    fn references_are_replaced_as_kubernetes_replaces_them() {
        for (text, expected) in [
            ("", ""),
            ("$(A)", "a"),
            ("x$(A)y$(A)", "xaya"),
            ("$(B)", "$(A)"),
            ("$(EMPTY)|", "|"),
            ("$(UNKNOWN)", "$(UNKNOWN)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$a"),
            ("$$$$", "$$"),
            ("$A ${A}", "$A ${A}"),
            ("$(A", "$(A"),
            ("$", "$"),
            ("é$(A)é", "éaé"),
            ("$()", "$()"),
        ] {
            assert_eq!(expand(text, lookup), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn text_without_a_dollar_stays_as_it_is_and_never_panics(text in "[^$]*") {
            prop_assert_eq!(expand(&text, lookup), text);
        }

        #[test]
        fn nothing_makes_it_panic(text in "[$()AB é]*") {
            let _ = expand(&text, lookup);
        }
    }
}
