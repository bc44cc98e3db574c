//! Owns the reports of training programs about their progress: `POST …/trainjobs/NAME/status`, as Kubeflow Trainer's
//! status server answers it. The token of a report is for this TrainJob alone, by its audience, and for no other request;
//! only pods and users of the TrainJob's namespace can have one.

use axum::body::Body;
use http::request::Parts;
use http::{Method, Response};
use resources::access::{Caller, service_account_of};
use resources::training_progress::{audience, patch};
use resources::{registry, trainer};
use serde_json::Value;

use crate::call::Call;
use crate::limits::MOST_PROGRESS_BYTES;
use crate::object::ObjectPart;
use crate::path::{self, RequestTarget, ResourcePath};
use crate::prepare::{self, Tracking};
use crate::request::{self, BodyFormat, Params};
use crate::rewrite::rewrite;
use crate::server::ApiServer;
use crate::status::Failure;
use crate::{decode, patch as patches, respond};

/// The component in whose name the report is written.
const COMPONENT: &str = "trainjob-progress";

/// Mark on a request: its token is for this report.
#[derive(Clone, Copy)]
pub(crate) struct ProgressReport;

/// The TrainJob that a request reports about, if it is a report.
fn reported(method: &Method, path: &str) -> Option<(String, String)> {
    if method != Method::POST {
        return None;
    }
    let RequestTarget::Resource(ResourcePath {
        group,
        version,
        namespace: Some(namespace),
        resource,
        name: Some(name),
        subresource: Some(subresource),
    }) = path::parse(path)
    else {
        return None;
    };
    let named = (group.as_str(), version.as_str(), resource.as_str());
    let is_report = named == (trainer::GROUP, "v1alpha1", "trainjobs") && subresource == "status";
    is_report.then_some((namespace, name))
}

/// True if a token with these audiences, which authenticates `caller`, permits this request as a report.
pub(crate) fn permits(caller: &Caller, audiences: &[String], method: &Method, path: &str) -> bool {
    let Some((namespace, name)) = reported(method, path) else {
        return false;
    };
    let own = service_account_of(&caller.user).is_some_and(|(own, _)| own == namespace);
    own && audiences.contains(&audience(&namespace, &name))
}

/// Answers a request that has the mark [`ProgressReport`] as Trainer does: with what was reported.
pub(crate) async fn report(
    server: &ApiServer,
    target: ResourcePath,
    parts: &Parts,
    body: Body,
) -> Result<Response<Body>, Failure> {
    let kind = registry::find(&target.group, &target.version, &target.resource)
        .ok_or_else(Failure::no_such_resource)?;
    let params = Params::parse(parts.uri.query())?;
    let component = Caller::component(COMPONENT);
    let mut call = Call::on_stored(server, &component, kind, params, &parts.headers);
    call.namespace = target.namespace;
    call.name = target.name;
    let bytes = request::read(body).await?;
    if bytes.len() > MOST_PROGRESS_BYTES {
        return Err(Failure::too_large(MOST_PROGRESS_BYTES));
    }
    let sent = decode::patch(&bytes, BodyFormat::MergePatch)?;
    let sent: Value = sent.value;
    if let Some(patch) = patch(&sent) {
        let mut warnings = Vec::new();
        rewrite(&call, |live| {
            let wanted = patches::transform(&call, BodyFormat::MergePatch, live, &patch)?;
            prepare::change(
                &call,
                ObjectPart::Status,
                Tracking::Update,
                live,
                wanted,
                &[],
                &mut warnings,
            )
        })
        .await?;
    }
    respond::value(&call, &sent)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/t/status";

    #[test]
    fn a_token_reports_for_its_own_job_in_its_own_namespace() {
        let account = |namespace: &str| Caller::service_account(namespace, "default");
        let own = [audience("team", "t")];
        let other = [audience("team", "u"), "muster".to_owned()];
        let table = [
            (account("team"), &own[..], Method::POST, PATH, true),
            (account("team"), &other[..], Method::POST, PATH, false),
            (account("else"), &own[..], Method::POST, PATH, false),
            (Caller::node("team"), &own[..], Method::POST, PATH, false),
            (account("team"), &own[..], Method::PATCH, PATH, false),
            (
                account("team"),
                &own[..],
                Method::POST,
                "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/t",
                false,
            ),
            (
                account("team"),
                &own[..],
                Method::POST,
                "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/u/status",
                false,
            ),
        ];
        for (caller, audiences, method, path, want) in table {
            let got = permits(&caller, audiences, &method, path);
            assert_eq!(got, want, "{} {method} {path}", caller.user);
        }
    }
}
