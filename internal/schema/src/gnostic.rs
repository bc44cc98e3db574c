//! The Swagger 2.0 document in protobuf, as message `openapi.v2.Document` of
//! github.com/google/gnostic-models (openapiv2/OpenAPIv2.proto), with that file's field numbers.
//! Encodes only the parts that Muster's documents use. It must not decide the contents of a
//! document.

use serde_json::{Map, Value};

/// A protobuf message being written.
#[derive(Default)]
struct ProtobufMessage(Vec<u8>);

impl ProtobufMessage {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            // Seven bits at a time, so the cast loses nothing.
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, field: u64, text: &str) {
        if !text.is_empty() {
            self.bytes(field, text.as_bytes());
        }
    }

    fn truth(&mut self, field: u64, truth: bool) {
        if truth {
            self.varint(field << 3);
            self.varint(1);
        }
    }

    fn double(&mut self, field: u64, value: Option<f64>) {
        if let Some(value) = value {
            self.varint(field << 3 | 1);
            self.0.extend_from_slice(&value.to_le_bytes());
        }
    }

    fn whole(&mut self, field: u64, value: Option<u64>) {
        if let Some(value) = value {
            self.varint(field << 3);
            self.varint(value);
        }
    }

    fn message(&mut self, field: u64, message: &ProtobufMessage) {
        self.bytes(field, &message.0);
    }

    /// A member of a map: name and value.
    fn named(&mut self, field: u64, name: &str, value: &ProtobufMessage) {
        let mut entry = ProtobufMessage::default();
        entry.text(1, name);
        entry.message(2, value);
        self.message(field, &entry);
    }

    /// Every `x-` key as NamedAny with the value as YAML (JSON is YAML).
    fn extensions(&mut self, field: u64, map: &Map<String, Value>) {
        for (name, value) in map.iter().filter(|(name, _)| name.starts_with("x-")) {
            self.named(field, name, &any(value));
        }
    }
}

fn any(value: &Value) -> ProtobufMessage {
    let mut any = ProtobufMessage::default();
    any.text(2, &value.to_string());
    any
}

fn text<'a>(map: &'a Map<String, Value>, key: &str) -> &'a str {
    map.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn truth(map: &Map<String, Value>, key: &str) -> bool {
    map.get(key).and_then(Value::as_bool).unwrap_or_default()
}

fn texts<'a>(map: &'a Map<String, Value>, key: &str) -> impl Iterator<Item = &'a str> {
    map.get(key)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

/// A document whose definitions are added one at a time.
pub(crate) struct GnosticDocument {
    head: ProtobufMessage,
    definitions: ProtobufMessage,
}

impl GnosticDocument {
    pub(crate) fn new(title: &str, version: &str) -> GnosticDocument {
        let mut info = ProtobufMessage::default();
        info.text(1, title);
        info.text(2, version);
        let mut head = ProtobufMessage::default();
        head.text(1, "2.0");
        head.message(2, &info);
        GnosticDocument {
            head,
            definitions: ProtobufMessage::default(),
        }
    }

    pub(crate) fn definition(&mut self, name: &str, schema_value: &Value) {
        if let Value::Object(map) = schema_value {
            self.definitions.named(1, name, &schema(map));
        }
    }

    /// The whole document, with the given Swagger paths.
    pub(crate) fn finish(mut self, paths: &Value) -> Vec<u8> {
        let mut items = ProtobufMessage::default();
        for (path, item) in paths.as_object().into_iter().flatten() {
            if let Value::Object(item) = item {
                items.named(2, path, &path_item(item));
            }
        }
        self.head.message(8, &items);
        self.head.message(9, &self.definitions);
        self.head.0
    }
}

fn schema(map: &Map<String, Value>) -> ProtobufMessage {
    let mut message = ProtobufMessage::default();
    message.text(1, text(map, "$ref"));
    message.text(2, text(map, "format"));
    message.text(3, text(map, "title"));
    message.text(4, text(map, "description"));
    let number = |key: &str| map.get(key).and_then(Value::as_f64);
    let whole = |key: &str| map.get(key).and_then(Value::as_u64);
    message.double(6, number("multipleOf"));
    message.double(7, number("maximum"));
    message.truth(8, truth(map, "exclusiveMaximum"));
    message.double(9, number("minimum"));
    message.truth(10, truth(map, "exclusiveMinimum"));
    message.whole(11, whole("maxLength"));
    message.whole(12, whole("minLength"));
    message.text(13, text(map, "pattern"));
    message.whole(14, whole("maxItems"));
    message.whole(15, whole("minItems"));
    message.truth(16, truth(map, "uniqueItems"));
    message.whole(17, whole("maxProperties"));
    message.whole(18, whole("minProperties"));
    for name in texts(map, "required") {
        message.text(19, name);
    }
    for value in map
        .get("enum")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        message.message(20, &any(value));
    }
    match map.get("additionalProperties") {
        Some(Value::Object(inner)) => {
            let mut item = ProtobufMessage::default();
            item.message(1, &schema(inner));
            message.message(21, &item);
        }
        Some(Value::Bool(allowed)) => {
            let mut item = ProtobufMessage::default();
            item.whole(2, Some(u64::from(*allowed)));
            message.message(21, &item);
        }
        _ => {}
    }
    if let Some(kind) = map.get("type").and_then(Value::as_str) {
        let mut item = ProtobufMessage::default();
        item.text(1, kind);
        message.message(22, &item);
    }
    if let Some(Value::Object(inner)) = map.get("items") {
        let mut item = ProtobufMessage::default();
        item.message(1, &schema(inner));
        message.message(23, &item);
    }
    if let Some(Value::Object(inner)) = map.get("properties") {
        let mut properties = ProtobufMessage::default();
        for (name, property) in inner {
            if let Value::Object(property) = property {
                properties.named(1, name, &schema(property));
            }
        }
        message.message(25, &properties);
    }
    message.extensions(31, map);
    message
}

fn path_item(map: &Map<String, Value>) -> ProtobufMessage {
    let mut message = ProtobufMessage::default();
    for (field, method) in [
        (2, "get"),
        (3, "put"),
        (4, "post"),
        (5, "delete"),
        (8, "patch"),
    ] {
        if let Some(Value::Object(action)) = map.get(method) {
            message.message(field, &operation(action));
        }
    }
    parameters(&mut message, 9, map);
    message.extensions(10, map);
    message
}

fn operation(map: &Map<String, Value>) -> ProtobufMessage {
    let mut message = ProtobufMessage::default();
    for tag in texts(map, "tags") {
        message.text(1, tag);
    }
    message.text(3, text(map, "description"));
    message.text(5, text(map, "operationId"));
    for media in texts(map, "produces") {
        message.text(6, media);
    }
    for media in texts(map, "consumes") {
        message.text(7, media);
    }
    parameters(&mut message, 8, map);
    let mut responses = ProtobufMessage::default();
    for (code, response) in map
        .get("responses")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let mut inner = ProtobufMessage::default();
        inner.text(1, response["description"].as_str().unwrap_or_default());
        if let Value::Object(answer) = &response["schema"] {
            let mut item = ProtobufMessage::default();
            item.message(1, &schema(answer));
            inner.message(2, &item);
        }
        let mut value = ProtobufMessage::default();
        value.message(1, &inner);
        responses.named(1, code, &value);
    }
    message.message(9, &responses);
    for scheme in texts(map, "schemes") {
        message.text(10, scheme);
    }
    message.extensions(13, map);
    message
}

fn parameters(message: &mut ProtobufMessage, field: u64, map: &Map<String, Value>) {
    for parameter in map
        .get("parameters")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_object)
    {
        let mut inner = ProtobufMessage::default();
        let mut either = ProtobufMessage::default();
        let place = text(parameter, "in");
        if place == "body" {
            inner.text(2, text(parameter, "name"));
            inner.text(3, place);
            inner.truth(4, truth(parameter, "required"));
            if let Some(Value::Object(body)) = parameter.get("schema") {
                inner.message(5, &schema(body));
            }
            either.message(1, &inner);
        } else {
            // After the name, query parameters have one field more than path parameters.
            let (kind, shift, choice) = if place == "path" {
                (5, 0, 4)
            } else {
                (6, 1, 3)
            };
            inner.truth(1, truth(parameter, "required"));
            inner.text(2, place);
            inner.text(3, text(parameter, "description"));
            inner.text(4, text(parameter, "name"));
            inner.text(kind, text(parameter, "type"));
            inner.truth(19 + shift, truth(parameter, "uniqueItems"));
            let mut other = ProtobufMessage::default();
            other.message(choice, &inner);
            either.message(2, &other);
        }
        let mut item = ProtobufMessage::default();
        item.message(1, &either);
        message.message(field, &item);
    }
}
