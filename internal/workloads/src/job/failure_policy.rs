//! `podFailurePolicy`: the effect of a failed pod on the job. The first matching rule decides; if
//! none matches, the failure counts.

use k8s_openapi::api::batch::v1::{PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyRule};
use k8s_openapi::api::core::v1::Pod;

use super::plan::ParsedJob;
use crate::failure;
use crate::pod_facts;

/// The effect of a failed pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FailedPodEffect {
    /// It counts against the backoff limit.
    Counts,
    /// It is replaced without being counted.
    Ignored,
    /// Its index has failed for good.
    FailsIndex,
    /// The job has failed, for this reason.
    FailsJob(String),
}

/// Applies the policy to a failed pod.
pub(crate) fn judge(plan: &ParsedJob<'_>, pod: &Pod) -> FailedPodEffect {
    // The node could not start the pod: rules about the program's own failures do not apply.
    if pod_facts::is_unfit(pod) {
        return FailedPodEffect::Ignored;
    }
    let rules = plan
        .spec
        .pod_failure_policy
        .iter()
        .flat_map(|policy| &policy.rules);
    for (nth, rule) in rules.enumerate() {
        let Some(matched) = matches(rule, pod) else {
            continue;
        };
        return match rule.action.as_str() {
            "FailJob" => {
                let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
                let name = pod_facts::name(pod);
                FailedPodEffect::FailsJob(format!(
                    "{} matching FailJob rule at index {nth}",
                    matched.replace("%pod", &format!("pod {namespace}/{name}"))
                ))
            }
            "Ignore" => FailedPodEffect::Ignored,
            "FailIndex" if plan.backoff_limit_per_index.is_some() => FailedPodEffect::FailsIndex,
            _ => FailedPodEffect::Counts,
        };
    }
    // What the platform ended is not charged to the job, unless a rule says so.
    if failure::is_of_platform(pod) {
        return FailedPodEffect::Ignored;
    }
    FailedPodEffect::Counts
}

/// The part of the pod that the rule matches, as a message with `%pod` for the pod.
fn matches(rule: &PodFailurePolicyRule, pod: &Pod) -> Option<String> {
    if let Some(codes) = &rule.on_exit_codes {
        return pod_facts::exit_codes(pod)
            .find(|(container, code)| code_matches(codes, container, *code))
            .map(|(container, code)| {
                format!("Container {container} for %pod failed with exit code {code}")
            });
    }
    let conditions = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let patterns = rule.on_pod_conditions.as_deref().unwrap_or_default();
    let found = conditions.into_iter().find(|condition| {
        patterns.iter().any(|pattern| {
            let status = if pattern.status.is_empty() {
                "True"
            } else {
                &pattern.status
            };
            pattern.type_ == condition.type_ && status == condition.status
        })
    })?;
    Some(format!("Pod %pod has condition {}", found.type_).replace("Pod %pod", "%pod"))
}

fn code_matches(
    codes: &PodFailurePolicyOnExitCodesRequirement,
    container: &str,
    code: i32,
) -> bool {
    let named = codes
        .container_name
        .as_deref()
        .is_none_or(|name| name == container);
    let listed = codes.values.contains(&code);
    named
        && code != 0
        && if codes.operator == "NotIn" {
            !listed
        } else {
            listed
        }
}
