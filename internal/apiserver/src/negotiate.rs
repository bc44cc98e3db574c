//! Owns the choice of a response's format from the Accept header: the object, a table, or only its
//! metadata, as JSON or YAML. Does not build any of them.

use http::{HeaderMap, header};

use crate::status::Failure;

/// The format of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseFormat {
    /// The representation of the object.
    pub view: ObjectView,
    /// True if the response is YAML.
    pub yaml: bool,
}

/// The representation of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectView {
    /// All of it.
    Object,
    /// A row with the kind's columns. The text is the Table's version.
    Table(&'static str),
    /// Its metadata. The text is the version of PartialObjectMetadata.
    Metadata(&'static str),
}

/// The formats of discovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discovery {
    /// One document for each group and version.
    Legacy,
    /// All groups in one document; the text is the requested version.
    Aggregated(&'static str),
}

/// The whole object as JSON: the default.
pub const PLAIN: ResponseFormat = ResponseFormat {
    view: ObjectView::Object,
    yaml: false,
};

const ACCEPTED: &[&str] = &["application/json", "application/yaml"];

struct Clause<'a> {
    media: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
}

impl Clause<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        self.parameters
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| *value)
    }
}

/// The clauses of an Accept header, ordered by preference.
fn clauses(headers: &HeaderMap) -> Vec<Clause<'_>> {
    let mut found: Vec<(f32, Clause<'_>)> = Vec::new();
    for value in headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
    {
        for clause in value
            .split(',')
            .map(str::trim)
            .filter(|clause| !clause.is_empty())
        {
            let mut parts = clause.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default();
            let parameters: Vec<_> = parts.filter_map(|part| part.split_once('=')).collect();
            let clause = Clause { media, parameters };
            let weight = clause
                .get("q")
                .and_then(|q| q.parse().ok())
                .unwrap_or(1.0_f32);
            found.push((weight, clause));
        }
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    found.into_iter().map(|(_, clause)| clause).collect()
}

fn yaml(media: &str) -> Option<bool> {
    match media {
        "*/*" | "application/*" | "application/json" => Some(false),
        "application/yaml" => Some(true),
        _ => None,
    }
}

/// Chooses the format of objects and lists; 406 if none of the requested formats is supported.
pub fn objects(headers: &HeaderMap) -> Result<ResponseFormat, Failure> {
    if !headers.contains_key(header::ACCEPT) {
        return Ok(PLAIN);
    }
    for clause in clauses(headers) {
        let Some(yaml) = yaml(clause.media) else {
            continue;
        };
        let meta_version = match (clause.get("g"), clause.get("v")) {
            (Some("meta.k8s.io"), Some("v1")) => Some("v1"),
            (Some("meta.k8s.io"), Some("v1beta1")) => Some("v1beta1"),
            _ => None,
        };
        let view = match (clause.get("as"), meta_version) {
            (None, _) => ObjectView::Object,
            (Some("Table"), Some(version)) => ObjectView::Table(version),
            (Some("PartialObjectMetadata" | "PartialObjectMetadataList"), Some(version)) => {
                ObjectView::Metadata(version)
            }
            _ => continue,
        };
        return Ok(ResponseFormat { view, yaml });
    }
    Err(Failure::not_acceptable(ACCEPTED))
}

/// Chooses the format of `/api` and `/apis`.
pub fn discovery(headers: &HeaderMap) -> Discovery {
    for clause in clauses(headers) {
        if clause.media != "application/json" {
            continue;
        }
        match (clause.get("as"), clause.get("g"), clause.get("v")) {
            (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2")) => {
                return Discovery::Aggregated("v2");
            }
            (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2beta1")) => {
                return Discovery::Aggregated("v2beta1");
            }
            (None, _, _) => return Discovery::Legacy,
            _ => {}
        }
    }
    Discovery::Legacy
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::headers;

    fn accept(value: &str) -> HeaderMap {
        headers(&[("accept", value)])
    }

    #[test]
    fn the_most_wanted_form_that_is_spoken_here_is_chosen() {
        let object = |yaml| ResponseFormat {
            view: ObjectView::Object,
            yaml,
        };
        let table = ResponseFormat {
            view: ObjectView::Table("v1"),
            yaml: false,
        };
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        let cases = [
            ("*/*", object(false)),
            ("application/json, */*", object(false)),
            (
                "application/vnd.kubernetes.protobuf,application/json",
                object(false),
            ),
            ("application/yaml", object(true)),
            (kubectl, table),
            (
                "application/json;as=Unheard;v=v1;g=meta.k8s.io,application/json",
                object(false),
            ),
            ("application/yaml;q=0.5,application/json", object(false)),
            (
                "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
                ResponseFormat {
                    view: ObjectView::Metadata("v1"),
                    yaml: false,
                },
            ),
        ];
        for (header, form) in cases {
            assert_eq!(objects(&accept(header)).unwrap(), form, "{header}");
        }
        assert_eq!(objects(&HeaderMap::new()).unwrap(), object(false));
        assert_eq!(
            objects(&accept("text/html")).unwrap_err().code().as_u16(),
            406
        );
    }

    #[test]
    fn aggregated_discovery_is_returned_on_request() {
        let asked =
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
        assert_eq!(discovery(&accept(asked)), Discovery::Aggregated("v2"));
        assert_eq!(discovery(&accept("application/json")), Discovery::Legacy);
        assert_eq!(discovery(&HeaderMap::new()), Discovery::Legacy);
    }
}
