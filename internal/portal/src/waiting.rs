//! The report of a waiting gang, completed with what the scheduler does not see: pods that a quota refused.

use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::ListParams;
use resources::access::Caller;
use resources::quota_refusal::QuotaRefusal;
use resources::report::{PlacementReport, WaitReason};

use crate::state::Portal;

/// The reason of the event for a pod that a controller could not create.
const FAILED_CREATE: &str = "FailedCreate";

/// The report of a gang (by namespace, and PodGroup or pod), as the caller may see it. `owner` is the job whose events
/// say why pods do not exist.
pub async fn report(
    portal: &Portal,
    caller: &Caller,
    namespace: &str,
    group: &str,
    owner: &str,
) -> Option<PlacementReport> {
    let mut report = (portal.hooks.explain)(namespace, group)?;
    if report.verdict == WaitReason::NotEnoughMembers
        && let Some(refusal) = refusal(portal, caller, namespace, owner).await
    {
        report.refused_by_quota(&refusal);
    }
    Some(report)
}

/// The quota that refused the latest pod of a job; none if another reason did, or the caller may not read events.
async fn refusal(
    portal: &Portal,
    caller: &Caller,
    namespace: &str,
    owner: &str,
) -> Option<QuotaRefusal> {
    let events: Api<Event> = Api::namespaced(portal.client(caller), namespace);
    let about = ListParams::default().fields(&format!("involvedObject.name={owner}"));
    let events = events.list(&about).await.ok()?;
    let failed = events.items.into_iter().filter(|event| {
        let reason = event.reason.as_deref();
        reason == Some(FAILED_CREATE)
    });
    let latest = failed.max_by_key(|event| event.last_timestamp.as_ref().map(|at| at.0))?;
    QuotaRefusal::parse(latest.message.as_deref()?)
}
