//! Finds a claim's devices on this node from its allocation. Pure. The scheduler ensures that no
//! two claims have the same device; this is the last check of that.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::ResourceClaim;

use super::DRIVER;
use super::claimable::Claimable;
use super::prepared::{Prepared, PreparedDevice};

/// Why a claim can't have its devices on this node. The pod's events show it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// A device was allocated on another node.
    #[error(
        "device {device} was allocated from pool {pool}, and this is node {node}; delete the pod so that \
         it is scheduled again"
    )]
    OtherNode {
        /// The device.
        device: String,
        /// The pool from which it was allocated.
        pool: String,
        /// This node.
        node: String,
    },
    /// Nothing of this driver is allocated to the claim.
    #[error("nothing of {} is allocated to the claim", DRIVER)]
    Nothing,
    /// The node has no such device.
    #[error(
        "this node has no device {device} any more; delete the pod so that it is scheduled again"
    )]
    NoDevice {
        /// The device.
        device: String,
    },
    /// The device must not be allocated.
    #[error("{problem}; delete the pod so that it is scheduled again")]
    Unwell {
        /// The device's problem.
        problem: String,
    },
    /// Another claim has the device or a part of it.
    #[error(
        "{device} is, in whole or in part, claim {namespace}/{name}'s until the kubelet has ended the pods \
         that use it"
    )]
    Claimed {
        /// The device.
        device: String,
        /// The other claim's namespace.
        namespace: String,
        /// The other claim.
        name: String,
    },
    /// A pod has the device from the device plugin.
    #[error(
        "a pod that got {device} from the device plugin still runs; the device is free when that pod has ended"
    )]
    Plugin {
        /// The device.
        device: String,
    },
}

/// The devices that this driver on this node must give to a claim.
///
/// # Errors
///
/// Nothing is allocated here.
pub fn allocated(claim: &ResourceClaim, pool: &str) -> Result<Vec<PreparedDevice>, GrantError> {
    let allocation = claim.status.as_ref().and_then(|it| it.allocation.as_ref());
    let results = allocation.and_then(|it| it.devices.as_ref()?.results.as_ref());
    let ours = results
        .into_iter()
        .flatten()
        .filter(|it| it.driver == DRIVER);
    let mut all = Vec::new();
    for result in ours {
        if result.pool != pool {
            return Err(GrantError::OtherNode {
                device: result.device.clone(),
                pool: result.pool.clone(),
                node: pool.to_owned(),
            });
        }
        all.push(PreparedDevice {
            request: result.request.clone(),
            device: result.device.clone(),
            admin: result.admin_access == Some(true),
        });
    }
    if all.is_empty() {
        return Err(GrantError::Nothing);
    }
    Ok(all)
}

/// Looks up the devices. Those of a prepared claim stay, healthy or not: the scheduler ends the
/// work that uses them.
///
/// # Errors
///
/// A device is not available.
pub fn devices<'a>(
    uid: &str,
    given: &[PreparedDevice],
    machine: &'a [Claimable],
    prepared: &[Prepared],
    held: &BTreeSet<String>,
) -> Result<Vec<&'a Claimable>, GrantError> {
    let again = (prepared.iter()).any(|it| it.uid == uid && it.devices == given);
    let mut all = Vec::new();
    for one in given {
        let found = machine.iter().find(|it| it.device.name == one.device);
        let device = found.ok_or_else(|| GrantError::NoDevice {
            device: one.device.clone(),
        })?;
        all.push(device);
        if again {
            continue;
        }
        if !device.problem.is_empty() {
            let problem = device.problem.clone();
            return Err(GrantError::Unwell { problem });
        }
        if one.admin {
            continue;
        }
        let others = prepared.iter().filter(|it| it.uid != uid);
        let mut has = others.filter(|it| {
            let same = |other: &PreparedDevice| {
                let found = machine.iter().find(|it| it.device.name == other.device);
                let overlaps = found.is_some_and(|found| found.overlaps(device));
                !other.admin && (other.device == one.device || overlaps)
            };
            let cut = it.cuts.values().any(|cut| cut.slice == device.id);
            it.devices.iter().any(same) || cut
        });
        if let Some(other) = has.next() {
            return Err(GrantError::Claimed {
                device: one.device.clone(),
                namespace: other.namespace.clone(),
                name: other.name.clone(),
            });
        }
        if held.contains(&device.id) {
            let device = one.device.clone();
            return Err(GrantError::Plugin { device });
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::resource::v1::Device;
    use serde_json::json;

    use hardware::partition::place::InstancePosition;

    use super::super::claimable::ClaimableKind;
    use super::super::prepared::CreatedPartition;
    use super::*;

    fn claim(results: serde_json::Value) -> ResourceClaim {
        let claim = json!({"metadata": {"name": "c"}, "spec": {},
            "status": {"allocation": {"devices": {"results": results}}}});
        serde_json::from_value(claim).expect("a claim")
    }

    fn given(device: &str) -> PreparedDevice {
        PreparedDevice {
            request: "r".into(),
            device: device.into(),
            admin: false,
        }
    }

    fn machine() -> Vec<Claimable> {
        let one = |name: &str, problem: &str| Claimable {
            device: Device {
                name: name.into(),
                ..Device::default()
            },
            id: name.to_uppercase(),
            problem: problem.into(),
            what: ClaimableKind::Nic,
        };
        vec![one("gpu-0", ""), one("gpu-1", "GPU 1 is unhealthy: lost")]
    }

    fn prepared(uid: &str, device: &str) -> Prepared {
        Prepared {
            uid: uid.into(),
            namespace: "team".into(),
            name: "theirs".into(),
            devices: vec![given(device)],
            ..Prepared::default()
        }
    }

    #[test]
    fn only_devices_of_this_driver_and_node_are_given() {
        let result = |driver: &str, pool: &str, device: &str| json!({"driver": driver, "pool": pool, "device": device, "request": "r"});
        let of_others = result("nic.example.com", "elsewhere", "x");
        let got = allocated(
            &claim(json!([of_others, result(DRIVER, "box", "gpu-0")])),
            "box",
        );
        assert_eq!(got, Ok(vec![given("gpu-0")]));
        let elsewhere = allocated(&claim(json!([result(DRIVER, "other", "gpu-0")])), "box");
        let elsewhere = elsewhere.expect_err("no").to_string();
        assert!(elsewhere.contains("this is node box"));
        assert!(allocated(&claim(json!([of_others])), "box").is_err());
        assert!(allocated(&ResourceClaim::default(), "box").is_err());
    }

    #[test]
    fn overlapping_devices_are_given_once_under_any_name() {
        let part = |start: u32, size: u32| ClaimableKind::Partition {
            index: 0,
            place: InstancePosition {
                profile: format!("{size}g"),
                start,
            },
            size,
        };
        let slice = ClaimableKind::Slice { index: 0, place: 0 };
        let all = [
            ("gpu-0", "GPU-0", ClaimableKind::Gpu { index: 0 }),
            ("gpu-0-1g-6", "GPU-0", part(6, 1)),
            ("gpu-0-3g-4", "GPU-0", part(4, 4)),
            ("gpu-0-3g-0", "GPU-0", part(0, 4)),
            ("mig-6", "MIG-6", slice),
            ("gpu-1", "GPU-1", ClaimableKind::Gpu { index: 1 }),
        ];
        let machine = all.map(|(name, id, what)| Claimable {
            device: Device {
                name: name.into(),
                ..Device::default()
            },
            id: id.into(),
            problem: String::new(),
            what,
        });
        let mut theirs = prepared("2", "gpu-0-1g-6");
        let cut = CreatedPartition {
            gpu: "GPU-0".into(),
            place: InstancePosition {
                profile: "1g".into(),
                start: 6,
            },
            slice: "MIG-6".into(),
        };
        theirs.cuts.insert("gpu-0-1g-6".into(), cut);
        let none = BTreeSet::new();
        for (device, free) in [
            ("gpu-0", false),
            ("gpu-0-1g-6", false),
            ("gpu-0-3g-4", false),
            ("gpu-0-3g-0", true),
            ("mig-6", false),
            ("gpu-1", true),
        ] {
            let asked = [given(device)];
            let got = devices("1", &asked, &machine, std::slice::from_ref(&theirs), &none);
            assert_eq!(got.is_ok(), free, "{device}: {got:?}");
        }
    }

    #[test]
    fn a_device_is_given_once_and_only_while_healthy_and_stays_given() {
        let machine = machine();
        let none = BTreeSet::new();
        let ask = |device: &str, prepared: &[Prepared], held: &BTreeSet<String>| {
            devices("1", &[given(device)], &machine, prepared, held)
                .map(|all| all.len())
                .map_err(|error| error.to_string())
                .map_err(|error| error.split(';').next().unwrap_or_default().to_owned())
        };
        assert_eq!(ask("gpu-0", &[], &none), Ok(1));
        assert_eq!(ask("gpu-0", &[prepared("2", "gpu-1")], &none), Ok(1));
        let refused = |answer: Result<usize, String>, words: &str| {
            let error = answer.expect_err(words);
            assert!(error.contains(words), "{error}");
        };
        refused(ask("gpu-9", &[], &none), "no device gpu-9 any more");
        refused(ask("gpu-1", &[], &none), "GPU 1 is unhealthy: lost");
        assert_eq!(ask("gpu-1", &[prepared("1", "gpu-1")], &none), Ok(1));
        refused(
            ask("gpu-0", &[prepared("2", "gpu-0")], &none),
            "claim team/theirs's",
        );
        let held = BTreeSet::from(["GPU-0".to_owned()]);
        refused(ask("gpu-0", &[], &held), "from the device plugin");
        let watched = |admin| {
            let given = [PreparedDevice {
                admin,
                ..given("gpu-0")
            }];
            devices("1", &given, &machine, &[prepared("2", "gpu-0")], &none).is_ok()
        };
        assert_eq!([watched(false), watched(true)], [false, true]);
    }
}
