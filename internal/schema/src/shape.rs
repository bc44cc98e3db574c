//! The lean form of all definitions: the data for merging, checking and pruning, interned so that
//! equal inline schemas exist once. Descriptions stay in the embedded text and are read only for a
//! request for an OpenAPI document. This file must not parse; `load` fills it.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

/// Index of a [`ShapeNode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TypeId(pub(crate) u32);

/// The permitted form of a JSON value of some type, and its merge strategy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ShapeNode {
    pub(crate) shape: ValueShape,
    /// null is a distinct value (custom resources only; built-ins read null as absent).
    pub(crate) nullable: bool,
    /// Constraints that custom resources declare; `None` for nearly all nodes.
    pub(crate) limits: Option<Box<ValidationRules>>,
}

/// The part of JSON schema validation that is enforced for custom resources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ValidationRules {
    /// Allowed values, as JSON text.
    pub(crate) allowed: Vec<Box<str>>,
    /// Bounds as JSON text (integers and decimals alike).
    pub(crate) minimum: Option<Box<str>>,
    pub(crate) maximum: Option<Box<str>>,
    pub(crate) min_length: Option<u64>,
    pub(crate) max_length: Option<u64>,
    pub(crate) min_items: Option<u64>,
    pub(crate) max_items: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ValueShape {
    /// Anything; objects inside merge by key, lists are atomic.
    Any,
    /// Anything, replaced as a whole (RawExtension).
    AnyAtomic,
    Scalar(Scalar),
    Object(ObjectShape),
    List(ListShape),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Scalar {
    Text,
    /// Base64 text.
    Bytes,
    /// RFC 3339 text.
    Time,
    Bool,
    Int32,
    Int64,
    Float,
    IntOrString,
    /// Text or number.
    Quantity,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ObjectShape {
    /// Sorted by name.
    pub(crate) fields: Vec<Field>,
    /// The values of keys beyond `fields`.
    pub(crate) extra: Extra,
    /// Replaced as a whole.
    pub(crate) atomic: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Extra {
    /// Other keys are unknown fields.
    Forbidden,
    /// Other keys hold anything.
    Any,
    /// Other keys hold values of this type (a map).
    Typed(TypeId),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Field {
    pub(crate) name: Box<str>,
    pub(crate) ty: TypeId,
    pub(crate) required: bool,
    /// The declared default as JSON text.
    pub(crate) default: Option<Box<str>>,
    /// This use of the type overrides whether the object is atomic.
    pub(crate) atomic: Option<bool>,
    pub(crate) patch: Patch,
}

/// How strategic merge patch treats a field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Patch {
    pub(crate) merge: bool,
    pub(crate) replace: bool,
    pub(crate) retain_keys: bool,
    pub(crate) key: Option<Box<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ListShape {
    pub(crate) items: TypeId,
    pub(crate) relation: Relation,
}

/// The relation of a list's items.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Relation {
    /// The list is one value.
    Atomic,
    /// Scalars, each its own key.
    Set,
    /// Objects that these fields identify, sorted by name.
    Map(Vec<Box<str>>),
}

impl ObjectShape {
    pub(crate) fn field(&self, name: &str) -> Option<&Field> {
        self.fields
            .binary_search_by(|field| (*field.name).cmp(name))
            .ok()
            .map(|at| &self.fields[at])
    }
}

impl Field {
    pub(crate) fn default_value(&self) -> Option<Value> {
        // `load` wrote it from a parsed value, so it parses.
        self.default
            .as_deref()
            .and_then(|text| serde_json::from_str(text).ok())
    }
}

/// A type at its place of use: the node and whether this use overrides the object's atomicity.
#[derive(Clone, Copy)]
pub(crate) struct TypeUse<'s> {
    pub(crate) node: &'s ShapeNode,
    pub(crate) atomic: Option<bool>,
}

/// The parts of a custom resource's definition for the OpenAPI documents.
pub(crate) struct Custom {
    pub(crate) group: Box<str>,
    pub(crate) version: Box<str>,
    pub(crate) kind: Box<str>,
    pub(crate) list_kind: Box<str>,
    pub(crate) definition: Box<str>,
    /// The structural schema with its descriptions, as JSON text.
    pub(crate) schema: Box<str>,
}

/// All definitions, built-in and custom.
pub struct Schemas {
    pub(crate) nodes: Vec<ShapeNode>,
    pub(crate) names: BTreeMap<Box<str>, TypeId>,
    pub(crate) customs: Vec<Custom>,
    /// Definitions with a status subresource.
    pub(crate) with_status: std::collections::BTreeSet<Box<str>>,
    /// In built-in kinds, fields that an empty Go struct already holds have no owner; see
    /// `apply::created`.
    pub(crate) builtin_names: std::collections::BTreeSet<Box<str>>,
    /// Changes whenever any definition changes.
    pub(crate) digest: u64,
}

impl std::fmt::Debug for Schemas {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Schemas")
            .field("definitions", &self.names.len())
            .field("nodes", &self.nodes.len())
            .finish_non_exhaustive()
    }
}

/// The node for unknown definitions: it permits any value and merges by key.
pub(crate) static UNTYPED: ShapeNode = ShapeNode {
    shape: ValueShape::Any,
    nullable: true,
    limits: None,
};

impl Schemas {
    /// The definition's name for a kind, e.g. `io.k8s.api.core.v1.Pod` for core/v1 Pod and
    /// `org.kubeflow.v1.PyTorchJob` for kubeflow.org/v1 PyTorchJob. Custom kinds only;
    /// built-in kinds are named by their registration.
    pub fn custom_definition(&self, group: &str, version: &str, kind: &str) -> Option<&str> {
        self.customs
            .iter()
            .find(|c| &*c.group == group && &*c.version == version && &*c.kind == kind)
            .map(|c| &*c.definition)
    }

    /// True if a definition of this name was loaded.
    pub fn has(&self, definition: &str) -> bool {
        self.names.contains_key(definition)
    }

    /// True if the definition is a custom resource's: its type errors are validation errors (422),
    /// those of a built-in are decoding errors (400).
    pub fn is_custom(&self, definition: &str) -> bool {
        self.has(definition) && !self.builtin_names.contains(definition)
    }

    /// The approximate resident size of the lean form in bytes, for the memory budget's test.
    pub fn footprint(&self) -> usize {
        let nodes = self.nodes.len() * size_of::<ShapeNode>();
        let fields: usize = self
            .nodes
            .iter()
            .map(|node| match &node.shape {
                ValueShape::Object(object) => {
                    object.fields.len() * size_of::<Field>()
                        + object.fields.iter().map(|f| f.name.len()).sum::<usize>()
                }
                _ => 0,
            })
            .sum();
        let texts: usize = self.customs.iter().map(|c| c.schema.len()).sum();
        nodes + fields + texts
    }

    pub(crate) fn root(&self, definition: &str) -> TypeUse<'_> {
        TypeUse {
            node: self
                .names
                .get(definition)
                .map_or(&UNTYPED, |id| self.node(*id)),
            atomic: None,
        }
    }

    pub(crate) fn node(&self, id: TypeId) -> &ShapeNode {
        // `load` assigns ids only to nodes that it also stores.
        &self.nodes[id.0 as usize]
    }

    pub(crate) fn plain(&self, id: TypeId) -> TypeUse<'_> {
        TypeUse {
            node: self.node(id),
            atomic: None,
        }
    }

    /// The type of a key of an object; `None` for a key that isn't part of it.
    pub(crate) fn member<'s>(&'s self, parent: &'s ShapeNode, key: &str) -> Option<TypeUse<'s>> {
        match &parent.shape {
            ValueShape::Any | ValueShape::AnyAtomic => Some(TypeUse {
                node: &UNTYPED,
                atomic: None,
            }),
            ValueShape::Object(object) => {
                if let Some(field) = object.field(key) {
                    return Some(TypeUse {
                        node: self.node(field.ty),
                        atomic: field.atomic,
                    });
                }
                match object.extra {
                    Extra::Forbidden => None,
                    Extra::Any => Some(TypeUse {
                        node: &UNTYPED,
                        atomic: None,
                    }),
                    Extra::Typed(id) => Some(self.plain(id)),
                }
            }
            ValueShape::Scalar(_) | ValueShape::List(_) => None,
        }
    }
}

/// Stores nodes, equal inline ones once.
#[derive(Default)]
pub(crate) struct Arena {
    pub(crate) nodes: Vec<ShapeNode>,
    pub(crate) names: BTreeMap<Box<str>, TypeId>,
    inline: HashMap<ShapeNode, TypeId>,
}

impl Arena {
    /// The id of a named definition, given before or after its node is known.
    pub(crate) fn named(&mut self, name: &str) -> TypeId {
        if let Some(id) = self.names.get(name) {
            return *id;
        }
        let id = self.push(UNTYPED.clone());
        self.names.insert(name.into(), id);
        id
    }

    pub(crate) fn define(&mut self, name: &str, node: ShapeNode) -> TypeId {
        let id = self.named(name);
        self.nodes[id.0 as usize] = node;
        id
    }

    pub(crate) fn intern(&mut self, node: ShapeNode) -> TypeId {
        if let Some(id) = self.inline.get(&node) {
            return *id;
        }
        let id = self.push(node.clone());
        self.inline.insert(node, id);
        id
    }

    fn push(&mut self, node: ShapeNode) -> TypeId {
        let id = TypeId(u32::try_from(self.nodes.len()).expect("fewer than 2^32 schema nodes"));
        self.nodes.push(node);
        id
    }
}
