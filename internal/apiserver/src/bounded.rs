//! Owns the size checks of decoded and patched values: after decoding, and before storing. The
//! bounds themselves are in `limits`.

use schema::size::{Size, measure};
use serde_json::Value;

use crate::limits::{
    MOST_DEPTH, MOST_EXPANDED_BYTES, MOST_OBJECT_DEPTH, MOST_STORED_BYTES, MOST_VALUES,
};
use crate::status::Failure;

/// Refuses a decoded body beyond the bounds, for decoders that do not count.
pub(crate) fn decoded(value: &Value) -> Result<(), Failure> {
    let size = measure(value);
    if size.depth > MOST_DEPTH {
        return Err(Failure::bad_request(format!(
            "the request's body nests deeper than {MOST_DEPTH} levels"
        )));
    }
    if size.values > MOST_VALUES || size.bytes > MOST_EXPANDED_BYTES {
        return Err(Failure::too_large_because(&format!(
            "the body has more than {MOST_VALUES} keys and values, or {MOST_EXPANDED_BYTES} bytes"
        )));
    }
    Ok(())
}

/// Refuses an object that is too large to be stored, before definitions are compared with it. Its
/// `managedFields` do not count: the server writes them, and their bytes count when the object is
/// written.
pub(crate) fn object(object: &Value) -> Result<(), Failure> {
    let mut size = Size::default();
    for (key, member) in object.as_object().into_iter().flatten() {
        match member {
            Value::Object(metadata) if key == "metadata" => {
                let own = metadata.iter().filter(|(key, _)| *key != "managedFields");
                for (_, field) in own {
                    let of_field = measure(field);
                    size = size.combined(Size {
                        depth: of_field.depth + 1,
                        ..of_field
                    });
                }
            }
            member => size = size.combined(measure(member)),
        }
    }
    if size.depth + 1 > MOST_OBJECT_DEPTH {
        return Err(Failure::unprocessable(format!(
            "the object nests deeper than {MOST_OBJECT_DEPTH} levels"
        )));
    }
    stored_bytes(size.bytes)
}

/// Refuses an object with more bytes than the maximum for stored objects.
pub(crate) fn stored_bytes(bytes: usize) -> Result<(), Failure> {
    if bytes > MOST_STORED_BYTES {
        return Err(Failure::too_large_because(&format!(
            "the object would take at least {bytes} bytes as stored; the limit is {MOST_STORED_BYTES}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn deep(levels: usize) -> Value {
        (0..levels).fold(json!(1), |inner, _| json!([inner]))
    }

    #[test]
    fn an_object_is_taken_to_its_bound_of_depth_without_its_managers() {
        let with =
            |levels: usize| json!({"spec": deep(levels), "metadata": {"managedFields": deep(110)}});
        object(&with(MOST_OBJECT_DEPTH - 1)).unwrap();
        assert_eq!(
            object(&with(MOST_OBJECT_DEPTH))
                .unwrap_err()
                .code()
                .as_u16(),
            422
        );
        let in_metadata = |levels: usize| json!({"metadata": {"labels": deep(levels)}});
        object(&in_metadata(MOST_OBJECT_DEPTH - 2)).unwrap();
        assert!(object(&in_metadata(MOST_OBJECT_DEPTH - 1)).is_err());
    }

    #[test]
    fn an_object_is_taken_to_its_bound_of_bytes() {
        let with = |bytes: usize| json!({"data": "x".repeat(bytes)});
        object(&with(MOST_STORED_BYTES - 2)).unwrap();
        assert_eq!(
            object(&with(MOST_STORED_BYTES - 1))
                .unwrap_err()
                .code()
                .as_u16(),
            413
        );
        stored_bytes(MOST_STORED_BYTES).unwrap();
        assert!(stored_bytes(MOST_STORED_BYTES + 1).is_err());
    }

    #[test]
    fn a_decoded_body_is_taken_to_its_bounds() {
        decoded(&deep(MOST_DEPTH)).unwrap();
        assert_eq!(
            decoded(&deep(MOST_DEPTH + 1)).unwrap_err().code().as_u16(),
            400
        );
        decoded(&Value::Array(vec![json!(1); MOST_VALUES - 1])).unwrap();
        let refused = decoded(&Value::Array(vec![json!(1); MOST_VALUES])).unwrap_err();
        assert_eq!(refused.code().as_u16(), 413);
    }
}
