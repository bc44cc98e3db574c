//! The topology request of a gang, sub-group or task: as written, and resolved to levels of the
//! tree.

use std::collections::BTreeMap;

use resources::invalid_value::InvalidValue;
use resources::kinds::{NetworkTopologyMode, NetworkTopologySpec};
use resources::names::{
    KUEUE_PREFERRED_TOPOLOGY, KUEUE_REQUIRED_TOPOLOGY, KUEUE_SLICE_REQUIRED_TOPOLOGY,
    KUEUE_SLICE_SIZE, KUEUE_UNCONSTRAINED_TOPOLOGY,
};
use serde::Deserialize;

use super::{DomainTree, Level, TopologyError};

/// The most layers of slices in one request.
pub(super) const SLICES_MAX: usize = 8;

/// A request as written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TopologyRequest {
    /// All pods in one domain of this level.
    pub(crate) required: Option<String>,
    /// In as narrow a domain as possible, at this level or wider.
    pub(crate) preferred: Option<String>,
    /// Every domain of a level holds a multiple of the size; outermost layer first.
    pub(crate) slices: Vec<PodSlice>,
    /// Any nodes; the smallest free ones first.
    pub(crate) unconstrained: bool,
    /// If several domains are needed: equal shares instead of full domains.
    pub(crate) balanced: bool,
    /// Volcano's tier: 1 is the narrowest level above the host.
    #[serde(skip)]
    pub(crate) tier: Option<u32>,
    /// Volcano's soft mode: the narrowest level is preferred.
    #[serde(skip)]
    pub(crate) soft: bool,
}

/// A number of pods that must not straddle a domain.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PodSlice {
    pub(crate) level: String,
    pub(crate) size: u32,
}

impl TopologyRequest {
    /// Reads the JSON of `muster.io/topology`; see [`TopologyError`] for what it refuses.
    pub(crate) fn parse(text: &str) -> Result<TopologyRequest, TopologyError> {
        let request: TopologyRequest = serde_json::from_str(text)?;
        request.check()?;
        Ok(request)
    }

    pub(crate) fn check(&self) -> Result<(), TopologyError> {
        if let Some(slice) = self.slices.iter().find(|slice| slice.size == 0) {
            return Err(TopologyError::SliceSize {
                level: slice.level.clone(),
            });
        }
        if self.slices.len() > SLICES_MAX {
            return Err(TopologyError::ManySlices);
        }
        for pair in self.slices.windows(2) {
            if pair[0].size % pair[1].size != 0 {
                return Err(TopologyError::SliceRatio {
                    outer: pair[0].size,
                    inner: pair[1].size,
                });
            }
        }
        Ok(())
    }

    /// Reads Volcano's `networkTopology`.
    pub(crate) fn of_tiers(spec: &NetworkTopologySpec) -> TopologyRequest {
        let hard = spec.mode.unwrap_or_default() == NetworkTopologyMode::Hard;
        if !hard {
            return TopologyRequest {
                soft: true,
                ..TopologyRequest::default()
            };
        }
        let named = spec
            .highest_tier_name
            .clone()
            .filter(|name| !name.is_empty());
        TopologyRequest {
            required: named,
            tier: spec
                .highest_tier_allowed
                .and_then(|tier| u32::try_from(tier).ok())
                .filter(|tier| *tier > 0),
            ..TopologyRequest::default()
        }
    }

    /// Reads Kueue's annotations on pods; `None` if there are none.
    pub(crate) fn of_kueue(
        annotations: &BTreeMap<String, String>,
    ) -> Option<Result<TopologyRequest, TopologyError>> {
        let given = |name: &str| annotations.get(name).filter(|value| !value.is_empty());
        let level = |name: &str| given(name).cloned();
        let mut request = TopologyRequest {
            required: level(KUEUE_REQUIRED_TOPOLOGY),
            preferred: level(KUEUE_PREFERRED_TOPOLOGY),
            unconstrained: given(KUEUE_UNCONSTRAINED_TOPOLOGY).is_some_and(|value| value == "true"),
            ..TopologyRequest::default()
        };
        match (
            level(KUEUE_SLICE_REQUIRED_TOPOLOGY),
            given(KUEUE_SLICE_SIZE),
        ) {
            (Some(level), Some(size)) => match size.parse() {
                Ok(size) if size > 0 => request.slices.push(PodSlice { level, size }),
                _ => {
                    let field = format!("annotation {KUEUE_SLICE_SIZE}");
                    let error = InvalidValue::new(field, size, "a whole number of 1 or more");
                    return Some(Err(error.into()));
                }
            },
            (Some(_), None) => {
                return Some(Err(TopologyError::NoSliceSize));
            }
            (None, _) => {}
        }
        (request != TopologyRequest::default()).then_some(Ok(request))
    }

    /// True if it requests nothing.
    pub(crate) fn is_free(&self) -> bool {
        *self == TopologyRequest::default()
    }

    /// Resolves the request to the tree's levels; the error names an unknown level.
    pub(crate) fn resolve(&self, tree: &DomainTree) -> Result<LevelRequest, TopologyError> {
        let level = |key: &String| {
            tree.level(key).ok_or_else(|| {
                let known: Vec<&str> = tree.keys().chain([super::HOST]).collect();
                TopologyError::UnknownLevel {
                    key: key.clone(),
                    known: known.join(", "),
                }
            })
        };
        let mut wish = LevelRequest {
            required: self.required.as_ref().map(level).transpose()?,
            preferred: self.preferred.as_ref().map(level).transpose()?,
            unconstrained: self.unconstrained,
            balanced: self.balanced,
            slices: Vec::new(),
        };
        if let Some(tier) = self.tier.filter(|_| wish.required.is_none()) {
            // Tiers beyond the widest level mean the whole cluster.
            let used = tree.used();
            let at = used.len().checked_sub(tier as usize);
            wish.required = at.map(|at| used[at]);
        }
        if self.soft && wish.preferred.is_none() {
            wish.preferred = tree.used().last().copied();
        }
        for slice in &self.slices {
            wish.slices.push((level(&slice.level)?, slice.size));
        }
        // A slice of size 1 is no constraint.
        wish.slices.retain(|(_, size)| *size > 1);
        if wish.slices.windows(2).any(|pair| pair[0].0 > pair[1].0) {
            return Err(TopologyError::SliceOrder);
        }
        let asked = wish.required.or(wish.preferred);
        if let (Some(asked), Some((slice, _))) = (asked, wish.slices.first())
            && *slice < asked
        {
            return Err(TopologyError::WideSlice);
        }
        // A preferred level at least as wide as the required one adds nothing.
        if let (Some(required), Some(preferred)) = (wish.required, wish.preferred)
            && preferred <= required
        {
            wish.preferred = None;
        }
        Ok(wish)
    }
}

/// A topology request in the tree's levels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LevelRequest {
    pub(crate) required: Option<Level>,
    pub(crate) preferred: Option<Level>,
    pub(crate) slices: Vec<(Level, u32)>,
    pub(crate) unconstrained: bool,
    pub(crate) balanced: bool,
}

impl LevelRequest {
    /// True if the domain does not matter.
    pub(crate) fn is_free(&self) -> bool {
        self.required.is_none() && self.preferred.is_none() && self.slices.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_request_names_the_value_and_what_to_write() {
        for (text, message) in [
            (
                r#"{"slices": [{"level": "rack", "size": 0}]}"#,
                "the slice size at rack is 0; write 1 or more",
            ),
            (
                r#"{"slices": [{"level": "rack", "size": 4}, {"level": "host", "size": 3}]}"#,
                "a slice of 4 does not divide into slices of 3; write a multiple of 3",
            ),
        ] {
            let error = TopologyRequest::parse(text).unwrap_err();
            assert_eq!(error.to_string(), message);
            let error = error.at("annotation a of a pod").to_string();
            assert_eq!(error, format!("annotation a of a pod: {message}"));
        }
        let annotations = BTreeMap::from([
            (KUEUE_SLICE_REQUIRED_TOPOLOGY.to_owned(), "rack".to_owned()),
            (KUEUE_SLICE_SIZE.to_owned(), "two".to_owned()),
        ]);
        let error = TopologyRequest::of_kueue(&annotations)
            .unwrap()
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "annotation {KUEUE_SLICE_SIZE}: \"two\" is not usable; write a whole number of 1 or more"
            )
        );
    }
}
