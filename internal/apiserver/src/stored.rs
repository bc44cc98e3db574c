//! Owns reading parts of a stored object in place, without decoding it: its metadata, and
//! everything except its field managers. It relies on the output of `object` (JSON without white
//! space), and contains no kinds.

/// The bytes of an object's `metadata`.
pub(crate) fn metadata(stored: &[u8]) -> Option<&[u8]> {
    let start = member(stored, 0, "metadata")?.value;
    Some(&stored[start..after_value(stored, start)?])
}

/// The object without `metadata.managedFields`, as the part before and the part after them. They
/// are most of a small object's members, and readers do not need them.
pub(crate) fn without_managers(stored: &[u8]) -> [&[u8]; 2] {
    let metadata = member(stored, 0, "metadata");
    metadata
        .and_then(|metadata| cut(stored, metadata.value, "managedFields"))
        .unwrap_or([stored, &[]])
}

/// A `metadata` without `managedFields`.
pub(crate) fn metadata_without_managers(metadata: &[u8]) -> [&[u8]; 2] {
    cut(metadata, 0, "managedFields").unwrap_or([metadata, &[]])
}

/// Removes a member, with a comma, from the object that begins at `object`.
fn cut<'a>(bytes: &'a [u8], object: usize, name: &str) -> Option<[&'a [u8]; 2]> {
    let MemberPosition { key, value } = member(bytes, object, name)?;
    let end = after_value(bytes, value)?;
    Some(if bytes[key - 1] == b',' {
        [&bytes[..key - 1], &bytes[end..]]
    } else if bytes.get(end) == Some(&b',') {
        [&bytes[..key], &bytes[end + 1..]]
    } else {
        [&bytes[..key], &bytes[end..]]
    })
}

/// The positions of a member's key and value.
struct MemberPosition {
    key: usize,
    value: usize,
}

/// A member of the object that begins at `object`; none if the member is absent or this is not an
/// object.
fn member(bytes: &[u8], object: usize, name: &str) -> Option<MemberPosition> {
    if bytes.get(object) != Some(&b'{') {
        return None;
    }
    let mut key = object + 1;
    while bytes.get(key) == Some(&b'"') {
        let key_end = after_string(bytes, key)?;
        if bytes.get(key_end) != Some(&b':') {
            return None;
        }
        let value = key_end + 1;
        if &bytes[key + 1..key_end - 1] == name.as_bytes() {
            return Some(MemberPosition { key, value });
        }
        let end = after_value(bytes, value)?;
        if bytes.get(end) != Some(&b',') {
            return None;
        }
        key = end + 1;
    }
    None
}

/// The position after the value that begins at `at`.
fn after_value(bytes: &[u8], mut at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    loop {
        match *bytes.get(at)? {
            b'"' => at = after_string(bytes, at)?,
            b'{' | b'[' => {
                depth += 1;
                at += 1;
                continue;
            }
            b'}' | b']' => {
                depth = depth.checked_sub(1)?;
                at += 1;
            }
            b',' | b':' if depth > 0 => {
                at += 1;
                continue;
            }
            b',' | b':' => return None,
            _ => {
                let rest = &bytes[at..];
                at += rest
                    .iter()
                    .position(|byte| matches!(byte, b',' | b'}' | b']'))?;
            }
        }
        if depth == 0 {
            return Some(at);
        }
    }
}

/// The position after the text whose opening quotation mark is at `at`.
fn after_string(bytes: &[u8], at: usize) -> Option<usize> {
    let mut at = at + 1;
    loop {
        let rest = bytes.get(at..)?;
        at += rest.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
        if bytes[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(parts: [&[u8]; 2]) -> Value {
        serde_json::from_slice(&parts.concat()).unwrap()
    }

    #[test]
    fn field_managers_are_left_out_wherever_they_stand() {
        let managers = r#""managedFields":[{"fieldsV1":{"f:a]\"":{"k:{\"name\":\"x\"}":{}}}}]"#;
        let cases = [
            (format!(r#"{{{managers}}}"#), json!({})),
            (
                format!(r#"{{"a":"}}\\\"",{managers}}}"#),
                json!({"a": "}\\\""}),
            ),
            (format!(r#"{{{managers},"b":1}}"#), json!({"b": 1})),
            (
                format!(r#"{{"a":[1,[]],{managers},"b":{{}}}}"#),
                json!({"a": [1, []], "b": {}}),
            ),
            (
                r#"{"a":null,"b":-1.5e3,"c":true}"#.to_string(),
                json!({"a": null, "b": -1.5e3, "c": true}),
            ),
        ];
        for (metadata_text, left) in cases {
            let stored = format!(
                r#"{{"apiVersion":"v1","metadata":{metadata_text},"spec":{{"managedFields":[0]}}}}"#
            );
            let expected =
                json!({"apiVersion": "v1", "metadata": left, "spec": {"managedFields": [0]}});
            assert_eq!(
                read(without_managers(stored.as_bytes())),
                expected,
                "{stored}"
            );
            let own = metadata(stored.as_bytes()).unwrap();
            assert_eq!(own, metadata_text.as_bytes());
            assert_eq!(read(metadata_without_managers(own)), left, "{stored}");
        }
    }

    #[test]
    fn what_is_no_object_or_has_no_metadata_stays_whole() {
        for text in [
            "",
            "[]",
            "{}",
            "{\"metadata\":",
            "{\"metadata\":\"",
            "{\"a\":1}",
            "{\"a\\",
            "{,",
        ] {
            assert_eq!(without_managers(text.as_bytes()).concat(), text.as_bytes());
            assert_eq!(metadata(text.as_bytes()), None, "{text}");
        }
        assert_eq!(metadata(b"{\"metadata\":1}"), Some(&b"1"[..]));
        assert_eq!(
            without_managers(b"{\"metadata\":1}").concat(),
            b"{\"metadata\":1}"
        );
    }
}
