//! Answers of the server itself, at its own address and at ports' hosts: texts, redirects, and pages without scripts.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};

/// What an answer of the server itself may do in a browser.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; form-action 'none'; base-uri 'none'";

fn protected(mut answer: Response) -> Response {
    let headers = answer.headers_mut();
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}

/// A text of the server itself.
pub fn text(status: StatusCode, words: &str) -> Response {
    protected((status, format!("{words}\n")).into_response())
}

/// 303 to this address.
pub fn redirect(to: &str) -> Response {
    let Ok(location) = HeaderValue::from_str(to) else {
        return text(
            StatusCode::BAD_REQUEST,
            "the address has characters that no header can have",
        );
    };
    let headers = [
        (header::LOCATION, location),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    protected((StatusCode::SEE_OTHER, headers).into_response())
}

/// A page of the server itself; `head` and `body` are HTML.
pub fn document(status: StatusCode, title: &str, head: &str, body: &str) -> Response {
    let html = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>{head}</head>\
         <body>{body}</body></html>"
    );
    protected((status, axum::response::Html(html)).into_response())
}

/// A text in HTML, also in an attribute.
pub fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            other => html.push(other),
        }
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_in_a_page_is_no_markup() {
        assert_eq!(escaped("<a href=\"'&"), "&lt;a href=&quot;&#39;&amp;");
    }
}
