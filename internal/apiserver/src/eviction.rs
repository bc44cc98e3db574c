//! Owns `POST pods/NAME/eviction`: a deletion that leaves the reason on the pod.

use axum::body::Body;
use http::{Response, StatusCode};
use serde_json::json;

use crate::call::Call;
use crate::delete_options::DeleteOptions;
use crate::rewrite::{Next, rewrite};
use crate::status::Failure;
use crate::{decode, delete, object, request, respond};

pub(crate) async fn create(call: &Call, body: Body) -> Result<Response<Body>, Failure> {
    let format = request::object_format(&call.headers)?;
    let sent = decode::object(&request::read(body).await?, format)?.value;
    let name = object::name(&sent);
    if !name.is_empty() && name != call.object_name() {
        return Err(Failure::bad_request(
            "name in URL does not match name in Eviction object",
        ));
    }
    let options = DeleteOptions::of_value(&sent["deleteOptions"])?;
    let dry = call.dry(options.dry_run);
    let now = object::seconds(call.server.now());
    rewrite(&dry, |live| {
        if object::deleting(live) || matches!(live["status"]["phase"].as_str(), Some("Succeeded" | "Failed")) {
            return Ok(Next::Keep);
        }
        let mut next = live.clone();
        let condition = json!({
            "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting",
        });
        object::set_condition(&mut next, "DisruptionTarget", condition, &now);
        Ok(if next == *live { Next::Keep } else { Next::Put(Box::new(next)) })
    })
    .await?;
    delete::delete_one(&dry, call.object_name(), call.key(), &options).await?;
    let mut response = respond::json(&json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201,
    }));
    *response.status_mut() = StatusCode::CREATED;
    Ok(response)
}
