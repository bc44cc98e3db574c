//! Owns reading a request: query parameters and bodies. Does not interpret parameters.

use std::str::FromStr;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};

use crate::limits::{MOST_BODY_BYTES, MOST_PARAMETERS, MOST_QUERY_BYTES};
use crate::path::decode;
use crate::status::Failure;

/// The query string, decoded.
#[derive(Debug, Clone, Default)]
pub struct Params(Vec<(String, String)>);

impl Params {
    /// Parses a query string; pairs keep their order, and the first of a name counts. Refuses a
    /// query string beyond the bounds on length and parameters.
    pub fn parse(query: Option<&str>) -> Result<Self, Failure> {
        let text = query.unwrap_or_default();
        if text.len() > MOST_QUERY_BYTES {
            return Err(Failure::query_too_long(MOST_QUERY_BYTES));
        }
        if text.bytes().filter(|byte| *byte == b'&').count() >= MOST_PARAMETERS {
            return Err(Failure::bad_request(format!(
                "the query has more than {MOST_PARAMETERS} parameters"
            )));
        }
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (plain(name), plain(value))
        });
        Ok(Params(pairs.collect()))
    }

    /// The value of a parameter, if it is given and not empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
            .filter(|v| !v.is_empty())
    }

    /// Every value of a parameter that may be repeated.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// A number; 400 with the parameter's name if it is not one.
    pub fn number<N: FromStr>(&self, name: &str) -> Result<Option<N>, Failure> {
        self.get(name)
            .map(|text| {
                text.parse().map_err(|_| {
                    Failure::bad_request(format!(
                        "{name}: Invalid value: \"{text}\": must be a number"
                    ))
                })
            })
            .transpose()
    }

    /// A boolean. Kubernetes reads `0` and `false` in any case (Python's client writes `False`) as false, and any
    /// other given value as true.
    pub fn switch(&self, name: &str) -> Option<bool> {
        self.0
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value != "0" && !value.eq_ignore_ascii_case("false"))
    }

    /// True for a dry run. The only valid value is `All`.
    pub fn dry_run(&self) -> Result<bool, Failure> {
        let mut dry = false;
        for value in self.all("dryRun") {
            if value != "All" {
                let why =
                    format!("dryRun: Unsupported value: \"{value}\": supported values: \"All\"");
                return Err(Failure::bad_request(why));
            }
            dry = true;
        }
        Ok(dry)
    }
}

fn plain(text: &str) -> String {
    if text.contains('+') {
        decode(&text.replace('+', " ")).into_owned()
    } else {
        decode(text).into_owned()
    }
}

/// The format of a body, or of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyFormat {
    /// JSON, the default.
    Json,
    /// YAML.
    Yaml,
    /// Kubernetes' protobuf, objects only.
    Protobuf,
    /// RFC 6902.
    JsonPatch,
    /// RFC 7386.
    MergePatch,
    /// Kubernetes' own merge by list keys.
    StrategicMergePatch,
    /// Server-side apply, in YAML (of which JSON is a part).
    Apply,
}

/// The media types of an object's body.
const OBJECT_TYPES: &[&str] = &[
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
];
/// The media types of a patch.
const PATCH_TYPES: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

fn media_type(headers: &HeaderMap) -> Result<&str, Failure> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else {
        return Ok("");
    };
    let text = value
        .to_str()
        .map_err(|_| Failure::unsupported_media_type(OBJECT_TYPES))?;
    Ok(text.split(';').next().unwrap_or_default().trim())
}

/// The format of an object's body.
pub fn object_format(headers: &HeaderMap) -> Result<BodyFormat, Failure> {
    match media_type(headers)? {
        "" | "application/json" | "*/*" => Ok(BodyFormat::Json),
        "application/yaml" | "text/yaml" | "application/x-yaml" => Ok(BodyFormat::Yaml),
        "application/vnd.kubernetes.protobuf" => Ok(BodyFormat::Protobuf),
        _ => Err(Failure::unsupported_media_type(OBJECT_TYPES)),
    }
}

/// The format of a patch.
pub fn patch_format(headers: &HeaderMap) -> Result<BodyFormat, Failure> {
    match media_type(headers)? {
        "application/json-patch+json" => Ok(BodyFormat::JsonPatch),
        "application/merge-patch+json" => Ok(BodyFormat::MergePatch),
        "application/strategic-merge-patch+json" => Ok(BodyFormat::StrategicMergePatch),
        "application/apply-patch+yaml" | "application/apply-patch+json" => Ok(BodyFormat::Apply),
        _ => Err(patch_not_supported(PATCH_TYPES)),
    }
}

/// 415 with the text for patches.
pub fn patch_not_supported(accepted: &[&str]) -> Failure {
    Failure::unsupported_media_type(accepted)
}

/// The patch types for kinds that have no strategic merge.
pub fn patch_types_without_strategic() -> Vec<&'static str> {
    PATCH_TYPES
        .iter()
        .copied()
        .filter(|t| !t.contains("strategic"))
        .collect()
}

/// Reads a whole body, of at most [`MOST_BODY_BYTES`] bytes.
pub async fn read(body: Body) -> Result<Bytes, Failure> {
    match Limited::new(body, MOST_BODY_BYTES).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Failure::too_large(MOST_BODY_BYTES)),
        Err(error) => Err(Failure::bad_request(format!(
            "unable to read the request's body: {error}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::headers;

    #[test]
    fn parameters_are_decoded_and_empty_ones_count_as_absent() {
        let params = Params::parse(Some(
            "labelSelector=a%3Db%2Cc&limit=&x=1+2&watch&dryRun=All",
        ))
        .unwrap();
        assert_eq!(params.get("labelSelector"), Some("a=b,c"));
        assert_eq!(params.get("limit"), None);
        assert_eq!(params.get("x"), Some("1 2"));
        assert_eq!(params.switch("watch"), Some(true));
        assert_eq!(params.switch("absent"), None);
        assert!(params.dry_run().unwrap());
        let parse = |query: &str| Params::parse(Some(query)).unwrap();
        assert!(parse("dryRun=Some").dry_run().is_err());
        assert!(parse("limit=x").number::<u64>("limit").is_err());
    }

    #[test]
    fn a_query_is_taken_to_its_bounds() {
        let long = |bytes: usize| {
            let query = format!("x={}", "y".repeat(bytes - 2));
            Params::parse(Some(&query))
        };
        long(MOST_QUERY_BYTES).unwrap();
        let refused = long(MOST_QUERY_BYTES + 1).unwrap_err();
        assert_eq!(refused.code().as_u16(), 414);
        let many = |count: usize| Params::parse(Some(&vec!["a=1"; count].join("&")));
        many(MOST_PARAMETERS).unwrap();
        let refused = many(MOST_PARAMETERS + 1).unwrap_err();
        assert_eq!(refused.code().as_u16(), 400);
    }

    #[test]
    fn formats_follow_the_content_type_and_unknown_ones_are_refused() {
        let with = |value: &str| headers(&[("content-type", value)]);
        assert_eq!(object_format(&HeaderMap::new()).unwrap(), BodyFormat::Json);
        assert_eq!(
            object_format(&with("application/json; charset=utf-8")).unwrap(),
            BodyFormat::Json
        );
        assert_eq!(
            object_format(&with("application/yaml")).unwrap(),
            BodyFormat::Yaml
        );
        let refused = object_format(&with("application/cbor")).unwrap_err();
        assert_eq!(refused.code().as_u16(), 415);
        assert_eq!(
            patch_format(&with("application/merge-patch+json")).unwrap(),
            BodyFormat::MergePatch
        );
        assert_eq!(
            patch_format(&with("application/json"))
                .unwrap_err()
                .code()
                .as_u16(),
            415
        );
    }
}
