//! Errors of the REST API: problem details (RFC 9457) with a stable `code`.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use identity::IdentityError;
use oidc::OidcError;
use serde_json::json;

/// A refused request.
#[derive(Debug)]
pub struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    /// How many seconds to wait before a retry.
    retry_after: Option<u64>,
}

impl Problem {
    /// A problem with its stable code, for programs, and its text, for users.
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Problem {
            status,
            code,
            detail,
            retry_after: None,
        }
    }

    /// The request is not authenticated.
    pub fn unauthorized() -> Self {
        let detail = "sign in, or send a bearer token (`muster token create`)";
        Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
    }

    /// The caller is not permitted to do this.
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::FORBIDDEN, "forbidden", detail)
    }

    /// A field is invalid: its name, its value, the expected value.
    pub fn invalid(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail)
    }

    /// The text for users.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// How many seconds to wait before a retry, if a retry can succeed.
    pub fn retry_after(&self) -> Option<u64> {
        self.retry_after
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        self.status
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason().unwrap_or("error"),
            "status": self.status.as_u16(),
            "code": self.code,
            "detail": self.detail,
        });
        let kind = [(header::CONTENT_TYPE, "application/problem+json")];
        let mut response = (self.status, kind, body.to_string()).into_response();
        if let Some(seconds) = self.retry_after {
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl From<kube::Error> for Problem {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => {
                let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::BAD_GATEWAY);
                let stable = match code {
                    StatusCode::NOT_FOUND => "not-found",
                    StatusCode::FORBIDDEN => "forbidden",
                    StatusCode::CONFLICT => "conflict",
                    StatusCode::UNPROCESSABLE_ENTITY => "invalid",
                    _ => "refused",
                };
                Problem::new(code, stable, status.message)
            }
            other => Problem::new(StatusCode::BAD_GATEWAY, "unreachable", other.to_string()),
        }
    }
}

impl From<OidcError> for Problem {
    fn from(error: OidcError) -> Self {
        let (status, code) = match &error {
            error if error.is_of_provider() => (StatusCode::BAD_GATEWAY, "identity-provider"),
            OidcError::Entropy(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
            // The audit log records refusals with this status under every policy.
            _ => (StatusCode::FORBIDDEN, "sign-in-refused"),
        };
        Problem::new(status, code, error.to_string())
    }
}

impl From<IdentityError> for Problem {
    fn from(error: IdentityError) -> Self {
        let (status, code) = match &error {
            IdentityError::WrongPassword => (StatusCode::UNAUTHORIZED, "wrong-password"),
            IdentityError::WrongCode => (StatusCode::UNAUTHORIZED, "wrong-code"),
            IdentityError::TooManyAttempts { .. } => {
                (StatusCode::TOO_MANY_REQUESTS, "too-many-attempts")
            }
            IdentityError::TooManyCodes { .. } => {
                (StatusCode::TOO_MANY_REQUESTS, "too-many-attempts")
            }
            IdentityError::Busy { .. } | IdentityError::TooManyDeviceCodes { .. } => {
                (StatusCode::TOO_MANY_REQUESTS, "busy")
            }
            IdentityError::UserCodeUsed => (StatusCode::CONFLICT, "conflict"),
            // The audit log records refusals with this status under every policy.
            IdentityError::UserCodeOfAnother => (StatusCode::FORBIDDEN, "forbidden"),
            IdentityError::NoSuchUser { .. }
            | IdentityError::NoSuchToken { .. }
            | IdentityError::NoSuchSession { .. }
            | IdentityError::NoSuchUserCode
            | IdentityError::SignInOver
            | IdentityError::EnrolmentOver
            | IdentityError::DeadLink => (StatusCode::NOT_FOUND, "not-found"),
            IdentityError::UserExists { .. } => (StatusCode::CONFLICT, "exists"),
            IdentityError::NameOfAnother { .. } => (StatusCode::FORBIDDEN, "name-of-another"),
            IdentityError::LastAdministrator { .. }
            | IdentityError::TooManyUsers { .. }
            | IdentityError::Disabled { .. }
            | IdentityError::NoPassword { .. }
            | IdentityError::SecondFactorExists
            | IdentityError::NoSecondFactor
            | IdentityError::TokenReplaced { .. }
            | IdentityError::Changed { .. } => (StatusCode::CONFLICT, "conflict"),
            IdentityError::TooManyTokens { .. } => (StatusCode::CONFLICT, "too-many-tokens"),
            IdentityError::WeakPassword { .. }
            | IdentityError::BadName { .. }
            | IdentityError::BadField { .. }
            | IdentityError::LinkLifetime { .. }
            | IdentityError::TokenLabel { .. }
            | IdentityError::ClientName
            | IdentityError::LoginLifetime { .. }
            | IdentityError::TokenLifetime { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "invalid"),
            _ => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        };
        let retry_after = error.retry_after();
        Problem {
            retry_after,
            ..Problem::new(status, code, error.to_string())
        }
    }
}
