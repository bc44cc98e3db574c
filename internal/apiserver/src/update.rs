//! Owns PUT: a whole object, or its whole status, replaces the stored one.

use axum::body::Body;
use http::Response;

use crate::call::Call;
use crate::object::ObjectPart;
use crate::prepare::{self, Tracking};
use crate::rewrite::rewrite;
use crate::status::Failure;
use crate::{decode, request, respond};

pub(crate) async fn update(
    call: &Call,
    body: Body,
    part: ObjectPart,
) -> Result<Response<Body>, Failure> {
    let format = request::object_format(&call.headers)?;
    let bytes = request::read(body).await?;
    let sent = decode::object(&bytes, format)?;
    let mut warnings = Vec::new();
    let rewritten = rewrite(call, |live| {
        let wanted = sent.value.clone();
        prepare::change(
            call,
            part,
            Tracking::Update,
            live,
            wanted,
            &sent.duplicates,
            &mut warnings,
        )
    })
    .await?;
    respond::written(call, rewritten.with(warnings))
}
