//! Error messages of commands, each with a remedy. Prints nothing.

use anyhow::Error;
use kube::core::Status;
use resources::quota_refusal::QuotaRefusal;
use resources::registry::{self, Kind};
use serde_json::Value;

use super::connection::ServerConnection;
use super::failure::{closed_pipe, exit_of, undeclared, with};

/// Turns an error into a message for the user. A closed pipe stays as it is, because its reader
/// had enough.
pub fn in_words(error: Error, connection: &ServerConnection) -> Error {
    if closed_pipe(&error) {
        return error;
    }
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        let (part, last) = if let Some(error) = cause.downcast_ref::<kube::Error>() {
            (words(error, connection), true)
        } else if let Some(status) = cause.downcast_ref::<Status>() {
            (refusal(status, connection), true)
        } else if cause.is::<kube::runtime::watcher::Error>() {
            // This message repeats its source, which comes next.
            continue;
        } else {
            (cause.to_string(), false)
        };
        // Libraries often repeat the source's message in their own.
        if !parts.last().is_some_and(|outer| outer.ends_with(&part)) {
            parts.push(part);
        }
        if last {
            break;
        }
    }
    with(exit_of(&error), parts.join(": "))
}

fn words(error: &kube::Error, connection: &ServerConnection) -> String {
    match error {
        kube::Error::Api(status) => refusal(status, connection),
        kube::Error::Service(_) | kube::Error::HyperError(_) => {
            let (server, from) = (&connection.server, &connection.origin);
            let reason = innermost(error);
            let advice = if reason.to_lowercase().contains("certificate") {
                format!(
                    "{from} trusts another certificate authority than this server's: was the server set up again?"
                )
            } else {
                format!(
                    "that address is from {from}; is the server up? `muster up` starts one, --data or --kubeconfig names another"
                )
            };
            format!("no answer from {server}: {reason}\n  {advice}")
        }
        other => other.to_string(),
    }
}

/// The message of an error's first cause.
pub fn innermost(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

/// The problem (RFC 9457) of the platform's REST API.
fn problem(status: &Status) -> Option<Value> {
    let problem: Value = serde_json::from_str(&status.message).ok()?;
    problem["detail"].is_string().then_some(problem)
}

fn is_problem(status: &Status) -> bool {
    problem(status).is_some()
}

/// The server's message, from the resource API or from the platform's REST API.
fn message(status: &Status) -> String {
    let problem = problem(status);
    let detail = problem.as_ref().and_then(|p| p["detail"].as_str());
    match detail.unwrap_or(&status.message) {
        "" => format!("the server answered with status {}", status.code),
        text => text.to_string(),
    }
}

/// A refusal as a sentence, followed by its causes, one per line, and a remedy.
fn refusal(status: &Status, connection: &ServerConnection) -> String {
    if let Some(missing) = missing(status, &connection.namespace) {
        return missing;
    }
    if let Some(field) = undeclared(status) {
        return format!(
            "the manifest has a field that its kind does not have:\n  {field}\n  correct its name, or take it out; `kubectl explain` lists what there is"
        );
    }
    let mut text = message(status);
    let causes = status.details.as_ref().map_or(&[][..], |d| &d.causes);
    if !causes.is_empty() {
        // The message repeats all causes in one line.
        let ends = [" is invalid", " conflict", " conflicts"];
        let end = ends
            .iter()
            .filter_map(|end| Some(text.find(&format!("{end}:"))? + end.len()));
        if let Some(end) = end.min() {
            text.truncate(end);
        }
        text.push(':');
        for cause in causes {
            text.push_str(&format!("\n  {}: {}", cause.field, cause.message));
        }
    }
    if let Some(advice) = advice(status, &text, connection) {
        text.push_str(&format!("\n  {advice}"));
    }
    text
}

fn kind_of(status: &Status) -> Option<&'static Kind> {
    let details = status.details.as_ref()?;
    let same = |kind: &&Kind| {
        kind.group == details.group && (kind.plural == details.kind || kind.kind == details.kind)
    };
    registry::all().iter().find(same)
}

/// Which object is missing.
fn missing(status: &Status, namespace: &str) -> Option<String> {
    let kind = kind_of(status).filter(|_| status.code == 404)?;
    let name = &status.details.as_ref()?.name;
    let (place, elsewhere) = if kind.namespaced {
        let elsewhere = "; -n NAME looks in another namespace";
        (format!(" in namespace {namespace:?}"), elsewhere)
    } else {
        (String::new(), "")
    };
    Some(format!(
        "there is no {} {name:?}{place}\n  `muster get {}` lists those there are{elsewhere}",
        kind.singular, kind.plural
    ))
}

/// The namespace of a refused object, which the message does not name.
const ITS_NAMESPACE: &str = "the object's namespace";

fn advice(status: &Status, text: &str, connection: &ServerConnection) -> Option<String> {
    let from = &connection.origin;
    Some(match (status.code, status.reason.as_str()) {
        (401, _) => format!(
            "it is {from}'s: name another file with --kubeconfig, or the server's data directory with --data"
        ),
        (403, _) if text.contains("exceeded quota") => match QuotaRefusal::parse(text) {
            Some(refusal) => format!(
                "{}\n  {}",
                refusal.sentence(ITS_NAMESPACE),
                refusal.advice(ITS_NAMESPACE)
            ),
            None => "ask for less, or have an administrator raise the quota".to_string(),
        },
        (403, _) => format!(
            "{from} shows your user; an administrator grants more rights, --kubeconfig selects another user"
        ),
        (409, "AlreadyExists") => "choose another name, or delete that one first".to_string(),
        (409, _) if text.contains("conflict with") => {
            "--force-conflicts takes these fields over from their managers".to_string()
        }
        // A problem of the REST API says itself what to do.
        (409, _) if is_problem(status) => return None,
        (409, _) => "it has changed meanwhile: look at it again, then try again".to_string(),
        (404, "NotFound") => format!(
            "{} does not know this request: `muster version` says which server it is",
            connection.server
        ),
        (429, _) => "the server is busy: try again in a moment".to_string(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::exit::ExitCause;
    use super::*;
    use serde_json::json;

    fn connection() -> ServerConnection {
        let config = kube::Config::new("https://127.0.0.1:1".parse().unwrap());
        ServerConnection {
            client: kube::Client::try_from(config).unwrap(),
            namespace: "lab".to_string(),
            server: "https://127.0.0.1:1".to_string(),
            kubeconfig: Default::default(),
            origin: "FILE".to_string(),
        }
    }

    fn said(status: Value) -> (ExitCause, String) {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let _inside = runtime.enter();
        let status: Status = serde_json::from_value(status).unwrap();
        let error = Error::new(kube::Error::Api(Box::new(status)));
        let error = in_words(error, &connection());
        (exit_of(&error), format!("{error:#}"))
    }

    #[test]
    fn a_conflict_of_the_rest_api_says_itself_what_to_do() {
        let detail = json!({"detail": "user \"ann\" exists already", "status": 409}).to_string();
        let (_, text) = said(json!({"code": 409, "reason": "", "message": detail}));
        assert_eq!(text, "user \"ann\" exists already");
    }

    #[test]
    fn what_is_missing_is_named_with_its_namespace_and_how_to_list_the_others() {
        let (exit, text) = said(json!({"code": 404, "reason": "NotFound", "message": "x",
            "details": {"group": "kubeflow.org", "kind": "pytorchjobs", "name": "j"}}));
        assert_eq!(exit, ExitCause::NotFound);
        assert_eq!(
            text,
            "there is no pytorchjob \"j\" in namespace \"lab\"\n  `muster get pytorchjobs` lists those there are; -n NAME looks in another namespace"
        );
    }

    #[test]
    fn every_cause_of_a_refusal_has_a_line_of_its_own() {
        let (exit, text) = said(json!({"code": 422, "reason": "Invalid",
            "message": "Pod \"x\" is invalid: [a: Required value, b: Invalid value: \"v\": no]",
            "details": {"kind": "Pod", "name": "x", "causes": [
                {"field": "a", "message": "Required value"},
                {"field": "b", "message": "Invalid value: \"v\": no"}]}}));
        assert_eq!(exit, ExitCause::Refused);
        assert_eq!(
            text,
            "Pod \"x\" is invalid:\n  a: Required value\n  b: Invalid value: \"v\": no"
        );
    }

    #[test]
    fn a_conflict_names_fields_and_managers_and_an_undeclared_field_is_the_manifests() {
        let (exit, text) = said(json!({"code": 409, "reason": "Conflict",
            "message": "Apply failed with 1 conflict: conflict with \"a\": .data.a",
            "details": {"causes": [{"field": ".data.a", "message": "conflict with \"a\""}]}}));
        assert_eq!(exit, ExitCause::Refused);
        assert!(
            text.starts_with("Apply failed with 1 conflict:\n  .data.a: conflict with \"a\"\n"),
            "{text}"
        );
        let (exit, text) = said(json!({"code": 500, "reason": "InternalError",
            "message": "Internal error occurred: failed to create typed patch object (d/y; v1, Kind=ConfigMap): .dta: field not declared in schema"}));
        assert_eq!(exit, ExitCause::Refused);
        assert!(text.contains("\n  .dta: field not declared"), "{text}");
        let (exit, text) = said(json!({"code": 400, "reason": "BadRequest",
            "message": "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: unknown field \"dta\""}));
        assert_eq!(exit, ExitCause::Refused);
        assert!(text.contains("\n  unknown field \"dta\"\n"), "{text}");
    }

    #[test]
    fn a_problems_detail_is_what_is_said() {
        let (exit, text) = said(json!({"code": 503,
            "message": json!({"detail": "node n is away", "status": 503}).to_string()}));
        assert_eq!((exit, text.as_str()), (ExitCause::Failed, "node n is away"));
        assert_eq!(
            said(json!({"code": 500})).1,
            "the server answered with status 500"
        );
    }
}
