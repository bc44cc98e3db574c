//! Which GPUs are shared by MPS and with which limits, and the settings of a container on one.
//! Pure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use resources::devices::{GpuDevice, NodeInventory};
use resources::names::NVIDIA_GPU;

use crate::share::ShareLimit;
use crate::sharing::{Sharing, SharingStrategy};

/// Maximum number of processes of one MPS server on GPUs of these compute capabilities, as in
/// NVIDIA's device plugin.
pub const CLIENTS: usize = 48;
const CLIENTS_BEFORE: usize = 16;
const MANY_CLIENTS_FROM: (u32, u32) = (7, 5);

/// The shared memory directory through which MPS clients communicate, on the node and in
/// containers.
const SHARED_MEMORY: &str = "/dev/shm";

/// GPUs that are to be shared by MPS, by UUID: the limits of each process on it, or why it can't be
/// shared.
pub type MpsPlan = BTreeMap<String, Result<ShareLimit, NotShared>>;

/// Why a GPU can't be shared by MPS.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotShared {
    /// It is a slice.
    #[error("it is a slice (MIG), which MPS does not share; share GPUs that are not partitioned")]
    Slice,
    /// It would have more replicas than MPS allows processes.
    #[error(
        "it is to be {replicas} replicas, and MPS takes {most} processes on a GPU of compute capability \
         {capability}; use fewer replicas"
    )]
    TooMany {
        /// The number of replicas.
        replicas: usize,
        /// The maximum number of processes.
        most: usize,
        /// The GPU's compute capability.
        capability: String,
    },
}

/// The GPUs of a machine that are shared by MPS.
pub fn wanted(inventory: &NodeInventory, sharing: &Sharing) -> MpsPlan {
    if sharing.strategy != SharingStrategy::Mps {
        return MpsPlan::new();
    }
    let offered = inventory.offered().gpus;
    let whole = |gpu: &GpuDevice| inventory.gpus.iter().any(|other| other.id == gpu.id);
    let selected = sharing.selected(NVIDIA_GPU, inventory, offered.iter().map(|gpu| &*gpu.id));
    (offered.iter())
        .filter_map(|gpu| {
            let replicas = *selected.get(&gpu.id)?;
            let most = clients(&gpu.compute_capability);
            let judged = if !whole(gpu) {
                Err(NotShared::Slice)
            } else if replicas > most {
                Err(NotShared::TooMany {
                    replicas,
                    most,
                    capability: gpu.compute_capability.clone(),
                })
            } else {
                Ok(ShareLimit::of_replica(replicas, gpu.memory_mib))
            };
            Some((gpu.id.clone(), judged))
        })
        .collect()
}

/// The maximum number of MPS processes on a GPU; an unknown capability counts as a newer one.
fn clients(capability: &str) -> usize {
    let version = capability
        .split_once('.')
        .and_then(|(major, minor)| Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?)));
    match version {
        Some(version) if version < MANY_CLIENTS_FROM => CLIENTS_BEFORE,
        _ => CLIENTS,
    }
}

/// The state of a GPU that is shared by MPS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MpsDaemonState {
    /// The directory in which its control daemon listens.
    pub pipe: PathBuf,
    /// The limits of each process.
    pub limit: ShareLimit,
    /// Why no container can be started on it now.
    pub problem: Option<String>,
}

/// The GPUs that are shared by MPS, by UUID.
pub type MpsDaemonStates = BTreeMap<String, MpsDaemonState>;

/// The settings of a container that shares a GPU by MPS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MpsSettings {
    /// Names and values.
    pub variables: Vec<(&'static str, String)>,
    /// Paths of the node to mount, each at the same place.
    pub mounts: Vec<PathBuf>,
}

/// Why a container can't be started on a GPU that is shared by MPS.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MpsAllocationError {
    /// The container has more devices than the one GPU of a daemon.
    #[error(
        "GPU {gpu} is shared by MPS, each of whose daemons has one GPU, and the container has {count} \
         devices; let it ask for one, or place it on a node without MPS"
    )]
    SeveralDevices {
        /// The GPU.
        gpu: String,
        /// How many devices the container has.
        count: usize,
    },
    /// No container can be started on the GPU now.
    #[error("GPU {gpu} is shared by MPS, and {problem}")]
    NotReady {
        /// The GPU.
        gpu: String,
        /// The reason.
        problem: String,
    },
    /// The container's limits are above those of a process.
    #[error(
        "the container is to have {wanted} of GPU {gpu}, where each process gets {most} at most; use fewer \
         replicas in sharing.mps, 1 for a GPU that is shared by parts alone"
    )]
    TooMuch {
        /// The GPU.
        gpu: String,
        /// The container's limits.
        wanted: String,
        /// The limits of each process.
        most: String,
    },
}

/// The settings of a container with these devices, within its limit on each; without a limit,
/// within that of each process. `None` if none of them is shared by MPS.
///
/// # Errors
///
/// Why it can't be started.
pub fn equip(
    states: &MpsDaemonStates,
    devices: &[String],
    limit: Option<ShareLimit>,
) -> Result<Option<MpsSettings>, MpsAllocationError> {
    let mut shared = devices.iter().filter_map(|id| Some((id, states.get(id)?)));
    let Some((id, state)) = shared.next() else {
        return Ok(None);
    };
    if devices.len() > 1 {
        return Err(MpsAllocationError::SeveralDevices {
            gpu: id.clone(),
            count: devices.len(),
        });
    }
    if let Some(problem) = &state.problem {
        return Err(MpsAllocationError::NotReady {
            gpu: id.clone(),
            problem: problem.clone(),
        });
    }
    let limit = limit.unwrap_or(state.limit);
    if limit.exceeds(&state.limit) {
        return Err(MpsAllocationError::TooMuch {
            gpu: id.clone(),
            wanted: limit.message(),
            most: state.limit.message(),
        });
    }
    let mut variables = vec![
        // By its UUID: the daemon sees only this GPU, with index 0.
        ("CUDA_VISIBLE_DEVICES", id.clone()),
        ("CUDA_MPS_PIPE_DIRECTORY", state.pipe.display().to_string()),
    ];
    if let Some(mib) = limit.memory_mib {
        variables.push(("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", format!("0={mib}M")));
    }
    if let Some(percent) = limit.percent {
        variables.push(("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percent.to_string()));
    }
    Ok(Some(MpsSettings {
        variables,
        mounts: vec![state.pipe.clone(), Path::new(SHARED_MEMORY).to_owned()],
    }))
}

#[cfg(test)]
mod tests {
    use resources::devices::MigSlice;

    use super::*;
    use crate::sharing::{DeviceSelection, Replicated};

    fn machine(capability: &str) -> NodeInventory {
        let gpu = |index: u32| GpuDevice {
            id: format!("GPU-{index}"),
            index,
            memory_mib: 80_000,
            compute_capability: capability.into(),
            ..GpuDevice::default()
        };
        NodeInventory {
            gpus: (0..3).map(gpu).collect(),
            ..NodeInventory::default()
        }
    }

    fn by_mps(replicas: usize, devices: DeviceSelection) -> Sharing {
        Sharing {
            strategy: SharingStrategy::Mps,
            resources: vec![Replicated {
                name: NVIDIA_GPU.into(),
                replicas,
                devices,
                ..Replicated::default()
            }],
            ..Sharing::default()
        }
    }

    #[test]
    fn the_gpus_that_are_selected_are_shared_in_equal_parts() {
        let these = DeviceSelection::These(vec!["1".into(), "GPU-2".into()]);
        let found = wanted(&machine("9.0"), &by_mps(4, these));
        let quarter = ShareLimit::of_replica(4, 80_000);
        let expected = [
            ("GPU-1".to_owned(), Ok(quarter)),
            ("GPU-2".to_owned(), Ok(quarter)),
        ];
        assert_eq!(found, MpsPlan::from(expected));
        let alone = wanted(&machine("9.0"), &by_mps(1, DeviceSelection::First(1)));
        let expected = [("GPU-0".to_owned(), Ok(ShareLimit::default()))];
        assert_eq!(alone, MpsPlan::from(expected));
        let slicing = Sharing {
            strategy: SharingStrategy::TimeSlicing,
            ..by_mps(4, DeviceSelection::All)
        };
        assert!(wanted(&machine("9.0"), &slicing).is_empty());
    }

    #[test]
    fn gpus_that_mps_cannot_share_are_reported() {
        for (capability, replicas, fits) in
            [("7.0", 16, true), ("7.0", 17, false), ("7.5", 48, true)]
        {
            let found = wanted(
                &machine(capability),
                &by_mps(replicas, DeviceSelection::All),
            );
            assert_eq!(found["GPU-0"].is_ok(), fits, "{replicas} on {capability}");
        }
        let mut cut = machine("9.0");
        cut.mig_strategy = resources::devices::MIG_SINGLE.into();
        cut.gpus[0].slices = Some(vec![MigSlice {
            id: "MIG-1".into(),
            profile: "1g.10gb".into(),
            ..MigSlice::default()
        }]);
        let found = wanted(&cut, &by_mps(2, DeviceSelection::All));
        assert!(found["MIG-1"].is_err() && found["GPU-1"].is_ok());
    }

    fn states(problem: Option<&str>, limit: ShareLimit) -> MpsDaemonStates {
        let state = MpsDaemonState {
            pipe: "/run/mps/GPU-1/pipe".into(),
            limit,
            problem: problem.map(str::to_owned),
        };
        MpsDaemonStates::from([("GPU-1".to_owned(), state)])
    }

    #[test]
    fn a_container_gets_its_own_limits_and_else_the_gpus() {
        let of = |states: &MpsDaemonStates, limit: Option<ShareLimit>| {
            let equipment = equip(states, &["GPU-1".into()], limit);
            let variables = equipment.expect("it can start").expect("by MPS").variables;
            let all = variables
                .iter()
                .map(|(name, value)| format!("{name}={value}"));
            all.skip(1).collect::<Vec<_>>().join(" ")
        };
        let pipe = "CUDA_MPS_PIPE_DIRECTORY=/run/mps/GPU-1/pipe";
        let half = ShareLimit::of_replica(2, 80_000);
        let limits = |mib: u64, percent: u32| {
            format!(
                "{pipe} CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={mib}M \
                 CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={percent}"
            )
        };
        assert_eq!(of(&states(None, half), None), limits(40_000, 50));
        let eighth = ShareLimit::of_replica(8, 80_000);
        assert_eq!(of(&states(None, half), Some(eighth)), limits(10_000, 12));
        assert_eq!(
            of(&states(None, ShareLimit::default()), Some(half)),
            limits(40_000, 50)
        );
        assert_eq!(of(&states(None, ShareLimit::default()), None), pipe);
    }

    #[test]
    fn a_container_that_would_not_get_its_share_is_not_started() {
        let half = ShareLimit::of_replica(2, 80_000);
        let quarter = states(None, ShareLimit::of_replica(4, 80_000));
        let why = equip(&quarter, &["GPU-1".into()], Some(half)).expect_err("too much");
        let why = why.to_string();
        assert!(
            why.contains("40000 MiB") && why.contains("20000 MiB"),
            "{why}"
        );
        let whole = equip(&quarter, &["GPU-1".into()], Some(ShareLimit::default()));
        assert!(
            whole
                .expect_err("too much")
                .to_string()
                .contains("all of it")
        );
        let down = states(Some("its daemon does not run"), half);
        let why = equip(&down, &["GPU-1".into()], Some(half)).expect_err("no daemon");
        let why = why.to_string();
        assert!(why.contains("does not run"), "{why}");
        let both = ["GPU-1".into(), "GPU-2".into()];
        assert!(equip(&quarter, &both, None).is_err());
        let other = equip(&quarter, &["GPU-2".into()], Some(half));
        assert_eq!(
            other,
            Ok(None),
            "who shares no GPU by MPS has nothing of it"
        );
    }
}
