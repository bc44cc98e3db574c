//! Why a request to a program in a pod is refused: a status and a text, which the API answers as Kubernetes' `Status`.

use axum::http::{Response, StatusCode};
use axum::response::IntoResponse as _;
use serde_json::json;

/// The HTTP status, and a text for the reader of the answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct WebRefusal {
    /// The HTTP status.
    pub status: StatusCode,
    /// The problem and its remedy.
    pub message: String,
}

impl WebRefusal {
    fn new(status: StatusCode, message: impl Into<String>) -> WebRefusal {
        WebRefusal {
            status,
            message: message.into(),
        }
    }

    /// 400: the request names something in an invalid form.
    pub fn invalid(message: impl Into<String>) -> WebRefusal {
        WebRefusal::new(StatusCode::BAD_REQUEST, message)
    }

    /// 403.
    pub fn forbidden(message: impl Into<String>) -> WebRefusal {
        WebRefusal::new(StatusCode::FORBIDDEN, message)
    }

    /// 404.
    pub fn not_found(message: impl Into<String>) -> WebRefusal {
        WebRefusal::new(StatusCode::NOT_FOUND, message)
    }

    /// 405.
    pub fn no_such_method(message: impl Into<String>) -> WebRefusal {
        WebRefusal::new(StatusCode::METHOD_NOT_ALLOWED, message)
    }

    /// 409: the pod is another one than the opened one.
    pub fn replaced(message: impl Into<String>) -> WebRefusal {
        WebRefusal::new(StatusCode::CONFLICT, message)
    }

    /// 429.
    pub fn too_many(message: impl Into<String>) -> WebRefusal {
        WebRefusal::new(StatusCode::TOO_MANY_REQUESTS, message)
    }

    /// 502: the program broke the connection, or takes none.
    pub fn broken(message: impl Into<String>) -> WebRefusal {
        WebRefusal::new(StatusCode::BAD_GATEWAY, message)
    }

    /// 503: the pod cannot be reached now.
    pub fn unavailable(message: impl Into<String>) -> WebRefusal {
        WebRefusal::new(StatusCode::SERVICE_UNAVAILABLE, message)
    }

    /// 504: the program did not answer in time.
    pub fn silent(message: impl Into<String>) -> WebRefusal {
        WebRefusal::new(StatusCode::GATEWAY_TIMEOUT, message)
    }

    /// The machine-readable reason, as Kubernetes names it.
    fn reason(&self) -> &'static str {
        match self.status {
            StatusCode::BAD_REQUEST => "BadRequest",
            StatusCode::FORBIDDEN => "Forbidden",
            StatusCode::NOT_FOUND => "NotFound",
            StatusCode::METHOD_NOT_ALLOWED => "MethodNotAllowed",
            StatusCode::CONFLICT => "Conflict",
            StatusCode::TOO_MANY_REQUESTS => "TooManyRequests",
            StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailable",
            StatusCode::GATEWAY_TIMEOUT => "Timeout",
            _ => "InternalError",
        }
    }

    /// The API's answer.
    pub fn into_status(self) -> Response<axum::body::Body> {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason(), "details": {}, "code": self.status.as_u16(),
        });
        (self.status, axum::Json(status)).into_response()
    }
}
