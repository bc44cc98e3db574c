//! A claim's partitions: created when it is prepared, and removed when it is unprepared. Owns the
//! order of writes to its spec and its GPUs, so that a spec always names all partitions of the
//! claim.

use devices::cdi::Edits;
use devices::dra::claimable::{Claimable, ClaimableKind};
use devices::dra::partitions::AllocatableDevices;
use devices::dra::prepared::{CreatedPartition, Prepared, Specs};

use super::Inner;
use crate::kubelet::dra::error::ClaimError;

impl Inner {
    /// Partitions GPUs for a claim's devices that are partitions, and removes the partitions of GPUs
    /// that it gets as a whole. The claim's spec is written before.
    pub(super) async fn cut(
        &self,
        specs: &Specs,
        all: &[Prepared],
        offer: &AllocatableDevices,
        prepared: &mut Prepared,
        devices: &mut [Claimable],
    ) -> Result<(), ClaimError> {
        let before = all.iter().find(|it| it.uid == prepared.uid);
        let had = before.map(|it| it.cuts.clone()).unwrap_or_default();
        let given = prepared.devices.clone();
        for (given, device) in given.iter().zip(devices.iter()) {
            match &device.what {
                ClaimableKind::Partition { .. } if given.admin => {
                    return Err(ClaimError::AdminAccess {
                        device: given.device.clone(),
                    });
                }
                ClaimableKind::Partition { place, .. } => {
                    let cut = had.get(&given.device).cloned().unwrap_or(CreatedPartition {
                        gpu: device.id.clone(),
                        place: place.clone(),
                        slice: String::new(),
                    });
                    prepared.cuts.insert(given.device.clone(), cut);
                }
                ClaimableKind::Gpu { .. } if !given.admin && offer.shares(&device.device.name) => {
                    self.partitioner.unite(&device.id).await?;
                }
                _ => {}
            }
        }
        if prepared.cuts.is_empty() {
            return Ok(());
        }
        if had != prepared.cuts {
            // With these edits a container would get no device.
            let nothing = Edits {
                env: vec!["NVIDIA_VISIBLE_DEVICES=void".to_owned()],
                ..Edits::default()
            };
            let edits = vec![nothing; given.len()];
            specs
                .put(prepared, edits, Edits::default())
                .map_err(ClaimError::SpecUnwritten)?;
        }
        let mut own: Vec<CreatedPartition> = all
            .iter()
            .flat_map(|it| it.cuts.values().cloned())
            .collect();
        let mut made = 0;
        for (given, device) in given.iter().zip(devices) {
            let Some(cut) = prepared.cuts.get_mut(&given.device) else {
                continue;
            };
            match self
                .partitioner
                .make(&cut.gpu, &cut.place, own.clone())
                .await
            {
                Ok(slice) => {
                    device.id.clone_from(&slice);
                    cut.slice = slice;
                    own.push(cut.clone());
                    made += 1;
                }
                Err(error) => {
                    // The spec must name the created slices until the kubelet asks again or gives
                    // up.
                    if before.is_none() && made == 0 {
                        specs.remove(&prepared.uid).map_err(ClaimError::SpecKept)?;
                    }
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    /// Removes a claim's slices and its spec.
    pub(super) async fn let_go(
        &self,
        specs: &Specs,
        prepared: &Prepared,
    ) -> Result<(), ClaimError> {
        for cut in prepared.cuts.values() {
            let Err(error) = self.partitioner.end(cut).await else {
                continue;
            };
            let found = self.found.borrow().clone();
            let mut gpus = found.gpus.iter().filter(|gpu| gpu.id == cut.gpu);
            if gpus.any(|gpu| gpu.problem.is_empty()) {
                return Err(error.into());
            }
            // Its pods must be able to end.
            tracing::warn!("a GPU that is unhealthy keeps a slice until it is reset: {error}");
        }
        specs.remove(&prepared.uid).map_err(ClaimError::SpecKept)
    }
}
