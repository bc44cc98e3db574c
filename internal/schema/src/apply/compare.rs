//! Compares two objects of a kind field by field. It must not know the owners of fields.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::element::{Element, of_item};
use super::set::PathSet;
use crate::shape::{ListShape, Relation, Schemas, TypeUse, UNTYPED, ValueShape};

/// The paths in which a second object differs from a first.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    pub(crate) added: PathSet,
    pub(crate) modified: PathSet,
    pub(crate) removed: PathSet,
}

impl Comparison {
    /// Removes everything at and below the given paths.
    pub(crate) fn exclude(&mut self, ignored: &PathSet) {
        if !ignored.is_empty() {
            self.added = self.added.without_subtrees(ignored);
            self.modified = self.modified.without_subtrees(ignored);
            self.removed = self.removed.without_subtrees(ignored);
        }
    }
}

/// Compares two objects of one definition.
pub(crate) fn compare(
    schemas: &Schemas,
    definition: &str,
    before: &Value,
    after: &Value,
) -> Comparison {
    let mut walk = CompareWalk {
        schemas,
        path: Vec::new(),
        found: Comparison::default(),
    };
    walk.value(schemas.root(definition), Some(before), Some(after));
    walk.found
}

/// The form in which a pair of values is compared.
enum ComparisonForm<'a> {
    Leaf,
    Maps(
        Option<&'a Map<String, Value>>,
        Option<&'a Map<String, Value>>,
    ),
    Lists(&'a ListShape, &'a [Value], &'a [Value]),
}

struct CompareWalk<'s> {
    schemas: &'s Schemas,
    path: Vec<Element>,
    found: Comparison,
}

/// Whether an object of this type is one value.
pub(crate) fn is_atomic(used: TypeUse<'_>) -> bool {
    used.atomic.unwrap_or(match &used.node.shape {
        ValueShape::AnyAtomic => true,
        ValueShape::Object(object) => object.atomic,
        _ => false,
    })
}

fn present_map(value: Option<&Value>) -> Option<&Map<String, Value>> {
    value.and_then(Value::as_object)
}

fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(_) => false,
    }
}

fn form<'a>(
    used: TypeUse<'a>,
    before: Option<&'a Value>,
    after: Option<&'a Value>,
) -> ComparisonForm<'a> {
    let both_empty = is_empty(before) && is_empty(after);
    let maps = || ComparisonForm::Maps(present_map(before), present_map(after));
    let no_other = |fits: fn(&Value) -> bool| {
        [before, after]
            .into_iter()
            .flatten()
            .all(|value| value.is_null() || fits(value))
    };
    match &used.node.shape {
        ValueShape::Object(_) if is_atomic(used) || both_empty => ComparisonForm::Leaf,
        ValueShape::Object(_) if no_other(Value::is_object) => maps(),
        ValueShape::Any if !both_empty && no_other(Value::is_object) => maps(),
        ValueShape::List(list) if list.relation != Relation::Atomic && !both_empty => {
            if no_other(Value::is_array) {
                let items = |value: Option<&'a Value>| {
                    value
                        .and_then(Value::as_array)
                        .map_or(&[][..], Vec::as_slice)
                };
                ComparisonForm::Lists(list, items(before), items(after))
            } else {
                ComparisonForm::Leaf
            }
        }
        _ => ComparisonForm::Leaf,
    }
}

impl CompareWalk<'_> {
    fn value(&mut self, used: TypeUse<'_>, before: Option<&Value>, after: Option<&Value>) {
        if before == after {
            return;
        }
        match form(used, before, after) {
            ComparisonForm::Leaf => {
                match (before, after) {
                    (None, _) => self.found.added.insert(&self.path),
                    (_, None) => self.found.removed.insert(&self.path),
                    _ => self.found.modified.insert(&self.path),
                }
                // If a free-form value becomes an object or ceases to be one, the fields inside the
                // object count too.
                if matches!(used.node.shape, ValueShape::Any) && before.is_some() && after.is_some()
                {
                    self.maps(used, present_map(before), present_map(after));
                }
                return;
            }
            ComparisonForm::Maps(old, new) => self.maps(used, old, new),
            ComparisonForm::Lists(list, old, new) => self.lists(list, old, new),
        }
        if before.is_none() {
            self.found.added.insert(&self.path);
        } else if after.is_none() {
            self.found.removed.insert(&self.path);
        }
    }

    fn maps(
        &mut self,
        used: TypeUse<'_>,
        old: Option<&Map<String, Value>>,
        new: Option<&Map<String, Value>>,
    ) {
        let empty = Map::new();
        let (old, new) = (old.unwrap_or(&empty), new.unwrap_or(&empty));
        for (key, value) in old {
            let after = new.get(key);
            if after != Some(value) {
                self.member(used, key, Some(value), after);
            }
        }
        for (key, value) in new {
            if !old.contains_key(key) {
                self.member(used, key, None, Some(value));
            }
        }
    }

    fn member(&mut self, used: TypeUse<'_>, key: &str, old: Option<&Value>, new: Option<&Value>) {
        // A field that the definition lacks can only come from an older definition.
        let member = self.schemas.member(used.node, key).unwrap_or(TypeUse {
            node: &UNTYPED,
            atomic: None,
        });
        self.path.push(Element::Field(key.into()));
        self.value(member, old, new);
        self.path.pop();
    }

    fn lists(&mut self, list: &ListShape, old: &[Value], new: &[Value]) {
        let old = index(self.schemas, list, old);
        let new = index(self.schemas, list, new);
        let item = self.schemas.plain(list.items);
        for (element, before) in &old {
            let after = new.get(element).map_or(&[][..], Vec::as_slice);
            self.item(item, element, before, after);
        }
        for (element, after) in &new {
            if !old.contains_key(element) {
                self.item(item, element, &[], after);
            }
        }
    }

    /// Compares the items of one key; several items with that key on one side count as one value.
    fn item(&mut self, used: TypeUse<'_>, element: &Element, old: &[&Value], new: &[&Value]) {
        self.path.push(element.clone());
        match (old, new) {
            ([] | [_], [] | [_]) => {
                self.value(used, old.first().copied(), new.first().copied());
            }
            ([_, _, ..], [_, _, ..]) => {
                if old != new {
                    self.found.modified.insert(&self.path);
                }
            }
            ([_, _, ..], _) => {
                self.value(used, None, new.first().copied());
                self.found.removed.insert(&self.path);
            }
            (_, _) => {
                self.value(used, old.first().copied(), None);
                self.found.added.insert(&self.path);
            }
        }
        self.path.pop();
    }
}

/// Items by their element; items that have none are left out.
fn index<'a>(
    schemas: &Schemas,
    list: &ListShape,
    items: &'a [Value],
) -> BTreeMap<Element, Vec<&'a Value>> {
    let mut indexed: BTreeMap<Element, Vec<&Value>> = BTreeMap::new();
    for item in items {
        if let Ok(element) = of_item(schemas, list, item) {
            indexed.entry(element).or_default().push(item);
        }
    }
    indexed
}
