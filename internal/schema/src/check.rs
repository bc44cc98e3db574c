//! Checks a value against its definition: unknown fields, wrong types, violated limits. It must not change the value or
//! know the meaning of fields.

use serde_json::Value;

use crate::shape::{
    Extra, ListShape, ObjectShape, Scalar, Schemas, ShapeNode, ValidationRules, ValueShape,
};

/// The findings of [`Schemas::check`].
#[derive(Debug, Default, PartialEq)]
pub struct Checked {
    /// Paths of unknown fields, e.g. `spec.containers[0].imagee`. The server words them `unknown field "PATH"`.
    pub unknown: Vec<String>,
    /// (path, message) of values that can't be decoded; the message is worded as the decoder of
    /// kube-apiserver words it (`json: cannot unmarshal string into Go struct field ...`). 400.
    pub errors: Vec<(String, String)>,
    /// Violations of a custom resource's schema. 422.
    pub invalid: Vec<Invalid>,
}

/// A violation of a custom resource's schema.
#[derive(Debug, PartialEq)]
pub struct Invalid {
    /// The field, e.g. `spec.replicas`.
    pub path: String,
    /// The cause's reason, e.g. `FieldValueRequired`.
    pub reason: &'static str,
    /// The violation, without the path: `Required value`.
    pub message: String,
}

impl Checked {
    /// True if there are no findings.
    pub fn is_clean(&self) -> bool {
        self.unknown.is_empty() && self.errors.is_empty() && self.invalid.is_empty()
    }
}

/// The most findings; further ones are skipped, so that a hostile document can't make the response huge.
const MOST_FINDINGS: usize = 100;

/// The most bytes of a path or a value in one finding, for the same reason: a caller chooses the length of keys.
const MOST_QUOTED: usize = 1024;

/// The text, truncated to [`MOST_QUOTED`] bytes.
fn quoted(text: &str) -> String {
    if text.len() <= MOST_QUOTED {
        return text.to_owned();
    }
    format!("{}...", &text[..text.floor_char_boundary(MOST_QUOTED)])
}

impl Schemas {
    /// Checks a value against a definition. An unknown definition causes no findings.
    pub fn check(&self, definition: &str, value: &Value) -> Checked {
        let root = self.root(definition).node;
        let mut walk = CheckWalk {
            schemas: self,
            found: Checked::default(),
            path: String::new(),
            keys: Vec::new(),
            owner: root,
            custom: self.is_custom(definition),
        };
        walk.node(root, value);
        walk.found
    }

    fn name_of(&self, node: &ShapeNode) -> Option<&str> {
        self.names
            .iter()
            .find(|(_, id)| std::ptr::eq(self.node(**id), node))
            .map(|(name, _)| &**name)
    }

    /// The Go type that Kubernetes decodes a field into, as its errors name it.
    fn go_type(&self, node: &ShapeNode) -> String {
        match &node.shape {
            ValueShape::Any | ValueShape::AnyAtomic => "interface {}".to_owned(),
            ValueShape::Scalar(scalar) => match scalar {
                Scalar::Text | Scalar::IntOrString | Scalar::Quantity => "string",
                Scalar::Bytes => "[]uint8",
                Scalar::Time => "v1.Time",
                Scalar::Bool => "bool",
                Scalar::Int32 => "int32",
                Scalar::Int64 => "int64",
                Scalar::Float => "float64",
            }
            .to_owned(),
            ValueShape::List(list) => format!("[]{}", self.go_type(self.node(list.items))),
            ValueShape::Object(object) => match (self.name_of(node), object.extra) {
                (Some(name), _) => {
                    let mut parts = name.rsplit('.');
                    let kind = parts.next().unwrap_or(name);
                    match parts.next() {
                        Some(package) => format!("{package}.{kind}"),
                        None => kind.to_owned(),
                    }
                }
                (None, Extra::Typed(id)) => format!("map[string]{}", self.go_type(self.node(id))),
                (None, _) => "map[string]interface {}".to_owned(),
            },
        }
    }
}

struct CheckWalk<'s> {
    schemas: &'s Schemas,
    found: Checked,
    /// The path with list indices, for unknown fields and validation errors.
    path: String,
    /// The path without indices, for decoding errors.
    keys: Vec<String>,
    /// The innermost struct.
    owner: &'s ShapeNode,
    custom: bool,
}

impl<'s> CheckWalk<'s> {
    fn full(&self) -> bool {
        self.found.unknown.len() + self.found.errors.len() + self.found.invalid.len()
            >= MOST_FINDINGS
    }

    fn node(&mut self, node: &'s ShapeNode, value: &Value) {
        if self.full() {
            return;
        }
        if value.is_null() {
            if self.custom && !node.nullable && !self.path.is_empty() {
                self.wrong_type(node, value);
            }
            return;
        }
        match (&node.shape, value) {
            (ValueShape::Any | ValueShape::AnyAtomic, _) => {}
            (ValueShape::Scalar(scalar), _) => {
                if !self.scalar(*scalar, value) {
                    self.wrong_type(node, value);
                    return;
                }
            }
            (ValueShape::Object(object), Value::Object(map)) => self.object(node, object, map),
            (ValueShape::List(list), Value::Array(items)) => self.list(list, items),
            _ => {
                self.wrong_type(node, value);
                return;
            }
        }
        if let Some(limits) = &node.limits {
            self.limits(limits, value);
        }
    }

    fn object(
        &mut self,
        node: &'s ShapeNode,
        object: &'s ObjectShape,
        map: &serde_json::Map<String, Value>,
    ) {
        let owner = self.owner;
        if !object.fields.is_empty() {
            self.owner = node;
        }
        let custom = self.custom;
        let length = self.path.len();
        for (key, child) in map {
            if !self.path.is_empty() {
                self.path.push('.');
            }
            self.path.push_str(key);
            match self.schemas.member(node, key) {
                Some(member) => {
                    // Metadata is decoded into a typed struct for custom resources too.
                    self.custom = custom && !(length == 0 && key == "metadata");
                    self.keys.push(key.clone());
                    self.node(member.node, child);
                    self.keys.pop();
                    self.custom = custom;
                }
                None if self.full() => {}
                None => self.found.unknown.push(quoted(&self.path)),
            }
            self.path.truncate(length);
        }
        if custom {
            self.required(object, map);
        }
        self.owner = owner;
    }

    fn required(&mut self, object: &ObjectShape, map: &serde_json::Map<String, Value>) {
        for field in &object.fields {
            if field.required && !map.contains_key(&*field.name) && !self.full() {
                let path = if self.path.is_empty() {
                    field.name.to_string()
                } else {
                    format!("{}.{}", self.path, field.name)
                };
                self.found.invalid.push(Invalid {
                    path: quoted(&path),
                    reason: "FieldValueRequired",
                    message: "Required value".to_owned(),
                });
            }
        }
    }

    fn list(&mut self, list: &ListShape, items: &[Value]) {
        let node = self.schemas.node(list.items);
        let length = self.path.len();
        for (at, item) in items.iter().enumerate() {
            self.path.push_str(&format!("[{at}]"));
            self.node(node, item);
            self.path.truncate(length);
        }
    }

    /// True if the value is of the type; reports the error itself if its message is special.
    fn scalar(&mut self, scalar: Scalar, value: &Value) -> bool {
        match (scalar, value) {
            (Scalar::Text | Scalar::Time, Value::String(_))
            | (Scalar::Bool, Value::Bool(_))
            | (Scalar::Float | Scalar::Quantity, Value::Number(_))
            | (Scalar::IntOrString | Scalar::Quantity, Value::String(_)) => true,
            (Scalar::Bytes, Value::String(text)) => {
                if let Some(at) = broken_base64(text) {
                    self.error(format!("illegal base64 data at input byte {at}"));
                }
                true
            }
            (Scalar::Int32 | Scalar::IntOrString, Value::Number(number)) => number
                .as_i64()
                .is_some_and(|whole| i32::try_from(whole).is_ok()),
            (Scalar::Int64, Value::Number(number)) => {
                number.is_i64()
                    || (self.custom && number.as_f64().is_some_and(|f| f.fract() == 0.0))
            }
            _ => false,
        }
    }

    fn error(&mut self, message: String) {
        self.found.errors.push((quoted(&self.path), message));
    }

    fn wrong_type(&mut self, node: &ShapeNode, value: &Value) {
        if self.custom {
            let (got, want) = (open_api_type(value), wanted_type(node));
            let path = quoted(&self.path);
            self.found.invalid.push(Invalid {
                reason: "FieldValueTypeInvalid",
                message: format!(
                    "Invalid value: \"{got}\": {path} in body must be of type {want}: \"{got}\""
                ),
                path,
            });
            return;
        }
        let got = match value {
            Value::Null => "null".to_owned(),
            Value::Bool(_) => "bool".to_owned(),
            Value::Number(number) => match node.shape {
                ValueShape::Scalar(Scalar::Int32 | Scalar::Int64 | Scalar::IntOrString) => {
                    format!("number {number}")
                }
                _ => "number".to_owned(),
            },
            Value::String(_) => "string".to_owned(),
            Value::Array(_) => "array".to_owned(),
            Value::Object(_) => "object".to_owned(),
        };
        let want = self.schemas.go_type(node);
        let message = match self.schemas.name_of(self.owner) {
            Some(owner) if !self.keys.is_empty() => format!(
                "json: cannot unmarshal {got} into Go struct field {}.{} of type {want}",
                owner.rsplit('.').next().unwrap_or(owner),
                quoted(&self.keys.join("."))
            ),
            _ => format!("json: cannot unmarshal {got} into Go value of type {want}"),
        };
        self.error(message);
    }

    fn limits(&mut self, limits: &ValidationRules, value: &Value) {
        let path = quoted(&self.path);
        let mut broken = |reason, message: String| {
            self.found.invalid.push(Invalid {
                path: path.clone(),
                reason,
                message,
            });
        };
        let text = value.to_string();
        let allowed = limits.allowed.is_empty() || limits.allowed.iter().any(|a| **a == *text);
        let text = quoted(&text);
        if !allowed {
            broken(
                "FieldValueNotSupported",
                format!(
                    "Unsupported value: {text}: supported values: {}",
                    limits.allowed.join(", ")
                ),
            );
        }
        let bound = |bound: &Option<Box<str>>| bound.as_deref().and_then(|b| b.parse::<f64>().ok());
        if let Some(number) = value.as_f64() {
            if let (Some(minimum), Some(text_min)) = (bound(&limits.minimum), &limits.minimum)
                && number < minimum
            {
                broken(
                    "FieldValueInvalid",
                    format!(
                        "Invalid value: {text}: {path} in body should be greater than or equal to {text_min}"
                    ),
                );
            }
            if let (Some(maximum), Some(text_max)) = (bound(&limits.maximum), &limits.maximum)
                && number > maximum
            {
                broken(
                    "FieldValueInvalid",
                    format!(
                        "Invalid value: {text}: {path} in body should be less than or equal to {text_max}"
                    ),
                );
            }
        }
        if let Some(string) = value.as_str() {
            let length = string.chars().count() as u64;
            if let Some(least) = limits.min_length.filter(|least| length < *least) {
                broken(
                    "FieldValueInvalid",
                    format!(
                        "Invalid value: {text}: {path} in body should be at least {least} chars long"
                    ),
                );
            }
            if let Some(most) = limits.max_length.filter(|most| length > *most) {
                broken(
                    "FieldValueTooLong",
                    format!("Too long: may not be more than {most} bytes"),
                );
            }
        }
        if let Some(items) = value.as_array() {
            let length = items.len() as u64;
            if let Some(least) = limits.min_items.filter(|least| length < *least) {
                broken(
                    "FieldValueInvalid",
                    format!(
                        "Invalid value: {length}: {path} in body should have at least {least} items"
                    ),
                );
            }
            if let Some(most) = limits.max_items.filter(|most| length > *most) {
                broken(
                    "FieldValueTooMany",
                    format!("Too many: {length}: must have at most {most} items"),
                );
            }
        }
    }
}

fn open_api_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn wanted_type(node: &ShapeNode) -> &'static str {
    match &node.shape {
        ValueShape::Any | ValueShape::AnyAtomic => "any",
        ValueShape::Object(_) => "object",
        ValueShape::List(_) => "array",
        ValueShape::Scalar(scalar) => match scalar {
            Scalar::Text | Scalar::Bytes | Scalar::Time => "string",
            Scalar::Bool => "boolean",
            Scalar::Int32 | Scalar::Int64 => "integer",
            Scalar::Float => "number",
            Scalar::IntOrString | Scalar::Quantity => "integer,string",
        },
    }
}

/// The position at which padded standard base64 becomes invalid, as Go's decoder counts; `None` if it is valid. Line
/// breaks are skipped as in Go.
fn broken_base64(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut digits = 0usize;
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'\n' | b'\r' => {}
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'+' | b'/' => digits += 1,
            b'=' => {
                let rest: Vec<u8> = bytes[at..]
                    .iter()
                    .copied()
                    .filter(|b| !matches!(b, b'\n' | b'\r'))
                    .collect();
                let wanted: &[u8] = match digits % 4 {
                    2 => b"==",
                    3 => b"=",
                    _ => return Some(at),
                };
                return (rest != wanted).then_some(at);
            }
            _ => return Some(at),
        }
        at += 1;
    }
    (!digits.is_multiple_of(4)).then_some(bytes.len() - digits % 4)
}
