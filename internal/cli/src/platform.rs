//! Calls to the platform's REST API, `/api/v1/...`, which serves data that are not resources.

use anyhow::{Context, Result};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::connection::ServerConnection;

impl ServerConnection {
    /// Sends a GET and returns the JSON response.
    pub async fn ask(&self, path: &str) -> Result<Value> {
        self.call("GET", path, &Value::Null).await
    }

    /// Sends any method with a JSON body (no body if null) and returns the JSON response, if any.
    pub async fn call(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let bytes = if body.is_null() {
            Vec::new()
        } else {
            serde_json::to_vec(body)?
        };
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json")
            .header("accept", "application/json")
            .body(bytes)
            .context("the request could not be made")?;
        let text = self.client.request_text(request).await?;
        if text.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_str(&text).context("the server's answer is not JSON")
    }
}

/// The characters that need no encoding in a path segment or a query value: RFC 3986's unreserved characters.
const COMPONENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Percent-encodes a path segment or a query value.
pub fn escape(text: &str) -> String {
    utf8_percent_encode(text, COMPONENT).to_string()
}
