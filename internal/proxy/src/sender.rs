//! Who sends a request, as the browser reports it. Hosts of ports may share a site (`a.proxy.example.org` and
//! `b.proxy.example.org` do), so that `SameSite` alone does not keep the cookie of one from requests of the other's
//! pages. Pure.

use axum::http::{HeaderMap, HeaderName, Method, header};

const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const DESTINATION: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// The sender of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// A page of the same origin, the user (a bookmark, the address bar), or a program that is no browser.
    Own,
    /// A page of another origin, whose user follows a link to a page.
    ForeignLink,
    /// A page of another origin: a script, a form, a frame, an image.
    Foreign,
}

fn word(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// The sender of a request for this host, which has the port if it is not the scheme's own.
pub fn of(method: &Method, headers: &HeaderMap, authority: &str) -> Sender {
    let origin = headers.get(header::ORIGIN).map(|origin| {
        let origin = origin.to_str().unwrap_or_default();
        let host = origin.split_once("://").map(|(_, host)| host);
        host.is_some_and(|host| host.eq_ignore_ascii_case(authority))
    });
    let own = match word(headers, SITE) {
        Some("same-origin") => origin.unwrap_or(true),
        // The user, who sends no form from the address bar.
        Some("none") => origin.unwrap_or(true),
        Some(_) => false,
        // An older browser, or none.
        None => origin.unwrap_or(true),
    };
    if own {
        return Sender::Own;
    }
    let link = *method == Method::GET
        && word(headers, MODE) == Some("navigate")
        && word(headers, DESTINATION) == Some("document");
    if link {
        Sender::ForeignLink
    } else {
        Sender::Foreign
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sender(method: Method, pairs: &[(&'static str, &str)]) -> Sender {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.insert(*name, value.parse().unwrap());
        }
        of(&method, &headers, "a.proxy.example:8443")
    }

    #[test]
    fn only_the_own_pages_the_user_and_programs_are_the_own_sender() {
        let own = ("origin", "https://a.proxy.example:8443");
        let other = ("origin", "https://b.proxy.example:8443");
        let site = |value| ("sec-fetch-site", value);
        for (method, headers, expected) in [
            (Method::GET, vec![], Sender::Own),
            (Method::GET, vec![site("none")], Sender::Own),
            (Method::POST, vec![site("same-origin"), own], Sender::Own),
            (Method::POST, vec![own], Sender::Own),
            (Method::POST, vec![other], Sender::Foreign),
            (Method::POST, vec![("origin", "null")], Sender::Foreign),
            (Method::GET, vec![site("same-site")], Sender::Foreign),
            (Method::GET, vec![site("cross-site")], Sender::Foreign),
            // A WebSocket of another port's page.
            (Method::GET, vec![other], Sender::Foreign),
            (
                Method::GET,
                vec![site("same-origin"), other],
                Sender::Foreign,
            ),
            (
                Method::GET,
                vec![
                    site("same-site"),
                    ("sec-fetch-mode", "navigate"),
                    ("sec-fetch-dest", "document"),
                ],
                Sender::ForeignLink,
            ),
            (
                Method::GET,
                vec![
                    site("same-site"),
                    ("sec-fetch-mode", "navigate"),
                    ("sec-fetch-dest", "iframe"),
                ],
                Sender::Foreign,
            ),
            (
                Method::POST,
                vec![
                    site("same-site"),
                    ("sec-fetch-mode", "navigate"),
                    ("sec-fetch-dest", "document"),
                ],
                Sender::Foreign,
            ),
        ] {
            assert_eq!(
                sender(method.clone(), &headers),
                expected,
                "{method} {headers:?}"
            );
        }
    }
}
