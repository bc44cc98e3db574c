//! A JobSet as read: defaults are filled in, and numbers are not negative.

use k8s_openapi::api::batch::v1::{JobSpec, JobTemplateSpec};
use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::jobset;
use resources::kinds::{JobSet, JobSetSpec, ReplicatedJob, ReplicatedJobDependency};

/// A JobSet as read.
pub(crate) struct ParsedJobSet<'a> {
    pub(crate) meta: &'a ObjectMeta,
    pub(crate) spec: &'a JobSetSpec,
    pub(crate) jobs: Vec<ParsedReplicatedJob<'a>>,
}

/// One replicated job as read.
pub(crate) struct ParsedReplicatedJob<'a> {
    pub(crate) name: &'a str,
    pub(crate) group: &'a str,
    /// How many Jobs it has.
    pub(crate) replicas: u32,
    /// The pods of one of its Jobs that run at a time.
    pub(crate) at_once: u32,
    /// The completion indexes of one of its Jobs.
    pub(crate) indexes: u32,
    pub(crate) template: &'a JobTemplateSpec,
    pub(crate) depends_on: &'a [ReplicatedJobDependency],
    /// The Jobs of the jobs before it.
    pub(crate) first_job: u32,
    /// The completion indexes of the jobs before it.
    pub(crate) first_rank: u32,
}

impl<'a> ParsedJobSet<'a> {
    pub(crate) fn of(job_set: &'a JobSet) -> ParsedJobSet<'a> {
        let mut jobs: Vec<ParsedReplicatedJob<'a>> = Vec::new();
        for job in &job_set.spec.replicated_jobs {
            let after = jobs.last().map_or((0, 0), ParsedReplicatedJob::end);
            jobs.push(ParsedReplicatedJob::of(job, after));
        }
        ParsedJobSet {
            meta: &job_set.metadata,
            spec: &job_set.spec,
            jobs,
        }
    }

    pub(crate) fn name(&self) -> &'a str {
        self.meta.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn uid(&self) -> &'a str {
        self.meta.uid.as_deref().unwrap_or_default()
    }

    pub(crate) fn suspended(&self) -> bool {
        self.spec.suspend == Some(true)
    }

    /// Whether another controller runs it.
    pub(crate) fn managed_elsewhere(&self) -> bool {
        let manager = self.spec.managed_by.as_deref();
        manager.is_some_and(|manager| manager != jobset::MANAGER)
    }

    pub(crate) fn job(&self, name: &str) -> Option<&ParsedReplicatedJob<'a>> {
        self.jobs.iter().find(|job| job.name == name)
    }

    /// The name of one Job.
    pub(crate) fn job_name(&self, job: &ParsedReplicatedJob<'_>, index: u32) -> String {
        format!("{}-{}-{index}", self.name(), job.name)
    }

    /// How many Jobs there are.
    pub(crate) fn replicas(&self) -> u32 {
        self.jobs.last().map_or(0, |job| job.end().0)
    }

    /// Whether pods have names.
    pub(crate) fn has_host_names(&self) -> bool {
        let network = self.spec.network.as_ref();
        network.and_then(|network| network.enable_dns_hostnames) != Some(false)
    }

    /// The subdomain of those names, and the Service's name.
    pub(crate) fn subdomain(&self) -> &'a str {
        let network = self.spec.network.as_ref();
        let given = network.and_then(|network| network.subdomain.as_deref());
        given
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| self.name())
    }

    /// Whether jobs start one after the other.
    pub(crate) fn in_order(&self) -> bool {
        let policy = self.spec.startup_policy.as_ref();
        policy.is_some_and(|policy| policy.startup_policy_order == "InOrder")
    }
}

impl<'a> ParsedReplicatedJob<'a> {
    fn of(job: &'a ReplicatedJob, (first_job, first_rank): (u32, u32)) -> ParsedReplicatedJob<'a> {
        let spec = job.template.spec.as_ref();
        let parallelism = spec.and_then(|spec| count(spec.parallelism)).unwrap_or(1);
        let completions = spec.and_then(|spec| count(spec.completions));
        ParsedReplicatedJob {
            name: &job.name,
            group: job.group_name.as_deref().unwrap_or("default"),
            replicas: count(job.replicas).unwrap_or(1),
            at_once: completions.map_or(parallelism, |all| all.min(parallelism)),
            indexes: completions.unwrap_or(parallelism),
            template: &job.template,
            depends_on: job.depends_on.as_deref().unwrap_or_default(),
            first_job,
            first_rank,
        }
    }

    /// The Jobs and the completion indexes of this job and of those before it.
    fn end(&self) -> (u32, u32) {
        let indexes = self.replicas.saturating_mul(self.indexes);
        (
            self.first_job.saturating_add(self.replicas),
            self.first_rank.saturating_add(indexes),
        )
    }

    /// The pods of all its Jobs that run at a time.
    pub(crate) fn pods(&self) -> u32 {
        self.replicas.saturating_mul(self.at_once)
    }

    pub(crate) fn spec(&self) -> Option<&'a JobSpec> {
        self.template.spec.as_ref()
    }

    pub(crate) fn pod_spec(&self) -> Option<&'a PodSpec> {
        self.spec()?.template.spec.as_ref()
    }
}

fn count(number: Option<i32>) -> Option<u32> {
    number.map(|number| u32::try_from(number).unwrap_or_default())
}
