//! A LeaderWorkerSet's spec with its defaults, and the names of its parts.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::kinds::{
    LeaderWorkerSet, LeaderWorkerSetSpec, LeaderWorkerTemplate, SubGroupPolicy,
};
use resources::leader_worker_set::{
    self, KIND, LEADER_EXCLUDED, LEADER_READY, RECREATE_AFTER_START, RECREATE_ON_RESTART, UNIQUE,
};
use resources::numbers::GANG_MEMBERS_MAX;

use super::API_VERSION;
use crate::apps::{FindClaim, PodClaims, amount};

/// What follows the end of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestartPolicy {
    /// The whole group is created again.
    Group,
    /// The whole group is created again, once all its pods have started.
    GroupAfterStart,
    /// The pod is.
    Pod,
}

/// A set's spec with its defaults.
pub(crate) struct ParsedSet<'a> {
    pub(crate) meta: &'a ObjectMeta,
    pub(crate) name: &'a str,
    pub(crate) spec: &'a LeaderWorkerSetSpec,
    pub(crate) replicas: u32,
    pub(crate) partition: u32,
    pub(crate) max_unavailable: u32,
    pub(crate) max_surge: u32,
    /// Whether all groups have one subdomain.
    pub(crate) shared: bool,
}

impl<'a> ParsedSet<'a> {
    pub(crate) fn of(set: &'a LeaderWorkerSet) -> ParsedSet<'a> {
        let spec = &set.spec;
        let number = |given: Option<i32>, usual: u32| {
            given.map_or(usual, |given| u32::try_from(given).unwrap_or(0))
        };
        let replicas = number(spec.replicas, 1);
        let strategy = spec.rollout_strategy.as_ref();
        let rolling = strategy.and_then(|strategy| strategy.rolling_update_configuration.as_ref());
        let of_replicas = |count: i64| u32::try_from(count).unwrap_or(u32::MAX).min(replicas);
        let unavailable = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
        let surge = rolling.and_then(|rolling| rolling.max_surge.as_ref());
        let total = i64::from(replicas);
        let network = spec.network_config.as_ref();
        let subdomain = network.and_then(|network| network.subdomain_policy.as_deref());
        ParsedSet {
            meta: &set.metadata,
            name: set.metadata.name.as_deref().unwrap_or_default(),
            spec,
            replicas,
            partition: number(rolling.and_then(|rolling| rolling.partition), 0),
            max_unavailable: match unavailable {
                None => 1,
                given => of_replicas(amount(given, total, false)),
            },
            max_surge: of_replicas(amount(surge, total, true)),
            shared: subdomain != Some(UNIQUE),
        }
    }

    /// The name of a group's leader.
    pub(crate) fn leader_name(&self, index: u32) -> String {
        self.pod_name(index, 0)
    }

    /// The name of a pod; number 0 is the leader.
    pub(crate) fn pod_name(&self, index: u32, worker: u32) -> String {
        leader_worker_set::pod_name(self.name, index, worker)
    }

    /// The group's and the pod's number in a pod's name.
    pub(crate) fn numbers(&self, pod: &str) -> Option<(u32, u32)> {
        let rest = pod.strip_prefix(self.name)?.strip_prefix('-')?;
        let (index, worker) = match rest.split_once('-') {
            None => (rest.parse().ok()?, 0),
            Some((index, worker)) => (index.parse().ok()?, worker.parse().ok()?),
        };
        // `vllm-01` is not the leader of group 1.
        (self.pod_name(index, worker) == pod).then_some((index, worker))
    }

    /// The claims of its pods. Their templates do not change.
    pub(crate) fn claims<'f>(&self, find: FindClaim<'f>) -> PodClaims<'a, 'f> {
        let template = &self.spec.leader_worker_template;
        let policy = template.persistent_volume_claim_retention_policy.as_ref();
        PodClaims {
            owner: self.meta,
            api_version: API_VERSION,
            kind: KIND,
            templates: template
                .volume_claim_templates
                .as_deref()
                .unwrap_or_default(),
            policy,
            find,
        }
    }

    /// The group that a Service of its own is for.
    pub(crate) fn group_of_service(&self, name: &str) -> Option<u32> {
        let (index, worker) = self.numbers(name)?;
        (worker == 0).then_some(index)
    }

    /// The name of the subdomain, and of the headless Service, of a group.
    pub(crate) fn subdomain(&self, index: u32) -> String {
        match self.shared {
            true => self.name.to_owned(),
            false => self.leader_name(index),
        }
    }

    /// Whether workers wait for their leader.
    pub(crate) fn leader_first(&self) -> bool {
        self.spec.startup_policy.as_deref() == Some(LEADER_READY)
    }

    pub(crate) fn restart_policy(&self) -> RestartPolicy {
        match self.spec.leader_worker_template.restart_policy.as_deref() {
            None | Some("" | RECREATE_ON_RESTART) => RestartPolicy::Group,
            Some(RECREATE_AFTER_START) => RestartPolicy::GroupAfterStart,
            Some(_) => RestartPolicy::Pod,
        }
    }
}

/// The pods of a group by one revision of the set.
pub(crate) struct GroupPlan<'a> {
    pub(crate) revision: String,
    pub(crate) template: &'a LeaderWorkerTemplate,
    /// The pods of the group.
    pub(crate) size: u32,
    /// Whether workers wait for their leader.
    pub(crate) leader_first: bool,
}

impl<'a> GroupPlan<'a> {
    pub(crate) fn new(
        set: &ParsedSet<'_>,
        revision: &str,
        template: &'a LeaderWorkerTemplate,
    ) -> GroupPlan<'a> {
        GroupPlan {
            revision: revision.to_owned(),
            template,
            size: size_of(template),
            leader_first: set.leader_first(),
        }
    }

    /// The template of a pod.
    pub(crate) fn of(&self, worker: u32) -> &'a PodTemplateSpec {
        let leader = self.template.leader_template.as_ref();
        let leader = leader.filter(|_| worker == 0);
        leader.unwrap_or(&self.template.worker_template)
    }

    /// The number of a pod's subgroup.
    pub(crate) fn subgroup(&self, worker: u32) -> Option<u32> {
        let policy = self.template.sub_group_policy.as_ref()?;
        let size = subgroup_size(policy)?;
        let excluded = policy.type_.as_deref() == Some(LEADER_EXCLUDED);
        if worker == 0 {
            return (!excluded).then_some(0);
        }
        // The leader is one pod more than the subgroups have.
        let extra = (self.size - 1).is_multiple_of(size) && !self.size.is_multiple_of(size);
        Some(if excluded || extra {
            (worker - 1) / size
        } else {
            worker / size
        })
    }
}

/// The pods of a subgroup.
pub(crate) fn subgroup_size(policy: &SubGroupPolicy) -> Option<u32> {
    let size = u32::try_from(policy.sub_group_size?).ok()?;
    (size > 0).then_some(size)
}

/// The pods of a group, within the bound of a gang.
pub(crate) fn size_of(template: &LeaderWorkerTemplate) -> u32 {
    let most = u32::try_from(GANG_MEMBERS_MAX).unwrap_or(u32::MAX);
    let size = template.size.unwrap_or(1);
    u32::try_from(size).unwrap_or(1).clamp(1, most)
}
