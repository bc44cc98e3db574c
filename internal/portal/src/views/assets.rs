//! The files that pages load, embedded in the binary.

use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

/// Serves one of them.
pub async fn asset(Path(file): Path<String>) -> Response {
    let (kind, text) = match file.as_str() {
        "muster.css" => (
            "text/css; charset=utf-8",
            include_str!("../../../../web/assets/muster.css"),
        ),
        "muster.js" => (
            "text/javascript; charset=utf-8",
            include_str!("../../../../web/assets/muster.js"),
        ),
        "palette.js" => (
            "text/javascript; charset=utf-8",
            include_str!("../../../../web/assets/palette.js"),
        ),
        "icon.svg" => (
            "image/svg+xml",
            include_str!("../../../../web/assets/icon.svg"),
        ),
        _ => return (StatusCode::NOT_FOUND, "the server has no such file").into_response(),
    };
    // A new binary may contain new files, so browsers revalidate each time.
    (
        [
            (header::CONTENT_TYPE, kind),
            (header::CACHE_CONTROL, "no-cache"),
        ],
        text,
    )
        .into_response()
}
