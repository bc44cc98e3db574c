//! Field selectors: `status.phase!=Running,spec.nodeName=n1`, with `\,`, `\=` and `\\` for those characters in values.

use std::collections::BTreeMap;
use std::fmt;

use super::SelectorError;

/// The operator of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FieldOp {
    /// The field equals the value.
    Eq,
    /// The field differs from the value.
    Ne,
}

/// Conditions on fields that must all hold; an empty selector matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FieldSelector {
    terms: Vec<(String, FieldOp, String)>,
}

impl FieldSelector {
    /// Reads the query string's form.
    ///
    /// # Errors
    /// When a term has no operator or a value ends in a lone backslash.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut terms = Vec::new();
        for part in split_unescaped(text, ',') {
            if part.is_empty() {
                continue;
            }
            let (path, op, value) = split_term(part).ok_or_else(|| {
                SelectorError(format!(
                    "invalid selector: '{text}'; can't understand '{part}'"
                ))
            })?;
            terms.push((path.to_owned(), op, unescape(value)?));
        }
        Ok(Self { terms })
    }

    /// The conditions, in the order given: path, operator, value.
    pub fn terms(&self) -> &[(String, FieldOp, String)] {
        &self.terms
    }

    /// True if it matches everything.
    pub fn is_everything(&self) -> bool {
        self.terms.is_empty()
    }

    /// True if these fields satisfy every condition. An absent field is empty.
    pub fn matches(&self, fields: &BTreeMap<String, String>) -> bool {
        self.terms.iter().all(|(path, op, value)| {
            let same = fields.get(path).map_or("", String::as_str) == value;
            same == (*op == FieldOp::Eq)
        })
    }

    /// The required value of a field, if the selector sets one: for lookups by name or node.
    pub fn exact(&self, path: &str) -> Option<&str> {
        self.terms
            .iter()
            .find(|(p, op, _)| p == path && *op == FieldOp::Eq)
            .map(|(_, _, value)| value.as_str())
    }
}

fn split_unescaped(text: &str, separator: char) -> Vec<&str> {
    let mut out = Vec::new();
    let mut start = 0;
    let mut escaped = false;
    for (i, c) in text.char_indices() {
        if escaped {
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if c == separator {
            out.push(&text[start..i]);
            start = i + c.len_utf8();
        }
    }
    out.push(&text[start..]);
    out
}

fn split_term(part: &str) -> Option<(&str, FieldOp, &str)> {
    for (i, _) in part.char_indices() {
        let rest = &part[i..];
        for (sign, op) in [("!=", FieldOp::Ne), ("==", FieldOp::Eq), ("=", FieldOp::Eq)] {
            if let Some(value) = rest.strip_prefix(sign) {
                return Some((&part[..i], op, value));
            }
        }
    }
    None
}

fn unescape(value: &str) -> Result<String, SelectorError> {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                Some(c) => {
                    return Err(SelectorError(format!(
                        "invalid field selector: invalid escape sequence: \\{c}"
                    )));
                }
                None => {
                    return Err(SelectorError(
                        "invalid field selector: invalid escape sequence: \\".to_owned(),
                    ));
                }
            },
            ',' | '=' => {
                return Err(SelectorError(format!(
                    "invalid field selector: unescaped character in value: {c}"
                )));
            }
            c => out.push(c),
        }
    }
    Ok(out)
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (path, op, value)) in self.terms.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            let sign = if *op == FieldOp::Eq { "=" } else { "!=" };
            let value = value
                .replace('\\', "\\\\")
                .replace(',', "\\,")
                .replace('=', "\\=");
            write!(f, "{comma}{path}{sign}{value}")?;
        }
        Ok(())
    }
}
