//! Prunes unknown fields and fills in declared defaults. It must not judge values: `check` reports invalid ones, this
//! file only changes the stored form.

use serde_json::Value;

use crate::shape::{Extra, ObjectShape, Scalar, Schemas, ShapeNode, ValueShape};

impl Schemas {
    /// Drops every unknown field and, in built-in kinds, every null: decoding into typed objects does the same in
    /// Kubernetes. An unknown definition prunes nothing.
    pub fn prune(&self, definition: &str, value: &mut Value) {
        let root = self.root(definition).node;
        self.prune_node(root, value);
        if !self.is_custom(definition) {
            self.drop_nulls_in(root, value);
        }
    }

    /// Drops every unknown field and keeps nulls, which have a meaning in a patch.
    pub fn prune_unknown(&self, definition: &str, value: &mut Value) {
        self.prune_node(self.root(definition).node, value);
    }

    /// Drops every null whose type is not nullable.
    pub(crate) fn drop_nulls(&self, definition: &str, value: &mut Value) {
        self.drop_nulls_in(self.root(definition).node, value);
    }

    fn drop_nulls_in(&self, node: &ShapeNode, value: &mut Value) {
        match (&node.shape, value) {
            (ValueShape::Object(_), Value::Object(map)) => {
                map.retain(|key, child| {
                    let Some(member) = self.member(node, key) else {
                        return true;
                    };
                    if child.is_null() && !member.node.nullable {
                        return false;
                    }
                    self.drop_nulls_in(member.node, child);
                    true
                });
            }
            (ValueShape::List(list), Value::Array(items)) => {
                let node = self.node(list.items);
                items.retain(|item| node.nullable || !item.is_null());
                for item in items {
                    self.drop_nulls_in(node, item);
                }
            }
            _ => {}
        }
    }

    /// Fills in the definition's declared defaults of absent fields (in custom resources, also of null fields that are
    /// not nullable). Zero values in built-in definitions (`""`, `0`, `{}`) do not imply defaulting and are skipped.
    pub fn default(&self, definition: &str, value: &mut Value) {
        let custom = self.is_custom(definition);
        self.default_node(self.root(definition).node, value, custom);
    }

    /// Fills in the zero value of each absent required text, number and boolean below a member of the object. For
    /// built-in kinds, Kubernetes always writes these, and its clients refuse responses without them.
    pub fn fill_required(&self, definition: &str, member: &str, value: &mut Value) {
        let root = self.root(definition).node;
        if let (Some(found), Some(child)) = (self.member(root, member), value.get_mut(member)) {
            self.fill_required_in(found.node, child);
        }
    }

    fn fill_required_in(&self, node: &ShapeNode, value: &mut Value) {
        match (&node.shape, value) {
            (ValueShape::Object(object), Value::Object(map)) => {
                for field in object.fields.iter().filter(|field| field.required) {
                    if !map.contains_key(&*field.name)
                        && let Some(zero) = zero(&self.node(field.ty).shape)
                    {
                        map.insert(field.name.to_string(), zero);
                    }
                }
                for (key, child) in map.iter_mut() {
                    if let Some(member) = self.member(node, key) {
                        self.fill_required_in(member.node, child);
                    }
                }
            }
            (ValueShape::List(list), Value::Array(items)) => {
                let node = self.node(list.items);
                for item in items {
                    self.fill_required_in(node, item);
                }
            }
            _ => {}
        }
    }

    fn prune_node(&self, node: &ShapeNode, value: &mut Value) {
        match (&node.shape, value) {
            (ValueShape::Object(object), Value::Object(map)) => {
                if object.extra == Extra::Forbidden {
                    map.retain(|key, _| object.field(key).is_some());
                }
                for (key, child) in map.iter_mut() {
                    if let Some(member) = self.member(node, key) {
                        self.prune_node(member.node, child);
                    }
                }
            }
            (ValueShape::List(list), Value::Array(items)) => {
                let node = self.node(list.items);
                for item in items {
                    self.prune_node(node, item);
                }
            }
            _ => {}
        }
    }

    fn default_node(&self, node: &ShapeNode, value: &mut Value, custom: bool) {
        match (&node.shape, value) {
            (ValueShape::Object(object), Value::Object(map)) => {
                self.default_fields(object, map, custom);
                for (key, child) in map.iter_mut() {
                    if let Some(member) = self.member(node, key) {
                        self.default_node(member.node, child, custom);
                    }
                }
            }
            (ValueShape::List(list), Value::Array(items)) => {
                let node = self.node(list.items);
                for item in items {
                    self.default_node(node, item, custom);
                }
            }
            _ => {}
        }
    }

    fn default_fields(
        &self,
        object: &ObjectShape,
        map: &mut serde_json::Map<String, Value>,
        custom: bool,
    ) {
        for field in &object.fields {
            let Some(default) = field.default.as_deref() else {
                continue;
            };
            if !custom && matches!(default, "{}" | "\"\"" | "0" | "false" | "null") {
                continue;
            }
            let absent = match map.get(&*field.name) {
                None => true,
                Some(Value::Null) => custom && !self.node(field.ty).nullable,
                Some(_) => false,
            };
            if absent && let Some(default) = field.default_value() {
                map.insert(field.name.to_string(), default);
            }
        }
    }
}

/// Go's zero value of a scalar.
fn zero(shape: &ValueShape) -> Option<Value> {
    match shape {
        ValueShape::Scalar(Scalar::Text) => Some("".into()),
        ValueShape::Scalar(Scalar::Bool) => Some(false.into()),
        ValueShape::Scalar(Scalar::Int32 | Scalar::Int64) => Some(0.into()),
        _ => None,
    }
}
