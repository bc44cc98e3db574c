//! Secret: like a ConfigMap, with a type and values in base64. Defaulting moves `stringData` to
//! `data`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::columns::{AGE, NAME, column};
use super::configmap::{DATA_MAX, check_immutable, check_keys};
use super::meta::{self, NameRule};
use super::{Kind, TableColumn};
use crate::field::{FieldError, Path};
use crate::json;

const COLUMNS: &[TableColumn] = &[
    NAME,
    column("Type", "string", "What the secret is for.", |object, _| {
        json::at(object, &["type"]).clone()
    }),
    column("Data", "string", "How many keys.", |object, _| {
        Value::from(json::members(object, &["data"]).count())
    }),
    AGE,
];

pub(super) const KIND: Kind = Kind {
    kind: "Secret",
    plural: "secrets",
    singular: "secret",
    list_kind: "SecretList",
    schema: "io.k8s.api.core.v1.Secret",
    default,
    validate,
    columns: COLUMNS,
    fields: &[("type", |secret| json::text(secret, &["type"]).to_owned())],
    ..Kind::BASE
};

fn default(secret: &mut Value) {
    json::fill_text(secret, "type", "Opaque");
    let texts = json::texts(secret, &["stringData"]);
    if let Some(map) = secret.as_object_mut() {
        map.remove("stringData");
    }
    if texts.is_empty() {
        return;
    }
    json::fill(secret, "data", json!({}));
    if let Some(data) = secret.get_mut("data").and_then(Value::as_object_mut) {
        for (key, text) in texts {
            data.insert(key, Value::String(STANDARD.encode(text)));
        }
    }
}

/// The required keys of a secret of a known type.
fn required_keys(kind: &str) -> &'static [&'static str] {
    match kind {
        "kubernetes.io/dockercfg" => &[".dockercfg"],
        "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
        "kubernetes.io/ssh-auth" => &["ssh-privatekey"],
        "kubernetes.io/tls" => &["tls.crt", "tls.key"],
        _ => &[],
    }
}

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Subdomain, &mut errors);
    if let Some(old) = old {
        let (now, before) = (json::at(new, &["type"]), json::at(old, &["type"]));
        if !json::same(now, before) {
            errors.push(FieldError::invalid("type", now.clone(), meta::IMMUTABLE));
        }
        check_immutable(new, old, &["data"], &mut errors);
    }
    let path = Path::new("data");
    let size = check_keys(json::at(new, &["data"]), &path, &mut errors);
    // Base64 uses four characters for three bytes.
    if size / 4 * 3 > DATA_MAX {
        errors.push(FieldError::too_long(&path, DATA_MAX));
    }
    for (key, value) in json::members(new, &["data"]) {
        if value
            .as_str()
            .is_some_and(|text| STANDARD.decode(text).is_err())
        {
            let redacted = "<secret contents redacted>";
            errors.push(FieldError::invalid(
                &path.key(key),
                redacted,
                "illegal base64 data",
            ));
        }
    }
    let kind = json::text(new, &["type"]);
    for key in required_keys(kind) {
        if !json::has(new, &["data", key]) {
            errors.push(FieldError::required(&path.key(key), ""));
        }
    }
    if kind == "kubernetes.io/basic-auth"
        && !json::has(new, &["data", "username"])
        && !json::has(new, &["data", "password"])
    {
        errors.push(FieldError::required(&path.key("username"), ""));
        errors.push(FieldError::required(&path.key("password"), ""));
    }
    if kind == "kubernetes.io/service-account-token" {
        let key = "kubernetes.io/service-account.name";
        if json::text(new, &["metadata", "annotations", key]).is_empty() {
            errors.push(FieldError::required(
                format!("metadata.annotations[{key}]"),
                "",
            ));
        }
    }
    errors
}
