//! How many pods can exist at all: what the nodes hold together, and what the namespace's quota
//! permits. Jobs create no pods that could never run, so that a job costs what can run and not what
//! it asks for. Where pods go, and which gang is first, is the scheduler's decision.
//!
//! A gang is created as a whole or not at all: with fewer pods than it needs, none would start. Up
//! to [`GANG_FLOOR`] members it is created whatever the nodes hold, because nodes may be added for
//! pods that wait; so are up to [`WAITING_FLOOR`] waiting pods of a job that is no gang.
//!
//! Example: 4 nodes hold 1,000 pods. A gang of 2,000 is created and waits; one of 2,001 is held
//! back. A job of single pods has at most 1,000 that wait for a node.

use resources::numbers::GANG_MEMBERS_MAX;

/// The members of a gang that are created whatever the nodes hold.
pub const GANG_FLOOR: u32 = 2_000;
/// The waiting pods of one job of single pods that are created whatever the nodes hold.
pub const WAITING_FLOOR: u32 = 256;
/// Seconds until a job that is held back for its cluster's size looks again.
pub(crate) const LOOK_AGAIN: i64 = 30;
/// The same for a quota, whose pods end at any time.
pub(crate) const QUOTA_LOOK_AGAIN: i64 = 2;

/// What bounds a job's pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodRoom {
    /// How many pods the nodes hold in all, by their `status.capacity.pods`; `None` if it is not
    /// known.
    pub nodes: Option<u64>,
    /// The namespace's quota for pods that leaves least; `None` without one.
    pub quota: Option<PodQuota>,
}

/// A quota for pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodQuota {
    /// How many pods it permits.
    pub hard: u64,
    /// How many of them exist.
    pub used: u64,
}

impl PodQuota {
    /// How many pods it leaves.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.hard.saturating_sub(self.used)
    }
}

/// Why a job's pods are not created, with numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldBack {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// Seconds until the job looks again.
    pub(crate) again: i64,
}

impl PodRoom {
    /// The most members of one gang.
    pub(crate) fn members_max(&self) -> u32 {
        let most = u32::try_from(GANG_MEMBERS_MAX).unwrap_or(u32::MAX);
        let nodes = self.nodes.unwrap_or(u64::MAX);
        let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
        nodes.max(GANG_FLOOR).min(most)
    }

    /// The most waiting pods of a job of single pods, of which `most` may wait at most.
    pub(crate) fn waiting_max(&self, most: u32) -> u32 {
        let nodes = self.nodes.unwrap_or(u64::MAX);
        let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
        nodes.max(WAITING_FLOOR).min(most)
    }

    /// How many pods the quota leaves.
    pub(crate) fn quota_left(&self) -> u32 {
        let left = self.quota.map_or(u64::MAX, |quota| quota.left());
        u32::try_from(left).unwrap_or(u32::MAX)
    }

    /// Why a gang that has no pods yet and starts with `members` of them is not created.
    pub(crate) fn holds_back(&self, members: u32) -> Option<HeldBack> {
        let most = self.members_max();
        if members > most {
            let nodes = self.nodes.unwrap_or_default();
            return Some(HeldBack {
                reason: "ClusterTooSmall",
                again: LOOK_AGAIN,
                message: format!(
                    "{members} pods must start together, and the nodes hold {nodes} pods in all \
                     (status.capacity.pods); no pod is created above {most}. Lower the number of replicas, or add nodes."
                ),
            });
        }
        let quota = self.quota?;
        let (hard, left) = (quota.hard, quota.left());
        if u64::from(members) > hard {
            return Some(HeldBack {
                reason: "QuotaTooSmall",
                again: QUOTA_LOOK_AGAIN,
                message: format!(
                    "{members} pods must start together, and the namespace's ResourceQuota permits {hard} pods; no pod \
                     is created. Lower the number of replicas, or have the quota raised."
                ),
            });
        }
        (u64::from(members) > left).then(|| HeldBack {
            reason: "QuotaExhausted",
            again: QUOTA_LOOK_AGAIN,
            message: format!(
                "{members} pods must start together, and the namespace's ResourceQuota leaves {left} of {hard} pods; \
                 they are created together once it leaves enough. Delete other pods, or have the quota raised."
            ),
        })
    }

    /// Why a job of single pods, of which `missing` are missing, gets none now.
    pub(crate) fn spent(&self, missing: u32) -> Option<HeldBack> {
        let quota = self.quota.filter(|quota| quota.left() == 0)?;
        (missing > 0).then(|| HeldBack {
            reason: "QuotaExhausted",
            again: QUOTA_LOOK_AGAIN,
            message: format!(
                "{missing} pods are missing, and the namespace's ResourceQuota leaves 0 of {} pods; they are created \
                 once it leaves some. Delete other pods, or have the quota raised.",
                quota.hard
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(nodes: Option<u64>, quota: Option<(u64, u64)>) -> PodRoom {
        let quota = quota.map(|(hard, used)| PodQuota { hard, used });
        PodRoom { nodes, quota }
    }

    #[test]
    fn a_gang_is_held_back_only_above_what_can_exist() {
        for (nodes, quota, members, reason) in [
            (None, None, 20_000, None),
            (Some(0), None, GANG_FLOOR, None),
            (Some(0), None, GANG_FLOOR + 1, Some("ClusterTooSmall")),
            (Some(3_000), None, 3_000, None),
            (Some(3_000), None, 3_001, Some("ClusterTooSmall")),
            (Some(1 << 40), None, 20_000, None),
            (None, Some((10, 0)), 10, None),
            (None, Some((10, 0)), 11, Some("QuotaTooSmall")),
            (None, Some((10, 3)), 7, None),
            (None, Some((10, 3)), 8, Some("QuotaExhausted")),
            // More is used than is permitted now.
            (None, Some((10, 12)), 1, Some("QuotaExhausted")),
        ] {
            let held = room(nodes, quota).holds_back(members);
            assert_eq!(
                held.as_ref().map(|held| held.reason),
                reason,
                "{members} {held:?}"
            );
            let named = held.is_none_or(|held| held.message.contains(&members.to_string()));
            assert!(named);
        }
    }

    #[test]
    fn waiting_pods_are_bounded_by_the_nodes_above_a_floor() {
        for (nodes, most) in [
            (None, 2_000),
            (Some(0), WAITING_FLOOR),
            (Some(u64::from(WAITING_FLOOR)), WAITING_FLOOR),
            (Some(1_000), 1_000),
            (Some(5_000), 2_000),
        ] {
            assert_eq!(room(nodes, None).waiting_max(2_000), most, "{nodes:?}");
        }
        assert_eq!(room(None, None).quota_left(), u32::MAX);
        assert_eq!(room(None, Some((10, 3))).quota_left(), 7);
        assert!(room(None, Some((10, 10))).spent(1).is_some());
        assert!(room(None, Some((10, 10))).spent(0).is_none());
        assert!(room(None, Some((10, 9))).spent(5).is_none());
    }
}
