//! Calls to the platform's REST API, `/api/v1/...`, which serves data that are not resources.

use anyhow::{Context, Result};
use serde_json::Value;

use super::ServerConnection;

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
