//! JSON patch, RFC 6902, with the errors of kube-apiserver around the json-patch crate. It must
//! not know any schema.

use ::json_patch::{Patch, PatchErrorKind, PatchOperation};
use serde_json::Value;

use crate::PatchError;

/// The longest patch, as in kube-apiserver.
pub const MOST_OPERATIONS: usize = 10_000;

/// Applies the operations in order; `target` stays as it was when one fails.
///
/// # Errors
/// [`PatchError::Malformed`] when `patch` is no JSON patch, [`PatchError::Unprocessable`] when
/// an operation doesn't fit the object (a path that isn't there, a test that fails).
pub fn apply(target: &mut Value, patch: &Value) -> Result<(), PatchError> {
    let Some(operations) = patch.as_array() else {
        return Err(PatchError::Malformed(
            "error decoding patch: json: cannot unmarshal object into Go value of type jsonpatch.Patch"
                .to_owned(),
        ));
    };
    if operations.len() > MOST_OPERATIONS {
        return Err(PatchError::Malformed(format!(
            "The allowed maximum operations in a JSON patch is {MOST_OPERATIONS}, got {}",
            operations.len()
        )));
    }
    let parsed: Patch = serde_json::from_value(patch.clone())
        .map_err(|error| PatchError::Malformed(format!("error decoding patch: {error}")))?;
    ::json_patch::patch(target, &parsed).map_err(|error| {
        let operation = parsed.0.get(error.operation);
        PatchError::Unprocessable(worded(operation, &error.kind))
    })
}

/// What evanphx/json-patch says, which kube-apiserver passes on.
fn worded(operation: Option<&PatchOperation>, kind: &PatchErrorKind) -> String {
    let path = operation.map_or_else(String::new, |op| op.path().to_string());
    match (kind, operation) {
        (PatchErrorKind::TestFailed, _) => format!("testing value {path} failed: test failed"),
        (PatchErrorKind::InvalidFromPointer, Some(PatchOperation::Move(op))) => {
            format!(
                "move operation does not apply: doc is missing from path: {}: missing value",
                op.from
            )
        }
        (PatchErrorKind::InvalidFromPointer, Some(PatchOperation::Copy(op))) => {
            format!(
                "copy operation does not apply: doc is missing from path: {}: missing value",
                op.from
            )
        }
        (_, Some(PatchOperation::Remove(_))) => {
            format!("remove operation does not apply: doc is missing path: {path}: missing value")
        }
        (_, Some(PatchOperation::Replace(_))) => {
            format!("replace operation does not apply: doc is missing path: {path}: missing value")
        }
        (_, Some(PatchOperation::Add(_))) => {
            format!("add operation does not apply: doc is missing path: \"{path}\": missing value")
        }
        (kind, _) => format!("{kind}: {path}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
            apply(&mut got, &patch).unwrap_or_else(|error| panic!("{name}: {error}"));
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
            let error = apply(&mut got, &patch).unwrap_err();
            assert_eq!(
                (error.status(), error.to_string().as_str()),
                (status, message)
            );
            assert_eq!(got, before);
        }
    }

    #[test]
    fn a_patch_of_too_many_operations_is_refused() {
        let operation = json!({"op":"add","path":"/a","value":1});
        let patch = Value::Array(vec![operation; MOST_OPERATIONS + 1]);
        assert!(apply(&mut json!({}), &patch).is_err());
    }
}
