//! Owns serving a kind's objects under a second version: they are stored under one version, and a
//! response to a request for the other version has them under that one. Only `apiVersion` differs.

use axum::body::Body;
use bytes::Bytes;
use futures::StreamExt as _;
use http::{Response, header};
use resources::registry::Kind;

/// The response with its objects under the requested version. Every piece of a body contains whole
/// objects.
pub(crate) fn shown(kind: &'static Kind, response: Response<Body>) -> Response<Body> {
    if kind.stored.is_none() {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    parts.headers.remove(header::CONTENT_LENGTH);
    let pieces = body.into_data_stream();
    let renamed = pieces.map(move |piece| piece.map(|piece| renamed(kind, &piece)));
    Response::from_parts(parts, Body::from_stream(renamed))
}

/// An object begins with its version and kind, in every format: nothing inside it is changed.
fn renamed(kind: &Kind, piece: &[u8]) -> Bytes {
    let Ok(text) = std::str::from_utf8(piece) else {
        return Bytes::copy_from_slice(piece);
    };
    let (stored, asked, name) = (kind.stored_api_version(), kind.api_version(), kind.kind);
    let json = |version: &str| format!("{{\"apiVersion\":\"{version}\",\"kind\":\"{name}\"");
    let yaml = |version: &str| format!("apiVersion: {version}\nkind: {name}\n");
    let item = |version: &str| format!("- apiVersion: {version}\n  kind: {name}\n");
    let mut text = text.replace(&json(&stored), &json(&asked));
    if text.starts_with("apiVersion: ") {
        text = text
            .replacen(&yaml(&stored), &yaml(&asked), 1)
            .replace(&item(&stored), &item(&asked));
    }
    Bytes::from(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_renamed_and_what_is_in_them_is_not() {
        let kind = resources::registry::find("batch.volcano.sh", "v1beta1", "jobs").unwrap();
        let stored = r#"{"apiVersion":"batch.volcano.sh/v1alpha1","kind":"Job","metadata":{"managedFields":[{"apiVersion":"batch.volcano.sh/v1alpha1","fieldsType":"FieldsV1"}],"annotations":{"last":"{\"apiVersion\":\"batch.volcano.sh/v1alpha1\",\"kind\":\"Job\"}"}}}"#;
        let shown = renamed(kind, stored.as_bytes());
        let shown: serde_json::Value = serde_json::from_slice(&shown).unwrap();
        assert_eq!(shown["apiVersion"], "batch.volcano.sh/v1beta1");
        let meta = &shown["metadata"];
        assert_eq!(
            meta["managedFields"][0]["apiVersion"],
            "batch.volcano.sh/v1alpha1"
        );
        let last = meta["annotations"]["last"].as_str().unwrap();
        assert!(last.contains("v1alpha1"), "{last}");
        let yaml = "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {}\n";
        let shown = renamed(kind, yaml.as_bytes());
        assert!(shown.starts_with(b"apiVersion: batch.volcano.sh/v1beta1\n"));
    }
}
