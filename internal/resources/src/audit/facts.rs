//! Builds an audit event from a request: the resource API and the log of all other requests share this code. Owns the
//! bound on recorded texts. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{API_VERSION, AuditEvent, AuditLevel, AuditStage, ResponseStatus, UserInfo};

/// The longest path, program name or user name that is recorded, in bytes; longer ones are truncated.
pub const LONGEST_TEXT: usize = 2048;

/// The text, truncated to [`LONGEST_TEXT`] at a character boundary.
#[must_use]
pub fn shortened(text: &str) -> String {
    text[..text.floor_char_boundary(LONGEST_TEXT)].to_owned()
}

/// The facts of a recorded request.
#[derive(Clone, Debug)]
pub struct RequestFacts<'a> {
    /// The request's own id.
    pub audit_id: String,
    /// The level of detail of the event.
    pub level: AuditLevel,
    /// The stage of the request.
    pub stage: AuditStage,
    /// The request's path and query.
    pub request_uri: &'a str,
    /// The verb: of a resource, or the HTTP method in lower case.
    pub verb: &'a str,
    /// The user that made the request.
    pub user: UserInfo,
    /// The impersonated user, if the request impersonates one.
    pub impersonated_user: Option<UserInfo>,
    /// The address that the request came from.
    pub source: Option<String>,
    /// The program that made the request.
    pub user_agent: &'a str,
    /// The HTTP status code of the answer.
    pub code: u16,
    /// When the request arrived.
    pub received: Timestamp,
    /// When the stage was reached.
    pub reached: Timestamp,
}

impl RequestFacts<'_> {
    /// The event, without an object.
    #[must_use]
    pub fn event(self) -> AuditEvent {
        let status = match self.code {
            400.. => "Failure".to_owned(),
            _ => String::new(),
        };
        AuditEvent {
            kind: "Event".to_owned(),
            api_version: API_VERSION.to_owned(),
            level: self.level,
            audit_id: self.audit_id,
            stage: self.stage,
            request_uri: shortened(self.request_uri),
            verb: self.verb.to_owned(),
            user: self.user,
            impersonated_user: self.impersonated_user,
            source_ips: self.source.into_iter().collect(),
            user_agent: shortened(self.user_agent),
            object_ref: None,
            response_status: ResponseStatus {
                code: self.code,
                status,
                ..ResponseStatus::default()
            },
            request_object: None,
            response_object: None,
            request_received_timestamp: stamp(self.received),
            stage_timestamp: stamp(self.reached),
            annotations: BTreeMap::new(),
        }
    }
}

/// RFC 3339 with microseconds, UTC.
fn stamp(at: Timestamp) -> String {
    format!("{at:.6}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_above_the_bound_and_between_characters() {
        let fits = "x".repeat(LONGEST_TEXT);
        for (text, bytes) in [
            (String::new(), 0),
            (fits.clone(), LONGEST_TEXT),
            (format!("{fits}y"), LONGEST_TEXT),
            // The bound falls inside a two-byte character.
            (format!("x{}", "é".repeat(LONGEST_TEXT)), LONGEST_TEXT - 1),
        ] {
            let cut = shortened(&text);
            assert_eq!(cut.len(), bytes);
            assert!(text.starts_with(&cut));
        }
    }

    #[test]
    fn an_event_says_whether_the_request_failed_and_has_no_text_beyond_the_bound() {
        let long = "/".repeat(LONGEST_TEXT + 1);
        for (code, status) in [(200, ""), (399, ""), (400, "Failure"), (503, "Failure")] {
            let event = RequestFacts {
                audit_id: "a".to_owned(),
                level: AuditLevel::Metadata,
                stage: AuditStage::ResponseComplete,
                request_uri: &long,
                verb: "get",
                user: UserInfo::default(),
                impersonated_user: None,
                source: Some("192.0.2.1".to_owned()),
                user_agent: &long,
                code,
                received: Timestamp::UNIX_EPOCH,
                reached: Timestamp::UNIX_EPOCH,
            }
            .event();
            assert_eq!(event.response_status.code, code);
            assert_eq!(event.response_status.status, status);
            assert_eq!(event.request_uri.len(), LONGEST_TEXT);
            assert_eq!(event.user_agent.len(), LONGEST_TEXT);
            assert_eq!(event.source_ips, ["192.0.2.1"]);
            assert_eq!(event.stage_timestamp, "1970-01-01T00:00:00.000000Z");
        }
    }
}
