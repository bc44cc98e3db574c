//! JSON patch, RFC 6902, with kube-apiserver's errors. Operations run one after the other in a loop, and the addition
//! of an operation is measured before it is made, so that neither the number of operations nor the size of their copies
//! determines a patch's memory, time or stack. It must not know any schema.

use std::borrow::Cow;

use serde_json::Value;

use crate::PatchError;
use crate::size::measure;

/// The bounds of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PatchLimits {
    /// The maximum number of operations.
    pub operations: usize,
    /// The maximum depth of objects and lists in the object, at any moment.
    pub depth: usize,
    /// The maximum number of bytes that all `copy` operations add together.
    pub copied_bytes: usize,
    /// The maximum number of values that all operations together may visit or move, such as the items behind an
    /// insertion and the contents of a `move`.
    pub work: usize,
}

/// One operation, read from the patch. Its value is borrowed from the patch.
enum PatchOperation<'a> {
    Add(&'a str, &'a Value),
    Remove(&'a str),
    Replace(&'a str, &'a Value),
    Move { from: &'a str, path: &'a str },
    Copy { from: &'a str, path: &'a str },
    Test(&'a str, &'a Value),
}

/// Why an operation's path can't be used.
enum Missing {
    /// The path does not exist.
    Path,
    /// The source path of `move` or `copy` does not exist.
    From,
}

/// Applies the operations in order; `target` stays as it was if one fails.
///
/// # Errors
/// [`PatchError::Malformed`] when `patch` is no JSON patch, [`PatchError::TooLarge`] when it has more operations than
/// `bounds` allow, [`PatchError::Unprocessable`] when an operation doesn't fit the object (a path that does not exist,
/// a test that fails) or would exceed another bound.
pub fn apply(target: &mut Value, patch: &Value, bounds: &PatchLimits) -> Result<(), PatchError> {
    let Some(operations) = patch.as_array() else {
        return Err(PatchError::Malformed(
            "error decoding patch: json: cannot unmarshal object into Go value of type jsonpatch.Patch"
                .to_owned(),
        ));
    };
    if operations.len() > bounds.operations {
        return Err(PatchError::TooLarge(format!(
            "The allowed maximum operations in a JSON patch is {}, got {}",
            bounds.operations,
            operations.len()
        )));
    }
    let operations = operations
        .iter()
        .enumerate()
        .map(|(at, operation)| read(at, operation))
        .collect::<Result<Vec<_>, _>>()?;
    let mut run = PatchRun {
        object: target.clone(),
        bounds,
        copied: 0,
        work: 0,
    };
    for operation in &operations {
        run.step(operation)?;
    }
    *target = run.object;
    Ok(())
}

/// Reads one operation. Unknown members are ignored, as RFC 6902 requires.
fn read(at: usize, operation: &Value) -> Result<PatchOperation<'_>, PatchError> {
    let malformed =
        |why: String| PatchError::Malformed(format!("error decoding patch: operation {at}: {why}"));
    let text = |name: &str| {
        operation[name]
            .as_str()
            .ok_or_else(|| malformed(format!("{name}: must be a text")))
    };
    let pointer = |name: &str| {
        let text = text(name)?;
        if text.is_empty() || text.starts_with('/') {
            return Ok(text);
        }
        Err(malformed(format!(
            "{name}: must be empty or begin with \"/\""
        )))
    };
    let value = || {
        operation
            .get("value")
            .ok_or_else(|| malformed("value: Required value".to_owned()))
    };
    Ok(match text("op")? {
        "add" => PatchOperation::Add(pointer("path")?, value()?),
        "remove" => PatchOperation::Remove(pointer("path")?),
        "replace" => PatchOperation::Replace(pointer("path")?, value()?),
        "move" => PatchOperation::Move {
            from: pointer("from")?,
            path: pointer("path")?,
        },
        "copy" => PatchOperation::Copy {
            from: pointer("from")?,
            path: pointer("path")?,
        },
        "test" => PatchOperation::Test(pointer("path")?, value()?),
        _ => {
            return Err(malformed(
                "op: must be add, remove, replace, move, copy or test".to_owned(),
            ));
        }
    })
}

/// A patch while it runs.
struct PatchRun<'b> {
    object: Value,
    bounds: &'b PatchLimits,
    copied: usize,
    work: usize,
}

impl PatchRun<'_> {
    fn step(&mut self, operation: &PatchOperation<'_>) -> Result<(), PatchError> {
        let missing = |missing: Missing| worded(operation, &missing);
        match operation {
            PatchOperation::Add(path, value) => {
                self.allow_depth(path, value)?;
                self.add(path, (*value).clone(), &missing)
            }
            PatchOperation::Remove(path) => self.remove(path, Missing::Path, &missing).map(drop),
            PatchOperation::Replace(path, value) => {
                self.allow_depth(path, value)?;
                let place = self.object.pointer_mut(path);
                *place.ok_or_else(|| missing(Missing::Path))? = (*value).clone();
                Ok(())
            }
            PatchOperation::Move { from, path } => {
                if path
                    .strip_prefix(from)
                    .is_some_and(|below| below.starts_with('/'))
                {
                    return Err(PatchError::Unprocessable(format!(
                        "move operation does not apply: {from} can't be moved into itself: {path}"
                    )));
                }
                let value = self.remove(from, Missing::From, &missing)?;
                let size = measure(&value);
                self.allow_levels(path, size.depth)?;
                self.spend(size.values)?;
                self.add(path, value, &missing)
            }
            PatchOperation::Copy { from, path } => {
                let source = self.object.pointer(from);
                let source = source.ok_or_else(|| missing(Missing::From))?;
                let size = measure(source);
                self.copied = self.copied.saturating_add(size.bytes);
                if self.copied > self.bounds.copied_bytes {
                    return Err(PatchError::Unprocessable(format!(
                        "Unable to complete the copy, the accumulated size increase of copy is {}, exceeding the limit {}",
                        self.copied, self.bounds.copied_bytes
                    )));
                }
                self.allow_levels(path, size.depth)?;
                let value = source.clone();
                self.add(path, value, &missing)
            }
            PatchOperation::Test(path, value) => {
                let found = self.object.pointer(path);
                // Kubernetes reads an absent member as null.
                let absent = found.is_none() && value.is_null();
                let parent = path.rsplit_once('/').map(|(parent, _)| parent);
                let may_be_absent =
                    absent && parent.is_some_and(|parent| self.object.pointer(parent).is_some());
                if found == Some(*value) || may_be_absent {
                    Ok(())
                } else {
                    Err(PatchError::Unprocessable(format!(
                        "testing value {path} failed: test failed"
                    )))
                }
            }
        }
    }

    fn allow_depth(&self, path: &str, value: &Value) -> Result<(), PatchError> {
        self.allow_levels(path, measure(value).depth)
    }

    /// Refuses a value with this many levels at a path if it would exceed the bound.
    fn allow_levels(&self, path: &str, levels: usize) -> Result<(), PatchError> {
        let above = path.bytes().filter(|byte| *byte == b'/').count();
        if above + levels > self.bounds.depth {
            return Err(PatchError::Unprocessable(format!(
                "the patch nests the object deeper than {} levels",
                self.bounds.depth
            )));
        }
        Ok(())
    }

    fn spend(&mut self, values: usize) -> Result<(), PatchError> {
        self.work = self.work.saturating_add(values);
        if self.work > self.bounds.work {
            return Err(PatchError::Unprocessable(format!(
                "the patch's operations move more than {} values; send fewer operations, or replace whole lists",
                self.bounds.work
            )));
        }
        Ok(())
    }

    fn add(
        &mut self,
        path: &str,
        value: Value,
        missing: &dyn Fn(Missing) -> PatchError,
    ) -> Result<(), PatchError> {
        let Some((parent, last)) = path.rsplit_once('/') else {
            self.object = value;
            return Ok(());
        };
        let shifted = match self.object.pointer(parent) {
            Some(Value::Object(_)) => 0,
            Some(Value::Array(items)) => {
                let at = insertion(last, items.len()).ok_or_else(|| missing(Missing::Path))?;
                items.len() - at
            }
            _ => return Err(missing(Missing::Path)),
        };
        self.spend(shifted)?;
        match self.object.pointer_mut(parent) {
            Some(Value::Object(members)) => {
                members.insert(unescaped(last).into_owned(), value);
            }
            Some(Value::Array(items)) => items.insert(items.len() - shifted, value),
            _ => return Err(missing(Missing::Path)),
        }
        Ok(())
    }

    fn remove(
        &mut self,
        path: &str,
        absent: Missing,
        missing: &dyn Fn(Missing) -> PatchError,
    ) -> Result<Value, PatchError> {
        let Some((parent, last)) = path.rsplit_once('/') else {
            return Err(missing(absent));
        };
        let place = match self.object.pointer(parent) {
            Some(Value::Array(items)) => index(last).filter(|at| *at < items.len()),
            _ => None,
        };
        let behind = match (self.object.pointer(parent), place) {
            (Some(Value::Array(items)), Some(at)) => items.len() - at,
            _ => 0,
        };
        self.spend(behind)?;
        let removed = match (self.object.pointer_mut(parent), place) {
            (Some(Value::Object(members)), _) => members.remove(&*unescaped(last)),
            (Some(Value::Array(items)), Some(at)) => Some(items.remove(at)),
            _ => None,
        };
        removed.ok_or_else(|| missing(absent))
    }
}

/// The index in a step of a pointer; `None` for a text that is no index by RFC 6901.
fn index(step: &str) -> Option<usize> {
    let plain = step == "0" || !step.starts_with('0');
    (plain && step.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| step.parse().ok())
        .flatten()
}

/// The position at which a step inserts into a list of `items` items.
fn insertion(step: &str, items: usize) -> Option<usize> {
    if step == "-" {
        return Some(items);
    }
    index(step).filter(|at| *at <= items)
}

fn unescaped(step: &str) -> Cow<'_, str> {
    if step.contains('~') {
        Cow::Owned(step.replace("~1", "/").replace("~0", "~"))
    } else {
        Cow::Borrowed(step)
    }
}

/// The error message of evanphx/json-patch, which kube-apiserver passes on.
fn worded(operation: &PatchOperation<'_>, missing: &Missing) -> PatchError {
    let (word, what) = match operation {
        PatchOperation::Add(path, _) => ("add", format!("path: \"{path}\"")),
        PatchOperation::Remove(path) => ("remove", format!("path: {path}")),
        PatchOperation::Replace(path, _) => ("replace", format!("path: {path}")),
        PatchOperation::Test(path, _) => ("test", format!("path: {path}")),
        PatchOperation::Move { from, path } | PatchOperation::Copy { from, path } => {
            let word = match operation {
                PatchOperation::Move { .. } => "move",
                _ => "copy",
            };
            match missing {
                Missing::From => (word, format!("from path: {from}")),
                Missing::Path => (word, format!("path: {path}")),
            }
        }
    };
    PatchError::Unprocessable(format!(
        "{word} operation does not apply: doc is missing {what}: missing value"
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Small bounds, which short patches can reach.
    const BOUNDS: PatchLimits = PatchLimits {
        operations: 100,
        depth: 20,
        copied_bytes: 1000,
        work: 1500,
    };

    #[test]
    fn the_examples_of_rfc_6902_come_out_as_printed() {
        let table = [
            (
                "adding an object member",
                json!({"foo":"bar"}),
                json!([{"op":"add","path":"/baz","value":"qux"}]),
                json!({"baz":"qux","foo":"bar"}),
            ),
            (
                "adding an array element",
                json!({"foo":["bar","baz"]}),
                json!([{"op":"add","path":"/foo/1","value":"qux"}]),
                json!({"foo":["bar","qux","baz"]}),
            ),
            (
                "removing an object member",
                json!({"baz":"qux","foo":"bar"}),
                json!([{"op":"remove","path":"/baz"}]),
                json!({"foo":"bar"}),
            ),
            (
                "removing an array element",
                json!({"foo":["bar","qux","baz"]}),
                json!([{"op":"remove","path":"/foo/1"}]),
                json!({"foo":["bar","baz"]}),
            ),
            (
                "replacing a value",
                json!({"baz":"qux","foo":"bar"}),
                json!([{"op":"replace","path":"/baz","value":"boo"}]),
                json!({"baz":"boo","foo":"bar"}),
            ),
            (
                "moving a value",
                json!({"foo":{"bar":"baz","waldo":"fred"},"qux":{"corge":"grault"}}),
                json!([{"op":"move","from":"/foo/waldo","path":"/qux/thud"}]),
                json!({"foo":{"bar":"baz"},"qux":{"corge":"grault","thud":"fred"}}),
            ),
            (
                "moving an array element",
                json!({"foo":["all","grass","cows","eat"]}),
                json!([{"op":"move","from":"/foo/1","path":"/foo/3"}]),
                json!({"foo":["all","cows","eat","grass"]}),
            ),
            (
                "testing a value",
                json!({"baz":"qux","foo":["a",2,"c"]}),
                json!([{"op":"test","path":"/baz","value":"qux"},{"op":"test","path":"/foo/1","value":2}]),
                json!({"baz":"qux","foo":["a",2,"c"]}),
            ),
            (
                "adding a nested member object",
                json!({"foo":"bar"}),
                json!([{"op":"add","path":"/child","value":{"grandchild":{}}}]),
                json!({"foo":"bar","child":{"grandchild":{}}}),
            ),
            (
                "ignoring unrecognised elements",
                json!({"foo":"bar"}),
                json!([{"op":"add","path":"/baz","value":"qux","xyz":123}]),
                json!({"foo":"bar","baz":"qux"}),
            ),
            (
                "escaping",
                json!({"/":9,"~1":10}),
                json!([{"op":"test","path":"/~01","value":10}]),
                json!({"/":9,"~1":10}),
            ),
            (
                "adding an array value",
                json!({"foo":["bar"]}),
                json!([{"op":"add","path":"/foo/-","value":["abc","def"]}]),
                json!({"foo":["bar",["abc","def"]]}),
            ),
        ];
        for (name, target, patch, wanted) in table {
            let mut got = target;
            apply(&mut got, &patch, &BOUNDS).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(got, wanted, "{name}");
        }
    }

    #[test]
    fn refused_patches_leave_the_object_alone_and_say_why() {
        let table = [
            (
                json!([{"op":"test","path":"/baz","value":"bar"}]),
                422,
                "testing value /baz failed: test failed",
            ),
            (
                json!([{"op":"add","path":"/a/b","value":1}]),
                422,
                "add operation does not apply: doc is missing path: \"/a/b\": missing value",
            ),
            (
                json!([{"op":"remove","path":"/nope"}]),
                422,
                "remove operation does not apply: doc is missing path: /nope: missing value",
            ),
            (
                json!([{"op":"add","path":"/n","value":1},{"op":"replace","path":"/nope","value":1}]),
                422,
                "replace operation does not apply: doc is missing path: /nope: missing value",
            ),
            (
                json!({"op":"add"}),
                400,
                "error decoding patch: json: cannot unmarshal object into Go value of type jsonpatch.Patch",
            ),
        ];
        for (patch, status, message) in table {
            let before = json!({"baz":"qux"});
            let mut got = before.clone();
            let error = apply(&mut got, &patch, &BOUNDS).unwrap_err();
            assert_eq!(
                (error.status(), error.to_string().as_str()),
                (status, message)
            );
            assert_eq!(got, before);
        }
    }

    #[test]
    fn a_patch_of_the_most_operations_is_taken_and_of_one_more_refused() {
        let operation = json!({"op":"add","path":"/a","value":1});
        let patch = |operations| Value::Array(vec![operation.clone(); operations]);
        let most = BOUNDS.operations;
        apply(&mut json!({}), &patch(most), &BOUNDS).unwrap();
        let error = apply(&mut json!({}), &patch(most + 1), &BOUNDS).unwrap_err();
        assert_eq!(error.status(), 413);
        assert_eq!(
            error.to_string(),
            "The allowed maximum operations in a JSON patch is 100, got 101"
        );
    }

    #[test]
    fn copies_of_what_was_copied_end_at_the_bound_of_bytes() {
        let copy = |at: u32| json!({"op":"copy","from":"/data","path":format!("/data/k{at}")});
        let patch: Value = (0..20).map(copy).collect();
        let before = json!({"data":{"a":"x".repeat(90)}});
        let mut got = before.clone();
        let error = apply(&mut got, &patch, &BOUNDS).unwrap_err();
        assert_eq!(error.status(), 422);
        assert!(
            error.to_string().starts_with(
                "Unable to complete the copy, the accumulated size increase of copy is"
            ),
            "{error}"
        );
        assert_eq!(got, before);
    }

    #[test]
    fn the_bound_of_copied_bytes_is_taken_whole_and_no_byte_more() {
        // A text of 98 characters takes 100 bytes with its quotation marks.
        let object = json!({"a":"x".repeat(98)});
        let copies = |count: usize| -> Value {
            (0..count)
                .map(|at| json!({"op":"copy","from":"/a","path":format!("/b{at}")}))
                .collect()
        };
        let most = BOUNDS.copied_bytes / 100;
        apply(&mut object.clone(), &copies(most), &BOUNDS).unwrap();
        assert!(apply(&mut object.clone(), &copies(most + 1), &BOUNDS).is_err());
    }

    #[test]
    fn copies_that_nest_the_last_into_itself_end_at_the_bound_of_depth() {
        let deep = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!([inner]));
        let levels = |of_value: usize| {
            let patch = json!([{"op":"add","path":"/a/b","value":deep(of_value)}]);
            apply(&mut json!({"a":{}}), &patch, &BOUNDS)
        };
        levels(BOUNDS.depth - 2).unwrap();
        assert_eq!(levels(BOUNDS.depth - 1).unwrap_err().status(), 422);

        let inner = ["a"; BOUNDS.depth / 2].join("/");
        let nested = (0..BOUNDS.depth / 2).fold(json!({}), |inner, _| json!({"a":inner}));
        let copy = json!({"op":"copy","from":"/a","path":format!("/{inner}/a")});
        let patch = Value::Array(vec![copy; 16]);
        let error = apply(&mut nested.clone(), &patch, &BOUNDS).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the patch nests the object deeper than 20 levels"
        );
    }

    #[test]
    fn insertions_into_a_long_list_end_at_the_bound_of_work() {
        let list = json!({"l":vec![0; 200]});
        let insertions = |at: &str, count: usize| {
            let path = format!("/l/{at}");
            Value::Array(vec![json!({"op":"add","path":path,"value":0}); count])
        };
        assert!(apply(&mut list.clone(), &insertions("0", 10), &BOUNDS).is_err());
        apply(&mut list.clone(), &insertions("-", 100), &BOUNDS).unwrap();
        let moves =
            json!([{"op":"move","from":"/l","path":"/m"},{"op":"move","from":"/m","path":"/l"}]);
        let many: Value = (0..20)
            .flat_map(|_| moves.as_array().unwrap().clone())
            .collect();
        assert!(apply(&mut list.clone(), &moves, &BOUNDS).is_ok());
        assert!(apply(&mut list.clone(), &many, &BOUNDS).is_err());
    }

    #[test]
    fn what_is_no_operation_is_malformed_and_named() {
        let table = [
            (json!([1]), "operation 0: op: must be a text"),
            (
                json!([{"op":"shout","path":""}]),
                "operation 0: op: must be add,",
            ),
            (
                json!([{"op":"add","path":"/a"}]),
                "operation 0: value: Required value",
            ),
            (
                json!([{"op":"remove","path":"a"}]),
                "operation 0: path: must be empty or begin",
            ),
            (
                json!([{"op":"move","path":"/a"}]),
                "operation 0: from: must be a text",
            ),
        ];
        for (patch, why) in table {
            let error = apply(&mut json!({}), &patch, &BOUNDS).unwrap_err();
            assert_eq!(error.status(), 400, "{patch}");
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    fn pointers() -> impl Strategy<Value = String> {
        proptest::collection::vec(prop_oneof!["[a-c]", "[0-3]", Just("-".to_owned())], 0..5)
            .prop_map(|steps| steps.iter().map(|step| format!("/{step}")).collect())
    }

    fn operations() -> impl Strategy<Value = Value> {
        let value = prop_oneof![
            Just(json!(1)),
            Just(json!({"a":{"b":[1]}})),
            Just(json!([[], "xxxxxxxxxxxxxxxxxxxxxxxx"])),
        ];
        let words = prop_oneof![
            Just("add"),
            Just("remove"),
            Just("replace"),
            Just("move"),
            Just("copy"),
            Just("test")
        ];
        (words, pointers(), pointers(), value).prop_map(
            |(op, path, from, value)| json!({"op":op,"path":path,"from":from,"value":value}),
        )
    }

    proptest! {
        #[test]
        fn no_patch_exceeds_the_bounds_or_panics(
            steps in proptest::collection::vec(operations(), 0..40),
        ) {
            let before = json!({"a":{"b":[1,2,{"c":"x"}]},"c":[]});
            let mut got = before.clone();
            let patch = Value::Array(steps);
            let done = apply(&mut got, &patch, &BOUNDS);
            let size = measure(&got);
            prop_assert!(size.depth <= BOUNDS.depth);
            let most = measure(&before).bytes + measure(&patch).bytes + BOUNDS.copied_bytes;
            // Besides its value, a copy adds its key or comma, which the length of the patch's path covers.
            prop_assert!(size.bytes <= most, "{} > {most}", size.bytes);
            if done.is_err() {
                prop_assert_eq!(got, before);
            }
        }
    }
}
