//! Owns the routes of the OpenAPI documents: their format and cache lifetime. The `schema` crate
//! builds the documents on each request: clients cache them, so the server does not.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::IntoResponse;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use resources::registry;
use schema::KindRoute;

use crate::request::Params;
use crate::respond;
use crate::server::ApiServer;
use crate::status::Failure;

const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

fn routes() -> Vec<KindRoute> {
    let route = |kind: &registry::Kind| {
        let status = kind.status.then_some("status");
        let scale = kind.scale.is_some().then_some("scale");
        let extra = kind.extra_subresources.iter().copied();
        KindRoute {
            group: kind.group.into(),
            version: kind.version.into(),
            kind: kind.kind.into(),
            plural: kind.plural.into(),
            namespaced: kind.namespaced,
            definition: kind.schema.into(),
            strategic: !kind.is_custom(),
            subresources: status
                .into_iter()
                .chain(scale)
                .chain(extra)
                .map(str::to_string)
                .collect(),
        }
    };
    registry::served().map(route).collect()
}

fn wants(headers: &HeaderMap, media: &str) -> bool {
    headers
        .get_all(header::ACCEPT)
        .iter()
        .any(|value| value.to_str().is_ok_and(|text| text.contains(media)))
}

/// `/openapi/v2`: protobuf for Go clients, which accept no other format, otherwise JSON.
pub(crate) async fn v2(State(server): State<ApiServer>, request: Request<Body>) -> Response<Body> {
    let schemas = &server.0.schemas;
    if !wants(request.headers(), V2_PROTOBUF) {
        return respond::json_bytes(Bytes::from(schemas.openapi_v2_json(&routes())));
    }
    let mut response = Response::new(Body::from(schemas.openapi_v2_protobuf(&routes())));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    );
    response
}

/// `/openapi/v3`: the list of documents.
pub(crate) async fn v3_index(State(server): State<ApiServer>) -> Response<Body> {
    respond::json(&server.0.schemas.openapi_v3_index(&routes()))
}

/// `/openapi/v3/apis/GROUP/VERSION`: one group's document. With the right hash it is immutable for
/// caches.
pub(crate) async fn v3(
    State(server): State<ApiServer>,
    Path(path): Path<String>,
    request: Request<Body>,
) -> Response<Body> {
    let routes = routes();
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, version) = match parts.as_slice() {
        ["api", version] => ("", *version),
        ["apis", group, version] => (*group, *version),
        _ => return Failure::no_such_resource().into_response(),
    };
    if !routes
        .iter()
        .any(|route| route.group == group && route.version == version)
    {
        return Failure::no_such_resource().into_response();
    }
    let schemas = &server.0.schemas;
    let hash = schemas.openapi_v3_hash(group, version, &routes);
    let params = match Params::parse(request.uri().query()) {
        Ok(params) => params,
        Err(failure) => return failure.into_response(),
    };
    let kept = match params.get("hash") {
        None => "no-cache, private",
        Some(asked) if asked == hash => "public, immutable, max-age=31536000",
        Some(_) => {
            let place = format!("/openapi/v3/{}?hash={hash}", path.trim_matches('/'));
            return (StatusCode::MOVED_PERMANENTLY, [(header::LOCATION, place)]).into_response();
        }
    };
    let mut response = respond::json_bytes(Bytes::from(
        schemas.openapi_v3_json(group, version, &routes),
    ));
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(kept));
    if let Ok(tag) = HeaderValue::try_from(format!("\"{hash}\"")) {
        headers.insert(header::ETAG, tag);
    }
    response
}
