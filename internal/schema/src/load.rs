//! Reads OpenAPI v3 schemas (the embedded built-ins and custom resource definitions) into the
//! lean form of `shape`. It must keep no description and no parsed document alive.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, MapAccess, Visitor};
use serde_json::Value;

use crate::error::SchemaError;
use crate::shape::{
    Arena, Custom, Extra, Field, ListShape, ObjectShape, Patch, Relation, Scalar, Schemas,
    ShapeNode, TypeId, UNTYPED, ValidationRules, ValueShape,
};

/// The definitions of the built-in kinds, as text.
pub(crate) const BUILTIN: &str = include_str!("../../../api/openapi/kubernetes-v1.34.json");
pub(crate) const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";
const RAW_EXTENSION: &str = "io.k8s.apimachinery.pkg.runtime.RawExtension";

/// A schema as written, without its descriptions.
#[derive(Deserialize, Default)]
#[serde(default)]
struct WrittenSchema {
    #[serde(rename = "$ref")]
    reference: Option<String>,
    #[serde(rename = "allOf")]
    all_of: Vec<WrittenSchema>,
    #[serde(rename = "type")]
    kind: Option<String>,
    format: Option<String>,
    properties: BTreeMap<String, WrittenSchema>,
    #[serde(rename = "additionalProperties")]
    additional: Option<Additional>,
    items: Option<Box<WrittenSchema>>,
    required: Vec<String>,
    default: Option<Value>,
    nullable: bool,
    #[serde(rename = "enum")]
    allowed: Vec<Value>,
    minimum: Option<Value>,
    maximum: Option<Value>,
    #[serde(rename = "minLength")]
    min_length: Option<u64>,
    #[serde(rename = "maxLength")]
    max_length: Option<u64>,
    #[serde(rename = "minItems")]
    min_items: Option<u64>,
    #[serde(rename = "maxItems")]
    max_items: Option<u64>,
    #[serde(rename = "x-kubernetes-preserve-unknown-fields")]
    preserve: bool,
    #[serde(rename = "x-kubernetes-int-or-string")]
    int_or_string: bool,
    #[serde(rename = "x-kubernetes-embedded-resource")]
    embedded: bool,
    #[serde(rename = "x-kubernetes-list-type")]
    list_type: Option<String>,
    #[serde(rename = "x-kubernetes-list-map-keys")]
    list_keys: Vec<String>,
    #[serde(rename = "x-kubernetes-map-type")]
    map_type: Option<String>,
    #[serde(rename = "x-kubernetes-patch-strategy")]
    patch_strategy: Option<String>,
    #[serde(rename = "x-kubernetes-patch-merge-key")]
    patch_key: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Additional {
    Allowed(bool),
    Schema(Box<WrittenSchema>),
}

impl Schemas {
    /// Loads the built-in definitions and those of the given CustomResourceDefinitions (as JSON,
    /// apiextensions.k8s.io/v1); each served version of a CustomResourceDefinition becomes a
    /// definition with kube-apiserver's name for it: the group's parts reversed, version, kind.
    ///
    /// # Errors
    /// [`SchemaError::Definition`] for a CustomResourceDefinition without group, version, kind or
    /// schema.
    pub fn load(crds: &[Value]) -> Result<Schemas, SchemaError> {
        let mut arena = Arena::default();
        let mut reader = serde_json::Deserializer::from_str(BUILTIN);
        let mut with_status = BTreeSet::new();
        Builtins {
            arena: &mut arena,
            with_status: &mut with_status,
        }
        .deserialize(&mut reader)
        .map_err(|error| SchemaError::Embedded(error.to_string()))?;
        let builtin_names: BTreeSet<Box<str>> = arena.names.keys().cloned().collect();
        let mut digest = fnv(FNV_START, BUILTIN.as_bytes());
        let mut customs = Vec::new();
        for crd in crds {
            for (custom, status) in load_custom(&mut arena, crd)? {
                digest = fnv(digest, custom.schema.as_bytes());
                if status {
                    with_status.insert(custom.definition.clone());
                }
                customs.push(custom);
            }
        }
        Ok(Schemas {
            nodes: arena.nodes,
            names: arena.names,
            customs,
            with_status,
            builtin_names,
            digest,
        })
    }
}

/// Reads the embedded file one definition at a time, so that loading needs little memory.
struct Builtins<'a> {
    arena: &'a mut Arena,
    with_status: &'a mut BTreeSet<Box<str>>,
}

impl<'de> DeserializeSeed<'de> for Builtins<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Builtins<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object of definitions")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some((name, written)) = map.next_entry::<String, WrittenSchema>()? {
            if written.properties.contains_key("status")
                && written.properties.contains_key("metadata")
            {
                self.with_status.insert(name.as_str().into());
            }
            let node = match name.as_str() {
                QUANTITY => scalar(Scalar::Quantity),
                INT_OR_STRING => scalar(Scalar::IntOrString),
                RAW_EXTENSION => ShapeNode {
                    shape: ValueShape::AnyAtomic,
                    ..UNTYPED.clone()
                },
                _ => build(self.arena, &written),
            };
            self.arena.define(&name, node);
        }
        Ok(())
    }
}

fn scalar(kind: Scalar) -> ShapeNode {
    ShapeNode {
        shape: ValueShape::Scalar(kind),
        nullable: false,
        limits: None,
    }
}

/// The node of a schema that is not a reference.
fn build(arena: &mut Arena, written: &WrittenSchema) -> ShapeNode {
    let shape = if written.int_or_string {
        ValueShape::Scalar(Scalar::IntOrString)
    } else {
        match written.kind.as_deref() {
            Some("string") => ValueShape::Scalar(match written.format.as_deref() {
                Some("byte") => Scalar::Bytes,
                Some("date-time") => Scalar::Time,
                Some("int-or-string") => Scalar::IntOrString,
                _ => Scalar::Text,
            }),
            Some("boolean") => ValueShape::Scalar(Scalar::Bool),
            Some("integer") => ValueShape::Scalar(match written.format.as_deref() {
                Some("int32") => Scalar::Int32,
                _ => Scalar::Int64,
            }),
            Some("number") => ValueShape::Scalar(Scalar::Float),
            Some("array") => ValueShape::List(build_list(arena, written)),
            Some("object") => object_or_any(arena, written),
            _ if written.properties.is_empty() && written.additional.is_none() => ValueShape::Any,
            _ => object_or_any(arena, written),
        }
    };
    let mut node = ShapeNode {
        shape,
        nullable: written.nullable,
        limits: build_limits(written),
    };
    if written.embedded {
        complete_root(arena, &mut node);
    }
    node
}

fn object_or_any(arena: &mut Arena, written: &WrittenSchema) -> ValueShape {
    let extra = match &written.additional {
        Some(Additional::Schema(schema)) => Extra::Typed(build_use(arena, schema).0),
        Some(Additional::Allowed(true)) => Extra::Any,
        Some(Additional::Allowed(false)) => Extra::Forbidden,
        None if written.preserve || written.properties.is_empty() => Extra::Any,
        None => Extra::Forbidden,
    };
    let mut fields = Vec::with_capacity(written.properties.len());
    for (name, property) in &written.properties {
        let (ty, atomic) = build_use(arena, property);
        let strategy = property.patch_strategy.as_deref().unwrap_or("");
        let has = |word: &str| strategy.split(',').any(|part| part == word);
        fields.push(Field {
            name: name.as_str().into(),
            ty,
            required: written.required.iter().any(|r| r == name),
            default: property.default.as_ref().map(text_of),
            atomic,
            patch: Patch {
                merge: has("merge"),
                replace: has("replace"),
                retain_keys: has("retainKeys"),
                key: property.patch_key.as_deref().map(Into::into),
            },
        });
    }
    ValueShape::Object(ObjectShape {
        fields,
        extra,
        atomic: written.map_type.as_deref() == Some("atomic"),
    })
}

fn build_list(arena: &mut Arena, written: &WrittenSchema) -> ListShape {
    let items = match &written.items {
        Some(items) => build_use(arena, items).0,
        None => arena.intern(ShapeNode {
            shape: ValueShape::AnyAtomic,
            ..UNTYPED.clone()
        }),
    };
    let relation = match written.list_type.as_deref() {
        Some("map") => keyed(&written.list_keys),
        Some("set") => Relation::Set,
        Some(_) => Relation::Atomic,
        // Older schemas state the list type as a patch strategy.
        None => match (written.patch_strategy.as_deref(), &written.patch_key) {
            (Some("merge" | "merge,retainKeys"), Some(key)) => keyed(std::slice::from_ref(key)),
            (Some("merge" | "merge,retainKeys"), None) => Relation::Set,
            _ => Relation::Atomic,
        },
    };
    ListShape { items, relation }
}

fn keyed(keys: &[String]) -> Relation {
    let mut keys: Vec<Box<str>> = keys.iter().map(|key| key.as_str().into()).collect();
    keys.sort();
    Relation::Map(keys)
}

/// A schema at its place of use: a reference (alone or as the only entry of allOf) or an inline
/// one.
fn build_use(arena: &mut Arena, written: &WrittenSchema) -> (TypeId, Option<bool>) {
    let reference =
        written
            .reference
            .as_deref()
            .or(match (written.all_of.as_slice(), &written.kind) {
                ([only], None) => only.reference.as_deref(),
                _ => None,
            });
    if let Some(name) = reference.and_then(|path| path.rsplit('/').next()) {
        let atomic = match written.map_type.as_deref() {
            Some("atomic") => Some(true),
            Some("granular") => Some(false),
            _ => None,
        };
        return (arena.named(name), atomic);
    }
    let node = build(arena, written);
    (arena.intern(node), None)
}

fn build_limits(written: &WrittenSchema) -> Option<Box<ValidationRules>> {
    let limits = ValidationRules {
        allowed: written.allowed.iter().map(text_of).collect(),
        minimum: written.minimum.as_ref().map(text_of),
        maximum: written.maximum.as_ref().map(text_of),
        min_length: written.min_length,
        max_length: written.max_length,
        min_items: written.min_items,
        max_items: written.max_items,
    };
    (limits != ValidationRules::default()).then(|| Box::new(limits))
}

fn text_of(value: &Value) -> Box<str> {
    value.to_string().into()
}

fn load_custom(arena: &mut Arena, crd: &Value) -> Result<Vec<(Custom, bool)>, SchemaError> {
    let name = crd["metadata"]["name"].as_str().unwrap_or("?").to_owned();
    let wrong = |problem: String| SchemaError::Definition {
        name: name.clone(),
        problem,
    };
    let text = |path: &str| {
        crd.pointer(path)
            .and_then(Value::as_str)
            .ok_or_else(|| wrong(format!("{path} must be a string")))
    };
    let group = text("/spec/group")?;
    let kind = text("/spec/names/kind")?;
    let list_kind = crd
        .pointer("/spec/names/listKind")
        .and_then(Value::as_str)
        .map_or_else(|| format!("{kind}List"), str::to_owned);
    let versions = crd
        .pointer("/spec/versions")
        .and_then(Value::as_array)
        .ok_or_else(|| wrong("/spec/versions must be a list".to_owned()))?;
    let mut loaded = Vec::new();
    for version in versions
        .iter()
        .filter(|v| v["served"] != Value::Bool(false))
    {
        let version_name = version["name"]
            .as_str()
            .ok_or_else(|| wrong("every version needs a name".to_owned()))?;
        let schema = version.pointer("/schema/openAPIV3Schema").ok_or_else(|| {
            wrong(format!(
                "version {version_name} needs schema.openAPIV3Schema"
            ))
        })?;
        let written = WrittenSchema::deserialize(schema)
            .map_err(|error| wrong(format!("version {version_name}: {error}")))?;
        let mut node = build(arena, &written);
        complete_root(arena, &mut node);
        let definition = definition_name(group, version_name, kind);
        arena.define(&definition, node);
        loaded.push((
            Custom {
                group: group.into(),
                version: version_name.into(),
                kind: kind.into(),
                list_kind: list_kind.as_str().into(),
                definition: definition.into(),
                schema: schema.to_string().into(),
            },
            !version["subresources"]["status"].is_null(),
        ));
    }
    Ok(loaded)
}

/// The group's parts reversed, the version and the kind, as kube-apiserver names definitions.
fn definition_name(group: &str, version: &str, kind: &str) -> String {
    let mut parts: Vec<&str> = group.split('.').collect();
    parts.reverse();
    format!("{}.{version}.{kind}", parts.join("."))
}

/// Adds apiVersion, kind and typed metadata, which every resource has, even if its schema omits
/// them.
fn complete_root(arena: &mut Arena, node: &mut ShapeNode) {
    let text = arena.intern(scalar(Scalar::Text));
    let meta = arena.named(OBJECT_META);
    let ValueShape::Object(object) = &mut node.shape else {
        return;
    };
    for (name, ty) in [("apiVersion", text), ("kind", text), ("metadata", meta)] {
        let field = Field {
            name: name.into(),
            ty,
            required: false,
            default: None,
            atomic: None,
            patch: Patch::default(),
        };
        match object.fields.binary_search_by(|f| (*f.name).cmp(name)) {
            Ok(at) => object.fields[at] = field,
            Err(at) => object.fields.insert(at, field),
        }
    }
}

pub(crate) const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a: a stable digest for the documents' hashes, not for security.
pub(crate) fn fnv(mut state: u64, bytes: &[u8]) -> u64 {
    for byte in bytes {
        state = (state ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    state
}
