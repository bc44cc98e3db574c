//! Owns the successful responses: an object in the requested format, warnings, plain JSON.

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use serde_json::Value;

use crate::call::Call;
use crate::limits::{MOST_WARNING_BYTES, MOST_WARNINGS, quoted};
use crate::negotiate::ObjectView;
use crate::status::Failure;
use crate::table;

const WARNING: HeaderName = header::WARNING;

/// The result of a write.
pub(crate) struct WriteResult {
    /// 200 or 201.
    pub(crate) code: StatusCode,
    /// The object's bytes.
    pub(crate) bytes: Bytes,
    /// Warnings for the client.
    pub(crate) warnings: Vec<String>,
}

/// Responds with one object.
pub(crate) fn written(call: &Call, written: WriteResult) -> Result<Response<Body>, Failure> {
    let mut response = one(call, written.bytes)?;
    *response.status_mut() = written.code;
    warn(&mut response, &written.warnings);
    Ok(response)
}

/// Responds with one stored object, in the requested format.
pub(crate) fn one(call: &Call, bytes: Bytes) -> Result<Response<Body>, Failure> {
    match call.form.view {
        ObjectView::Object if !call.form.yaml => Ok(json_bytes(bytes)),
        ObjectView::Object => value(call, &read(&bytes)?),
        ObjectView::Table(version) => value(call, &table::of_one(call, version, &read(&bytes)?)?),
        ObjectView::Metadata(version) => value(call, &table::metadata_of(version, &read(&bytes)?)),
    }
}

/// Responds with a value, as JSON or YAML.
pub(crate) fn value(call: &Call, value: &Value) -> Result<Response<Body>, Failure> {
    if !call.form.yaml {
        return Ok(json(value));
    }
    let text = serde_norway::to_string(value).map_err(Failure::internal)?;
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/yaml"),
    );
    Ok(response)
}

/// Responds with a value as JSON.
pub(crate) fn json(value: &Value) -> Response<Body> {
    json_bytes(Bytes::from(value.to_string()))
}

/// Responds with JSON text.
pub(crate) fn json_bytes(bytes: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::from(bytes));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}

/// Responds with JSON text that is produced while it is sent.
pub(crate) fn json_stream(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}

/// Adds `Warning: 299` headers within the bounds, and one with the number of omitted warnings.
pub(crate) fn warn(response: &mut Response<Body>, warnings: &[String]) {
    let mut bytes = 0;
    for (at, text) in warnings.iter().enumerate() {
        let text = quoted(text);
        bytes += text.len();
        // The last header is reserved for the number of omitted warnings.
        let last = at + 1 == MOST_WARNINGS && warnings.len() > MOST_WARNINGS;
        if last || bytes > MOST_WARNING_BYTES {
            let more = warnings.len() - at;
            return add_warning(response, &format!("{more} more warnings are not shown"));
        }
        add_warning(response, &text);
    }
}

fn add_warning(response: &mut Response<Body>, text: &str) {
    let plain: String = text.chars().filter(|c| !c.is_control()).collect();
    let escaped = plain.replace('\\', "\\\\").replace('"', "\\\"");
    if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{escaped}\"").as_bytes()) {
        response.headers_mut().append(WARNING, value);
    }
}

fn read(bytes: &Bytes) -> Result<Value, Failure> {
    serde_json::from_slice(bytes).map_err(Failure::internal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warned(warnings: &[String]) -> Vec<String> {
        let mut response = Response::new(Body::empty());
        warn(&mut response, warnings);
        let headers = response.headers().get_all(WARNING);
        headers
            .iter()
            .map(|value| String::from_utf8(value.as_bytes().to_vec()).unwrap())
            .collect()
    }

    #[test]
    fn warnings_are_given_up_to_their_bounds_and_the_rest_counted() {
        let short = |count: usize| vec!["w".to_owned(); count];
        assert_eq!(
            warned(&short(MOST_WARNINGS)),
            vec!["299 - \"w\""; MOST_WARNINGS]
        );
        let more = warned(&short(MOST_WARNINGS + 1));
        assert_eq!(more.len(), MOST_WARNINGS);
        assert_eq!(
            more[MOST_WARNINGS - 1],
            "299 - \"2 more warnings are not shown\""
        );
        let long = vec!["x".repeat(1000); 10];
        let some = warned(&long);
        assert_eq!(some.len(), 5);
        assert_eq!(some[4], "299 - \"6 more warnings are not shown\"");
        assert_eq!(warned(&["a\"b\\".to_owned()]), ["299 - \"a\\\"b\\\\\""]);
    }
}
