//! Owns the headers of requests in unit tests. Used by the crates that read requests.

use http::HeaderMap;

/// Headers with these lower-case names and values; a name may repeat.
pub(crate) fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        let value = value.parse().expect("the value of a header");
        headers.append(*name, value);
    }
    headers
}
