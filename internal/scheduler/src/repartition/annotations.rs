//! What a Node's labels and annotations say about MIG: the requested configuration, the state, and
//! the configurations that its agent can apply.

use k8s_openapi::api::core::v1 as k8s;
use resources::mig::{self, ChosenConfiguration};
use resources::names::{
    MIG_CONFIG, MIG_CONFIG_STATE, MIG_PENDING, MIG_REBOOTING, MIG_SUCCESS, NVIDIA_GPU, NVIDIA_MIG,
};

use super::choose::GpuConfiguration;
use crate::resource::{Ix, ResourceNames};

/// The state of a node's MIG configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MigState {
    /// No configuration is requested, or the requested one is applied.
    Settled,
    /// The configuration is being applied.
    Changing,
    /// It cannot be applied, or the state is unknown.
    Failed,
}

/// A node's MIG labels and annotations.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MigAnnotations {
    /// The requested configuration.
    pub(crate) asked: Option<String>,
    pub(crate) state: MigState,
    /// The scheduler's last choice for the node.
    pub(crate) choice: Option<ChosenConfiguration>,
    /// The configurations that its agent can apply, by name.
    pub(crate) cuts: Vec<GpuConfiguration>,
}

impl MigAnnotations {
    /// Reads a node; `None` if it says nothing about MIG.
    pub(crate) fn read(node: &k8s::Node, names: &mut ResourceNames) -> Option<MigAnnotations> {
        let label = |name: &str| {
            let labels = node.metadata.labels.as_ref()?;
            labels.get(name).filter(|value| !value.is_empty())
        };
        let annotations = node.metadata.annotations.as_ref();
        let possible = mig::possible(annotations);
        let state = label(MIG_CONFIG_STATE).map(String::as_str);
        if possible.is_none() && state.is_none() {
            return None;
        }
        let asked = label(MIG_CONFIG).cloned();
        let gives = |devices: &std::collections::BTreeMap<String, u32>,
                     names: &mut ResourceNames| {
            let known = |name: &str| name == NVIDIA_GPU || name.starts_with(NVIDIA_MIG);
            let all = devices.iter().filter(|(name, _)| known(name));
            let all = all.map(|(name, count)| {
                let ix = names.intern(name);
                (ix, i64::from(*count).saturating_mul(names.unit(ix)))
            });
            all.collect::<Vec<(Ix, i64)>>()
        };
        let cuts = possible.unwrap_or_default();
        let cuts = cuts.into_iter().map(|(name, devices)| GpuConfiguration {
            name: name.into(),
            gives: gives(&devices, names),
        });
        Some(MigAnnotations {
            state: match state {
                Some(MIG_PENDING | MIG_REBOOTING) => MigState::Changing,
                Some(MIG_SUCCESS) => MigState::Settled,
                Some(_) => MigState::Failed,
                // The agent has not reported on it yet.
                None if asked.is_some() => MigState::Changing,
                None => MigState::Settled,
            },
            asked,
            choice: mig::choice(annotations),
            cuts: cuts.collect(),
        })
    }

    /// True if no configuration was requested except by a scheduler.
    pub(crate) fn is_ours(&self) -> bool {
        let chosen = self.choice.as_ref().map(|choice| &choice.configuration);
        self.asked.is_none() || self.asked.as_ref() == chosen
    }

    /// The devices once the requested configuration is applied, if known.
    pub(crate) fn promised(&self) -> Option<&GpuConfiguration> {
        let asked = self.asked.as_deref()?;
        self.cuts.iter().find(|cut| *cut.name == *asked)
    }
}
