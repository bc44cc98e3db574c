//! The links of a job's page to web pages inside its pods.

use resources::access::{Caller, RequestAttributes};

use crate::board::{JobDetail, Replica, Tone};
use crate::state::Portal;

/// The most links on the page.
const LINKS_MAX: usize = 32;

/// A link to a page inside a pod.
pub struct PodPage {
    /// What is there.
    pub title: String,
    /// The pod.
    pub pod: String,
    /// The address that leads to it.
    pub href: String,
}

/// The links that this caller may follow; none for a caller without the right, or of another user's job.
pub fn of(portal: &Portal, caller: &Caller, job: &JobDetail) -> Vec<PodPage> {
    if !may_open(portal, caller, job) {
        return Vec::new();
    }
    let namespace = &job.row.namespace;
    let running = |replica: &&Replica| replica.tone != Tone::Bad && replica.state == "Running";
    let links = job.replicas.iter().filter(running).flat_map(|replica| {
        replica.web.iter().map(move |port| PodPage {
            title: port.title.clone(),
            pod: replica.pod.clone(),
            href: format!("/proxy/{namespace}/pods/{}/{}/", replica.pod, port.number),
        })
    });
    links.take(LINKS_MAX).collect()
}

/// True if the caller may open pages of pods in the namespace, and of pods that run for this job's user.
fn may_open(portal: &Portal, caller: &Caller, job: &JobDetail) -> bool {
    let of_pods = |verb| RequestAttributes {
        verb,
        resource: "pods",
        subresource: Some("proxy"),
        namespace: Some(&job.row.namespace),
        ..RequestAttributes::default()
    };
    let user = &job.row.user;
    let impersonation = RequestAttributes {
        verb: "impersonate",
        resource: "users",
        name: Some(user),
        ..RequestAttributes::default()
    };
    ["get", "create"]
        .into_iter()
        .all(|verb| portal.permits(caller, &of_pods(verb)))
        && (user.is_empty() || *user == caller.user || portal.permits(caller, &impersonation))
}
