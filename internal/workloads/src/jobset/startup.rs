//! Which jobs of a JobSet may start: `startupPolicy` and `dependsOn`.

use resources::kinds::{JobSetStatus, ReplicatedJobStatus};

use super::children::Children;
use super::plan::{ParsedJobSet, ParsedReplicatedJob};

/// The jobs whose Jobs exist or may be created.
pub(crate) fn open<'p, 'a>(
    plan: &'p ParsedJobSet<'a>,
    children: &Children<'_>,
    status: &JobSetStatus,
) -> Vec<&'p ParsedReplicatedJob<'a>> {
    let mut turn = true;
    let mut open = Vec::new();
    for job in &plan.jobs {
        let exists = children.of_job(job).next().is_some();
        if exists || (turn && dependencies_met(plan, job, status)) {
            open.push(job);
        }
        if plan.in_order() && !is_started(job, status) {
            turn = false;
        }
    }
    open
}

/// Whether all jobs have started, of a JobSet that starts them in order.
pub(crate) fn is_complete(plan: &ParsedJobSet<'_>, status: &JobSetStatus) -> bool {
    plan.jobs.iter().all(|job| is_started(job, status))
}

/// Whether all Jobs of a job are complete.
pub(crate) fn is_done(job: &ParsedReplicatedJob<'_>, status: &JobSetStatus) -> bool {
    let counts = counts(status, job.name);
    counts.is_some_and(|counts| positive(counts.succeeded) >= job.replicas)
}

fn counts<'s>(status: &'s JobSetStatus, name: &str) -> Option<&'s ReplicatedJobStatus> {
    let mut all = status.replicated_jobs_status.iter();
    all.find(|counts| counts.name == name)
}

fn positive(number: i32) -> u32 {
    u32::try_from(number).unwrap_or_default()
}

fn is_started(job: &ParsedReplicatedJob<'_>, status: &JobSetStatus) -> bool {
    let counts = counts(status, job.name);
    counts.is_some_and(|counts| {
        let began = [counts.ready, counts.succeeded, counts.failed];
        began.map(positive).into_iter().fold(0, u32::saturating_add) >= job.replicas
    })
}

fn dependencies_met(
    plan: &ParsedJobSet<'_>,
    job: &ParsedReplicatedJob<'_>,
    status: &JobSetStatus,
) -> bool {
    job.depends_on.iter().all(|dependency| {
        // Admission refuses a job that does not exist.
        plan.job(&dependency.name)
            .is_none_or(|other| match dependency.status.as_str() {
                "Complete" => is_done(other, status),
                _ => is_started(other, status),
            })
    })
}
