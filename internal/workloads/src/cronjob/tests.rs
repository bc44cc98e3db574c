//! Cases of CronJobs: when a Job is due, the concurrency policies, suspension and history.

use serde_json::{Value, json};

use super::*;

const NOW: &str = "2026-03-02T02:00:10Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

/// A CronJob of two o'clock, created the day before.
fn cron(spec: Value, status: Value) -> CronJob {
    let mut cron = json!({
        "metadata": {"name": "nightly", "namespace": "team", "uid": "c", "creationTimestamp": "2026-03-01T12:00:00Z",
            "annotations": {"muster.io/user": "ann"}},
        "spec": {"schedule": "0 2 * * *", "jobTemplate": {
            "metadata": {"labels": {"app": "x"}, "annotations": {"muster.io/user": "root"}},
            "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": []}}},
        }},
        "status": status,
    });
    for (key, value) in spec.as_object().unwrap() {
        cron["spec"][key] = value.clone();
    }
    serde_json::from_value(cron).unwrap()
}

/// A Job of the schedule, ended by a condition or running.
fn job(name: &str, started: &str, condition: Option<&str>) -> Job {
    let conditions: Vec<Value> = condition
        .iter()
        .map(|type_| json!({"type": type_, "status": "True"}))
        .collect();
    let mut job = json!({
        "metadata": {"name": name, "uid": name, "annotations": {SCHEDULED: started},
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "CronJob", "name": "nightly", "uid": "c", "controller": true}]},
        "status": {"startTime": started, "conditions": conditions},
    });
    if condition == Some("Complete") {
        job["status"]["completionTime"] = started.into();
    }
    serde_json::from_value(job).unwrap()
}

fn decide(cron: &CronJob, jobs: &[Job]) -> ReconcileOutcome<CronJobStatus> {
    let jobs: Vec<&Job> = jobs.iter().collect();
    let zone = TimeZone::UTC;
    let observed = ObservedCronJob {
        cron,
        jobs: &jobs,
        zone: Some(&zone),
    };
    reconcile(&observed, now())
}

fn created(outcome: &ReconcileOutcome<CronJobStatus>) -> Vec<&Job> {
    let jobs = outcome.actions.iter().filter_map(|action| match action {
        Action::Create(Dependent::Job(job)) => Some(job.as_ref()),
        _ => None,
    });
    jobs.collect()
}

fn deleted(outcome: &ReconcileOutcome<CronJobStatus>) -> Vec<&str> {
    let names = outcome.actions.iter().filter_map(|action| match action {
        Action::Delete { name, .. } => Some(name.as_str()),
        _ => None,
    });
    names.collect()
}

fn reasons(outcome: &ReconcileOutcome<CronJobStatus>) -> Vec<&str> {
    let reasons = outcome.events.iter().map(|event| event.reason.as_str());
    reasons.collect()
}

#[test]
fn a_due_time_gets_one_job_with_the_template_the_time_and_the_owners_user() {
    let cron = cron(json!({}), json!({}));
    let outcome = decide(&cron, &[]);
    let jobs = created(&outcome);
    assert_eq!(jobs.len(), 1);
    let meta = serde_json::to_value(&jobs[0].metadata).unwrap();
    // 2026-03-02T02:00:00Z is minute 29540280 of the Unix time.
    assert_eq!(meta["name"], "nightly-29540280");
    assert_eq!(meta["labels"], json!({"app": "x"}));
    assert_eq!(
        meta["annotations"],
        json!({"muster.io/user": "ann", SCHEDULED: "2026-03-02T02:00:00Z"})
    );
    assert_eq!(meta["ownerReferences"][0]["uid"], "c");
    let status = serde_json::to_value(&outcome.status).unwrap();
    assert_eq!(status, json!({"lastScheduleTime": "2026-03-02T02:00:00Z"}));
    let tomorrow = "2026-03-03T02:00:00Z".parse().unwrap();
    assert_eq!(outcome.requeue_at, Some(tomorrow));
    // The status that was written keeps the time from getting a second Job, also after the Job is gone.
    let mut written = cron.clone();
    written.status = Some(outcome.status);
    assert_eq!(decide(&written, &[]).actions, []);
}

#[test]
fn a_job_that_exists_already_is_not_created_again() {
    let existing = job("nightly-29540280", "2026-03-02T02:00:00Z", None);
    let outcome = decide(&cron(json!({}), json!({})), &[existing]);
    assert_eq!(outcome.actions, []);
    let status = serde_json::to_value(&outcome.status).unwrap();
    assert_eq!(status["lastScheduleTime"], "2026-03-02T02:00:00Z");
    assert_eq!(status["active"][0]["name"], "nightly-29540280");
}

#[test]
fn the_policy_says_what_a_running_job_means() {
    let running = || job("nightly-1", "2026-03-01T02:00:00Z", None);
    let table = [
        ("Allow", 1, vec![], vec![]),
        ("Forbid", 0, vec![], vec!["JobAlreadyActive"]),
        ("Replace", 1, vec!["nightly-1"], vec![]),
    ];
    for (policy, creates, deletes, events) in table {
        let cron = cron(json!({"concurrencyPolicy": policy}), json!({}));
        let outcome = decide(&cron, &[running()]);
        assert_eq!(created(&outcome).len(), creates, "{policy}");
        assert_eq!(deleted(&outcome), deletes, "{policy}");
        assert_eq!(reasons(&outcome), events, "{policy}");
        assert_eq!(
            outcome.status.active.map_or(0, |all| all.len()),
            1,
            "{policy}"
        );
    }
    // A Job that a user created from the CronJob keeps no time from being served.
    let mut manual = running();
    manual.metadata.annotations = None;
    let cron = cron(json!({"concurrencyPolicy": "Forbid"}), json!({}));
    assert_eq!(created(&decide(&cron, &[manual])).len(), 1);
}

#[test]
fn no_job_starts_while_suspended_deleted_too_late_or_without_a_readable_time() {
    let table = [
        (json!({"suspend": true}), vec![]),
        // As in Kubernetes, a time counts if it came less than the deadline ago.
        (json!({"startingDeadlineSeconds": 11}), vec!["created"]),
        (json!({"startingDeadlineSeconds": 10}), vec![]),
        (json!({"schedule": "x"}), vec!["UnparseableCronJobSchedule"]),
        // 03:00 comes neither between noon, when it was created, and midnight, nor before now.
        (json!({"schedule": "0 3 * * *"}), vec![]),
        (json!({"schedule": "0 3 2 * *"}), vec![]),
    ];
    for (spec, want) in table {
        let outcome = decide(&cron(spec.clone(), json!({})), &[]);
        let mut got = reasons(&outcome);
        got.extend(created(&outcome).iter().map(|_| "created"));
        assert_eq!(got, want, "{spec}");
    }
    let unknown = cron(json!({"timeZone": "Mars/Base"}), json!({}));
    let observed = ObservedCronJob {
        cron: &unknown,
        jobs: &[],
        zone: None,
    };
    let outcome = reconcile(&observed, now());
    assert_eq!(reasons(&outcome), ["UnknownTimeZone"]);
    assert!(outcome.events[0].message.contains("\"Mars/Base\""));
    let mut leaving = cron(json!({}), json!({}));
    leaving.metadata.deletion_timestamp = leaving.metadata.creation_timestamp.clone();
    assert_eq!(decide(&leaving, &[]).actions, []);
}

#[test]
fn many_missed_times_get_one_job_and_an_event() {
    let status = json!({"lastScheduleTime": "2026-02-01T00:00:00Z"});
    let outcome = decide(&cron(json!({"schedule": "*/5 * * * *"}), status), &[]);
    assert_eq!(reasons(&outcome), ["TooManyMissedTimes"]);
    assert_eq!(created(&outcome).len(), 1);
    let at = outcome.status.last_schedule_time.unwrap().0;
    assert_eq!(at, "2026-03-02T02:00:00Z".parse().unwrap());
}

#[test]
fn the_oldest_ended_jobs_beyond_the_limits_go() {
    let ended = |n: u32, condition: &str| {
        let started = format!("2026-02-{n:02}T02:00:00Z");
        job(&format!("{condition}-{n}"), &started, Some(condition))
    };
    let mut jobs: Vec<Job> = (1..=5).map(|n| ended(n, "Complete")).collect();
    jobs.extend((1..=3).map(|n| ended(n, "Failed")));
    let suspended = json!({"suspend": true});
    let outcome = decide(&cron(suspended, json!({})), &jobs);
    assert_eq!(
        deleted(&outcome),
        ["Complete-2", "Complete-1", "Failed-2", "Failed-1"]
    );
    let last = outcome.status.last_successful_time.unwrap().0;
    assert_eq!(last, "2026-02-05T02:00:00Z".parse().unwrap());
    let none =
        json!({"suspend": true, "successfulJobsHistoryLimit": 0, "failedJobsHistoryLimit": 10});
    assert_eq!(deleted(&decide(&cron(none, json!({})), &jobs)).len(), 5);
}

#[test]
fn jobs_that_ended_or_are_gone_are_reported_once() {
    let active =
        |name: &str| json!({"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": name});
    let status = json!({"active": [active("done"), active("gone")]});
    let done = job("done", "2026-03-01T02:00:00Z", Some("Complete"));
    let mut cron = cron(json!({"suspend": true}), status);
    let outcome = decide(&cron, std::slice::from_ref(&done));
    assert_eq!(reasons(&outcome), ["SawCompletedJob", "MissingJob"]);
    assert_eq!(outcome.status.active, None);
    cron.status = Some(outcome.status);
    assert_eq!(reasons(&decide(&cron, &[done])), Vec::<&str>::new());
}

#[test]
fn the_scheduled_time_is_written_in_its_zone() {
    let zone = TimeZone::fixed(jiff::tz::offset(2));
    let time: Timestamp = "2026-03-02T02:00:00Z".parse().unwrap();
    assert_eq!(local(time, &zone), "2026-03-02T04:00:00+02:00");
    assert_eq!(local(time, &TimeZone::UTC), "2026-03-02T02:00:00Z");
}
