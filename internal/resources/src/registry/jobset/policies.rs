//! What a JobSet says of success, failure, start and coordinator: the checks of its webhook.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::meta;
use crate::field::{FieldError, Path};
use crate::json;

/// The reasons with which a Job fails.
const REASONS: [&str; 5] = [
    "BackoffLimitExceeded",
    "DeadlineExceeded",
    "FailedIndexes",
    "MaxFailedIndexesExceeded",
    "PodFailurePolicy",
];
const ACTIONS: [&str; 5] = [
    "FailJobSet",
    "RestartJobSet",
    "RestartJobSetAndIgnoreMaxRestarts",
    "RestartJob",
    "RestartJobAndIgnoreMaxRestarts",
];
const STRATEGIES: [&str; 2] = ["Recreate", "BlockingRecreate"];
/// The longest name of a rule.
const RULE_NAME_MAX: usize = 128;
/// The most rules.
const RULES_MAX: usize = 32;
/// The most patterns of all rules together: all are compiled at each write, and again when a Job has failed.
const PATTERNS_MAX: usize = 32;
/// The longest pattern, in bytes.
const PATTERN_MAX: usize = 512;
/// The most Jobs of a job whose Jobs restart alone: the status counts the restarts of each.
const COUNTED_MAX: i64 = 1_024;

/// Names the rules of the failure policy, and sets its strategy.
pub(super) fn default(spec: &mut Value) {
    let Some(policy) = json::child(spec, "failurePolicy") else {
        return;
    };
    json::fill_text(policy, "restartStrategy", STRATEGIES[0]);
    for (i, rule) in json::list(policy, "rules").enumerate() {
        json::fill_text(rule, "name", &format!("failurePolicyRule{i}"));
    }
}

/// Checks the policies; `jobs` are the names of the replicated jobs.
pub(super) fn check(
    spec: &Value,
    jobs: &BTreeSet<&str>,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let success = path.child("successPolicy");
    let policy = json::at(spec, &["successPolicy"]);
    meta::one_of(policy, "operator", &["All", "Any"], &success, errors);
    targets(policy, jobs, &success, errors);
    let startup = path.child("startupPolicy");
    let policy = json::at(spec, &["startupPolicy"]);
    let orders = ["AnyOrder", "InOrder"];
    meta::one_of(policy, "startupPolicyOrder", &orders, &startup, errors);
    let in_order = json::text(policy, &["startupPolicyOrder"]) == "InOrder";
    let mut list = json::items(spec, &["replicatedJobs"]).iter();
    if in_order && list.any(|job| !json::items(job, &["dependsOn"]).is_empty()) {
        let detail = "InOrder and dependsOn exclude each other: use one of them";
        errors.push(FieldError::forbidden(
            &startup.child("startupPolicyOrder"),
            detail,
        ));
    }
    failure(spec, jobs, &path.child("failurePolicy"), errors);
    coordinator(spec, &path.child("coordinator"), errors);
}

fn targets(policy: &Value, jobs: &BTreeSet<&str>, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let list = path.child("targetReplicatedJobs");
    for (i, job) in json::items(policy, &["targetReplicatedJobs"])
        .iter()
        .enumerate()
    {
        let job = job.as_str().unwrap_or_default();
        if !jobs.contains(job) {
            let detail = "there is no job of this name in spec.replicatedJobs";
            errors.push(FieldError::invalid(&list.index(i), job, detail));
        }
    }
}

fn failure(spec: &Value, jobs: &BTreeSet<&str>, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let policy = json::at(spec, &["failurePolicy"]);
    if policy.is_null() {
        return;
    }
    meta::not_negative(policy, "maxRestarts", path, errors);
    meta::one_of(policy, "restartStrategy", &STRATEGIES, path, errors);
    let list = path.child("rules");
    let rules = json::items(policy, &["rules"]);
    if rules.len() > RULES_MAX {
        errors.push(FieldError::too_many(&list, rules.len(), RULES_MAX));
        return;
    }
    let all = |rule| json::items(rule, &["onJobFailureMessagePatterns"]).len();
    let patterned: usize = rules.iter().map(all).sum();
    if patterned > PATTERNS_MAX {
        let detail = format!(
            "the rules have {patterned} onJobFailureMessagePatterns together; at most {PATTERNS_MAX} are allowed: write \
             alternatives as A|B"
        );
        errors.push(FieldError::forbidden(&list, &detail));
        return;
    }
    let mut names = BTreeSet::new();
    for (i, rule) in rules.iter().enumerate() {
        let at = list.index(i);
        let name = json::text(rule, &["name"]);
        if !is_rule_name(name) {
            let detail = format!(
                "must have at most {RULE_NAME_MAX} characters: a letter, then letters, digits and _,: and no , or : at \
                 the end"
            );
            errors.push(FieldError::invalid(&at.child("name"), name, detail));
        }
        if !names.insert(name) {
            errors.push(FieldError::duplicate(&at.child("name"), name));
        }
        if json::text(rule, &["action"]).is_empty() {
            let detail = ACTIONS.join(", ");
            errors.push(FieldError::required(&at.child("action"), detail));
        }
        meta::one_of(rule, "action", &ACTIONS, &at, errors);
        targets(rule, jobs, &at, errors);
        let reasons = at.child("onJobFailureReasons");
        for (j, reason) in json::items(rule, &["onJobFailureReasons"])
            .iter()
            .enumerate()
        {
            let reason = reason.as_str().unwrap_or_default();
            if !REASONS.contains(&reason) {
                errors.push(FieldError::not_supported(
                    &reasons.index(j),
                    reason,
                    &REASONS,
                ));
            }
        }
        patterns(rule, &at, errors);
        counted(spec, rule, &at, errors);
    }
}

fn is_rule_name(name: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let inner = |c: char| word(c) || c == ',' || c == ':';
    name.len() <= RULE_NAME_MAX
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(inner)
        && name.ends_with(word)
}

fn patterns(rule: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let list = path.child("onJobFailureMessagePatterns");
    let all = json::items(rule, &["onJobFailureMessagePatterns"]);
    for (i, pattern) in all.iter().enumerate() {
        let pattern = pattern.as_str().unwrap_or_default();
        let at = list.index(i);
        if pattern.len() > PATTERN_MAX {
            errors.push(FieldError::too_long(&at, PATTERN_MAX));
        } else if let Err(error) = crate::pattern::compile(pattern) {
            let detail = format!("must be a regular expression of RE2: {error}");
            errors.push(FieldError::invalid(&at, pattern, detail));
            // One is enough to refuse the object, and each costs its compilation.
            return;
        }
    }
}

/// Bounds the Jobs whose restarts the status counts.
fn counted(spec: &Value, rule: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let action = json::text(rule, &["action"]);
    if !["RestartJob", "RestartJobAndIgnoreMaxRestarts"].contains(&action) {
        return;
    }
    let mut jobs = json::items(spec, &["replicatedJobs"]).iter();
    if jobs.any(|job| json::int(job, &["replicas"]) > Some(COUNTED_MAX)) {
        let detail =
            format!("Jobs restart alone only where each job has at most {COUNTED_MAX} replicas");
        errors.push(FieldError::invalid(&path.child("action"), action, detail));
    }
}

fn coordinator(spec: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let coordinator = json::at(spec, &["coordinator"]);
    if coordinator.is_null() {
        return;
    }
    let name = json::text(coordinator, &["replicatedJob"]);
    let mut jobs = json::items(spec, &["replicatedJobs"]).iter();
    let Some(job) = jobs.find(|job| json::text(job, &["name"]) == name) else {
        let detail = "there is no job of this name in spec.replicatedJobs";
        errors.push(FieldError::invalid(
            &path.child("replicatedJob"),
            name,
            detail,
        ));
        return;
    };
    let template = json::at(job, &["template", "spec"]);
    let indexed = !json::text(template, &["completionMode"]).eq("NonIndexed");
    let Some(completions) = json::int(template, &["completions"]).filter(|_| indexed) else {
        let detail = "the coordinator's job must be Indexed and have completions";
        errors.push(FieldError::invalid(
            &path.child("replicatedJob"),
            name,
            detail,
        ));
        return;
    };
    let replicas = json::int(job, &["replicas"]).unwrap_or(1);
    for (key, count) in [("jobIndex", replicas), ("podIndex", completions)] {
        let index = json::int(coordinator, &[key]).unwrap_or(0);
        if !(0..count.max(1)).contains(&index) {
            let detail = format!("must be from 0 to {}", count.max(1) - 1);
            errors.push(FieldError::invalid(&path.child(key), index, detail));
        }
    }
}
