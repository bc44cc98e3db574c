//! A gang's structure as its PodGroup states it: its topology request, its sub-groups, and
//! Volcano's policies that form sub-groups by pods' labels. Read once; `place` places it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use resources::kinds::{NetworkTopologySpec, PodGroup};
use resources::names::{SUB_GROUPS, TOPOLOGY};
use resources::selector::LabelSelector;
use serde::Deserialize;
use serde_json::Value;

use super::{TopologyError, TopologyRequest};

/// The most sub-groups of one gang.
pub(super) const SUB_GROUPS_MAX: usize = 4_096;

/// The structure of one gang.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct GangShape {
    pub(crate) request: TopologyRequest,
    pub(crate) sub_groups: Vec<SubGroup>,
    pub(crate) policies: Vec<LabelGrouping>,
    /// An error in it: the gang waits and its report says so.
    pub(crate) problem: Option<String>,
}

/// A named part of the gang. Sub-groups without children hold pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SubGroup {
    pub(crate) name: Arc<str>,
    pub(crate) parent: Option<Arc<str>>,
    /// The number of its own pods that must start together; all its children must start in any
    /// case.
    pub(crate) minimum: usize,
    pub(crate) request: TopologyRequest,
}

/// Forms a sub-group of the pods that share the values of some labels.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LabelGrouping {
    pub(crate) name: Arc<str>,
    pub(crate) keys: Vec<String>,
    selector: Option<LabelSelector>,
    /// The number of pods that one sub-group needs.
    pub(crate) size: usize,
    /// The number of sub-groups that must start.
    pub(crate) least: usize,
    pub(crate) request: TopologyRequest,
}

impl LabelGrouping {
    /// The sub-group of a pod with these labels.
    pub(crate) fn part(&self, labels: &BTreeMap<String, String>) -> Option<Arc<str>> {
        if self
            .selector
            .as_ref()
            .is_some_and(|selector| !selector.matches(labels))
        {
            return None;
        }
        let mut name = self.name.to_string();
        for key in &self.keys {
            name.push('/');
            name.push_str(labels.get(key)?);
        }
        Some(Arc::from(name))
    }

    /// True if this policy formed the sub-group of this name.
    pub(crate) fn made(&self, part: &str) -> bool {
        part.strip_prefix(&*self.name)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenSubGroup {
    name: String,
    #[serde(default)]
    parent: Option<String>,
    #[serde(default)]
    min_member: Option<usize>,
    #[serde(default)]
    topology: Option<TopologyRequest>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenPolicy {
    name: String,
    #[serde(default)]
    sub_group_size: Option<usize>,
    #[serde(default)]
    min_sub_groups: Option<usize>,
    #[serde(default)]
    match_label_keys: Vec<Value>,
    #[serde(default)]
    label_selector: Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector>,
    #[serde(default)]
    network_topology: Option<NetworkTopologySpec>,
}

impl GangShape {
    pub(crate) fn read(group: &PodGroup) -> GangShape {
        let mut shape = GangShape::default();
        if let Err(problem) = shape.fill(group) {
            shape.problem = Some(problem.to_string());
        }
        shape
    }

    /// True if the gang has no sub-groups.
    pub(crate) fn is_plain(&self) -> bool {
        self.sub_groups.is_empty() && self.policies.is_empty()
    }

    fn fill(&mut self, group: &PodGroup) -> Result<(), TopologyError> {
        let spec = &group.spec;
        if let Some(tiers) = &spec.network_topology {
            self.request = TopologyRequest::of_tiers(tiers);
        }
        let annotation = |name: &str| {
            let all = group.metadata.annotations.as_ref();
            all.and_then(|all| all.get(name)).filter(|v| !v.is_empty())
        };
        if let Some(text) = annotation(TOPOLOGY) {
            self.request = TopologyRequest::parse(text)
                .map_err(|error| error.at(format!("annotation {TOPOLOGY} of the PodGroup")))?;
        }
        if let Some(text) = annotation(SUB_GROUPS) {
            let wrong =
                |error: TopologyError| error.at(format!("annotation {SUB_GROUPS} of the PodGroup"));
            let list: Vec<WrittenSubGroup> =
                serde_json::from_str(text).map_err(|error| wrong(error.into()))?;
            self.sub_groups = list.into_iter().map(SubGroup::from).collect();
            check(&self.sub_groups).map_err(wrong)?;
        }
        for value in spec.sub_group_policy.iter().flatten() {
            let wrong = |error: TopologyError| error.at("spec.subGroupPolicy");
            let written: WrittenPolicy =
                serde_json::from_value(value.clone()).map_err(|error| wrong(error.into()))?;
            self.policies
                .push(LabelGrouping::read(written).map_err(wrong)?);
        }
        Ok(())
    }
}

impl From<WrittenSubGroup> for SubGroup {
    fn from(written: WrittenSubGroup) -> SubGroup {
        SubGroup {
            name: Arc::from(written.name),
            parent: written
                .parent
                .filter(|parent| !parent.is_empty())
                .map(Arc::from),
            minimum: written.min_member.unwrap_or(0),
            request: written.topology.unwrap_or_default(),
        }
    }
}

impl LabelGrouping {
    fn read(written: WrittenPolicy) -> Result<LabelGrouping, TopologyError> {
        // Volcano writes each key plainly, or in an object.
        let key = |value: &Value| {
            let inner = value.get("labelKey").or_else(|| value.get("key"));
            let text = value.as_str().or_else(|| inner.and_then(Value::as_str));
            text.map(str::to_owned)
        };
        let selector = written.label_selector.as_ref().map(LabelSelector::from_k8s);
        Ok(LabelGrouping {
            name: Arc::from(written.name),
            keys: written.match_label_keys.iter().filter_map(key).collect(),
            selector: selector.transpose().map_err(TopologyError::Selector)?,
            size: written.sub_group_size.unwrap_or(1).max(1),
            least: written.min_sub_groups.unwrap_or(0),
            request: written
                .network_topology
                .as_ref()
                .map(TopologyRequest::of_tiers)
                .unwrap_or_default(),
        })
    }
}

fn check(list: &[SubGroup]) -> Result<(), TopologyError> {
    if list.len() > SUB_GROUPS_MAX {
        return Err(TopologyError::ManySubGroups);
    }
    let mut names: BTreeMap<&str, &SubGroup> = BTreeMap::new();
    for group in list {
        group.request.check()?;
        if group.name.is_empty() {
            return Err(TopologyError::NoName);
        }
        if names.insert(&group.name, group).is_some() {
            return Err(TopologyError::SameName(group.name.to_string()));
        }
    }
    for group in list {
        let mut seen = BTreeSet::from([&*group.name]);
        let mut at = group;
        while let Some(parent) = &at.parent {
            let Some(next) = names.get(&**parent) else {
                return Err(TopologyError::UnknownParent {
                    child: at.name.to_string(),
                    parent: parent.to_string(),
                });
            };
            if !seen.insert(parent) {
                return Err(TopologyError::Cycle(group.name.to_string()));
            }
            at = next;
        }
    }
    Ok(())
}
