//! Field errors in Kubernetes' wording, which clients and users know. Owns only the wording; validation finds the
//! errors.

use std::fmt;

use serde_json::Value;

/// The path of a field, built without allocation: only an error converts it to text.
#[derive(Clone, Copy, Debug)]
pub struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: PathStep<'a>,
}

#[derive(Clone, Copy, Debug)]
enum PathStep<'a> {
    Child(&'a str),
    Index(usize),
    Key(&'a str),
}

impl<'a> Path<'a> {
    /// A path's first member: `spec`.
    pub const fn new(name: &'a str) -> Self {
        Self {
            parent: None,
            step: PathStep::Child(name),
        }
    }

    /// A member: `.name`.
    pub const fn child(&'a self, name: &'a str) -> Path<'a> {
        Path {
            parent: Some(self),
            step: PathStep::Child(name),
        }
    }

    /// An item of a list: `[3]`.
    pub const fn index(&'a self, index: usize) -> Path<'a> {
        Path {
            parent: Some(self),
            step: PathStep::Index(index),
        }
    }

    /// An entry of a map: `[cpu]`.
    pub const fn key(&'a self, key: &'a str) -> Path<'a> {
        Path {
            parent: Some(self),
            step: PathStep::Key(key),
        }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            write!(f, "{parent}")?;
        }
        match (self.step, self.parent) {
            (PathStep::Child(name), None) => f.write_str(name),
            (PathStep::Child(name), Some(_)) => write!(f, ".{name}"),
            (PathStep::Index(index), _) => write!(f, "[{index}]"),
            (PathStep::Key(key), _) => write!(f, "[{key}]"),
        }
    }
}

impl From<&Path<'_>> for String {
    fn from(path: &Path<'_>) -> Self {
        path.to_string()
    }
}

/// The kind of a field error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FieldErrorKind {
    /// The value is missing.
    Required,
    /// The value is malformed or out of bounds.
    Invalid,
    /// The value is not one of the supported ones.
    NotSupported,
    /// The value must be unique and is not.
    Duplicate,
    /// The value is not allowed in this state.
    Forbidden,
    /// The value is too long (the message does not repeat it).
    TooLong,
    /// There are too many items.
    TooMany,
    /// The value is not of the field's type.
    TypeInvalid,
    /// The value names something that does not exist.
    NotFound,
    /// The fault is the server's, not the caller's.
    Internal,
}

impl FieldErrorKind {
    /// The machine-readable reason of a Status' cause.
    pub fn cause_reason(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::NotFound => "FieldValueNotFound",
            Self::Internal => "InternalError",
        }
    }

    fn message(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Duplicate => "Duplicate value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::NotFound => "Not found",
            Self::Internal => "Internal error",
        }
    }
}

/// An error in one field. `Display` is Kubernetes' form: `spec.x: Invalid value: "v": detail`.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    /// The path: `spec.containers[0].name`.
    pub path: String,
    /// The kind of error.
    pub kind: FieldErrorKind,
    /// The value (null if the message does not repeat it).
    pub value: Value,
    /// The valid form; may be empty.
    pub detail: String,
}

impl FieldError {
    fn new(
        path: impl Into<String>,
        kind: FieldErrorKind,
        value: Value,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            path: path.into(),
            kind,
            value,
            detail: detail.into(),
        }
    }

    /// A value is missing.
    pub fn required(path: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(path, FieldErrorKind::Required, Value::Null, detail)
    }

    /// A value is malformed.
    pub fn invalid(
        path: impl Into<String>,
        value: impl Into<Value>,
        detail: impl Into<String>,
    ) -> Self {
        Self::new(path, FieldErrorKind::Invalid, value.into(), detail)
    }

    /// A value is of the wrong type.
    pub fn type_invalid(
        path: impl Into<String>,
        value: impl Into<Value>,
        detail: impl Into<String>,
    ) -> Self {
        Self::new(path, FieldErrorKind::TypeInvalid, value.into(), detail)
    }

    /// A value is not among `supported`.
    pub fn not_supported(
        path: impl Into<String>,
        value: impl Into<Value>,
        supported: &[&str],
    ) -> Self {
        let mut detail = String::new();
        for (i, one) in supported.iter().enumerate() {
            detail.push_str(if i == 0 { "supported values: " } else { ", " });
            quote(one, &mut detail);
        }
        Self::new(path, FieldErrorKind::NotSupported, value.into(), detail)
    }

    /// A value must be unique and is not.
    pub fn duplicate(path: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::new(path, FieldErrorKind::Duplicate, value.into(), "")
    }

    /// A value is not allowed here.
    pub fn forbidden(path: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(path, FieldErrorKind::Forbidden, Value::Null, detail)
    }

    /// A value is longer than `max` bytes.
    pub fn too_long(path: impl Into<String>, max: usize) -> Self {
        let bytes = if max == 1 { "byte" } else { "bytes" };
        Self::new(
            path,
            FieldErrorKind::TooLong,
            Value::Null,
            format!("may not be more than {max} {bytes}"),
        )
    }

    /// A list has `actual` items, more than `max`.
    pub fn too_many(path: impl Into<String>, actual: usize, max: usize) -> Self {
        let items = if max == 1 { "item" } else { "items" };
        Self::new(
            path,
            FieldErrorKind::TooMany,
            actual.into(),
            format!("must have at most {max} {items}"),
        )
    }

    /// A value names something that does not exist.
    pub fn not_found(path: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::new(path, FieldErrorKind::NotFound, value.into(), "")
    }

    /// The machine-readable reason of a Status' cause (`FieldValueInvalid` and so on).
    pub fn cause_reason(&self) -> &'static str {
        self.kind.cause_reason()
    }

    /// The message without the path, for a Status' cause, which has a separate `field`.
    pub fn body(&self) -> String {
        let mut out = String::from(self.kind.message());
        let repeats = !matches!(
            self.kind,
            FieldErrorKind::Required
                | FieldErrorKind::Forbidden
                | FieldErrorKind::TooLong
                | FieldErrorKind::Internal
        );
        if repeats {
            out.push_str(": ");
            match &self.value {
                Value::String(text) => quote(text, &mut out),
                other => out.push_str(&other.to_string()),
            }
        }
        if !self.detail.is_empty() {
            out.push_str(": ");
            out.push_str(&self.detail);
        }
        out
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.body())
    }
}

impl std::error::Error for FieldError {}

/// Several errors as one message, worded like kube-apiserver's Invalid status: one alone, or `[a, b]` without repeats.
pub fn aggregate(errors: &[FieldError]) -> String {
    let mut seen: Vec<String> = Vec::with_capacity(errors.len());
    for error in errors {
        let text = error.to_string();
        if !seen.contains(&text) {
            seen.push(text);
        }
    }
    if seen.len() == 1 {
        seen.remove(0)
    } else {
        format!("[{}]", seen.join(", "))
    }
}

/// Writes the text as Go's `%q`, which Kubernetes uses for strings.
pub fn quote(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || c == '\u{7f}' => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_read_as_kubernetes_words_them() {
        let table = [
            (
                FieldError::invalid("spec.x", "v", "must be y"),
                "spec.x: Invalid value: \"v\": must be y",
            ),
            (
                FieldError::invalid("spec.x", -1, "must be positive"),
                "spec.x: Invalid value: -1: must be positive",
            ),
            (FieldError::required("spec.x", ""), "spec.x: Required value"),
            (
                FieldError::required("spec.x", "why"),
                "spec.x: Required value: why",
            ),
            (
                FieldError::duplicate("spec.x", "a"),
                "spec.x: Duplicate value: \"a\"",
            ),
            (
                FieldError::forbidden("spec.x", "no"),
                "spec.x: Forbidden: no",
            ),
            (
                FieldError::too_long("spec.x", 1),
                "spec.x: Too long: may not be more than 1 byte",
            ),
            (
                FieldError::too_many("spec.x", 9, 8),
                "spec.x: Too many: 9: must have at most 8 items",
            ),
            (
                FieldError::not_found("spec.x", "a"),
                "spec.x: Not found: \"a\"",
            ),
            (
                FieldError::not_supported("spec.x", "q", &["a", "b"]),
                "spec.x: Unsupported value: \"q\": supported values: \"a\", \"b\"",
            ),
            (
                FieldError::invalid("spec.x", serde_json::json!({"a": 1}), "no"),
                "spec.x: Invalid value: {\"a\":1}: no",
            ),
            (
                FieldError::invalid("x", "a\"b\n", ""),
                "x: Invalid value: \"a\\\"b\\n\"",
            ),
        ];
        for (error, text) in table {
            assert_eq!(error.to_string(), text);
        }
        assert_eq!(
            FieldError::required("a", "").cause_reason(),
            "FieldValueRequired"
        );
    }

    #[test]
    fn paths_read_as_kubernetes_writes_them() {
        let spec = Path::new("spec");
        let containers = spec.child("containers");
        let first = containers.index(0);
        let limits = first.child("limits");
        assert_eq!(
            limits.key("cpu").to_string(),
            "spec.containers[0].limits[cpu]"
        );
    }

    #[test]
    fn several_errors_are_listed_once_each() {
        let a = FieldError::required("a", "");
        let b = FieldError::required("b", "");
        assert_eq!(aggregate(std::slice::from_ref(&a)), "a: Required value");
        assert_eq!(
            aggregate(&[a.clone(), b, a]),
            "[a: Required value, b: Required value]"
        );
    }
}
