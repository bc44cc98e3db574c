//! Disks that a node attaches for its pods: the driver and handle of each, read from volumes,
//! classes and pods' inline volumes. In-tree volume types count as those of their CSI drivers (the
//! names are those of Kubernetes' csi-translation-lib).

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1 as k8s;

/// csi-translation-lib's placeholder for the zone of a Google disk without a zone label.
const NO_ZONE: &str = "UNSPECIFIED";
const ZONE: &str = "topology.kubernetes.io/zone";
const OLDER_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
/// The default pool of an RBD image.
const RBD_POOL: &str = "rbd";

/// In-tree volume types, and the CSI drivers that replace them.
const BUILT_IN: [(&str, &str); 7] = [
    ("kubernetes.io/aws-ebs", "ebs.csi.aws.com"),
    ("kubernetes.io/gce-pd", "pd.csi.storage.gke.io"),
    ("kubernetes.io/azure-disk", "disk.csi.azure.com"),
    ("kubernetes.io/azure-file", "file.csi.azure.com"),
    ("kubernetes.io/cinder", "cinder.csi.openstack.org"),
    ("kubernetes.io/vsphere-volume", "csi.vsphere.vmware.com"),
    ("kubernetes.io/portworx-volume", "pxd.portworx.com"),
];
const AWS: usize = 0;
const GCE: usize = 1;
const AZURE: usize = 2;
const CINDER: usize = 4;
const VSPHERE: usize = 5;
const PORTWORX: usize = 6;

/// The driver that attaches a disk.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DiskDriver {
    pub(super) name: String,
    /// The in-tree type that it replaces on nodes that list it as migrated.
    pub(super) instead_of: Option<&'static str>,
}

impl DiskDriver {
    /// The driver of a StorageClass's provisioner; `None` if it names none.
    pub(super) fn of_provisioner(provisioner: &str) -> Option<DiskDriver> {
        let built_in = (0..BUILT_IN.len()).find(|kind| BUILT_IN[*kind].0 == provisioner);
        match built_in {
            Some(kind) => Some(DiskDriver::instead(kind)),
            None => (!provisioner.is_empty()).then(|| DiskDriver::named(provisioner)),
        }
    }

    pub(super) fn named(name: &str) -> DiskDriver {
        DiskDriver {
            name: name.to_owned(),
            instead_of: None,
        }
    }

    fn instead(kind: usize) -> DiskDriver {
        DiskDriver {
            name: BUILT_IN[kind].1.to_owned(),
            instead_of: Some(BUILT_IN[kind].0),
        }
    }
}

/// One disk. It is attached once, however many pods of a node use it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct VolumeDisk {
    pub(super) driver: DiskDriver,
    /// The driver's id of the disk.
    pub(super) handle: String,
}

impl VolumeDisk {
    fn built_in(kind: usize, handle: &str) -> VolumeDisk {
        VolumeDisk {
            driver: DiskDriver::instead(kind),
            handle: handle.to_owned(),
        }
    }

    /// The disk behind a PersistentVolume, if it is one.
    pub(super) fn of_volume(volume: &k8s::PersistentVolume) -> Option<VolumeDisk> {
        let spec = volume.spec.as_ref()?;
        if let Some(csi) = &spec.csi {
            return Some(VolumeDisk {
                driver: DiskDriver::named(&csi.driver),
                handle: csi.volume_handle.clone(),
            });
        }
        let label = |key: &str| volume.metadata.labels.as_ref()?.get(key);
        let zone = label(ZONE).or_else(|| label(OLDER_ZONE));
        let disk = VolumeDisk::built_in;
        None.or_else(|| {
            Some(disk(
                AWS,
                ebs(&spec.aws_elastic_block_store.as_ref()?.volume_id),
            ))
        })
        .or_else(|| {
            let name = &spec.gce_persistent_disk.as_ref()?.pd_name;
            Some(disk(GCE, &google(name, zone.map(String::as_str))))
        })
        .or_else(|| Some(disk(AZURE, &spec.azure_disk.as_ref()?.disk_uri)))
        .or_else(|| Some(disk(CINDER, &spec.cinder.as_ref()?.volume_id)))
        .or_else(|| Some(disk(VSPHERE, &spec.vsphere_volume.as_ref()?.volume_path)))
        .or_else(|| Some(disk(PORTWORX, &spec.portworx_volume.as_ref()?.volume_id)))
    }

    /// The disk that a pod names inline.
    fn of_pod(volume: &k8s::Volume) -> Option<VolumeDisk> {
        let disk = VolumeDisk::built_in;
        None.or_else(|| {
            Some(disk(
                AWS,
                ebs(&volume.aws_elastic_block_store.as_ref()?.volume_id),
            ))
        })
        .or_else(|| {
            let name = &volume.gce_persistent_disk.as_ref()?.pd_name;
            Some(disk(GCE, &google(name, None)))
        })
        .or_else(|| Some(disk(AZURE, &volume.azure_disk.as_ref()?.disk_uri)))
        .or_else(|| Some(disk(CINDER, &volume.cinder.as_ref()?.volume_id)))
        .or_else(|| Some(disk(VSPHERE, &volume.vsphere_volume.as_ref()?.volume_path)))
        .or_else(|| Some(disk(PORTWORX, &volume.portworx_volume.as_ref()?.volume_id)))
    }
}

/// `aws://zone/vol-1` and `vol-1` are the same volume.
fn ebs(id: &str) -> &str {
    id.rsplit('/').next().unwrap_or(id)
}

fn google(name: &str, zone: Option<&str>) -> String {
    let zone = zone.unwrap_or(NO_ZONE);
    format!("projects/{NO_ZONE}/zones/{zone}/disks/{name}")
}

/// An inline disk that two pods on one node cannot both have if one of them writes.
#[derive(Clone, Debug, PartialEq)]
enum ExclusiveDisk {
    Google {
        name: String,
        reads: bool,
    },
    /// Not even if both only read.
    Amazon {
        id: String,
    },
    Iscsi {
        iqn: String,
        reads: bool,
    },
    Rbd {
        monitors: BTreeSet<String>,
        image: (String, String),
        reads: bool,
    },
}

impl ExclusiveDisk {
    fn of_pod(volume: &k8s::Volume) -> Option<ExclusiveDisk> {
        if let Some(disk) = &volume.gce_persistent_disk {
            return Some(ExclusiveDisk::Google {
                name: disk.pd_name.clone(),
                reads: disk.read_only.unwrap_or_default(),
            });
        }
        if let Some(disk) = &volume.aws_elastic_block_store {
            let id = disk.volume_id.clone();
            return Some(ExclusiveDisk::Amazon { id });
        }
        if let Some(disk) = &volume.iscsi {
            return Some(ExclusiveDisk::Iscsi {
                iqn: disk.iqn.clone(),
                reads: disk.read_only.unwrap_or_default(),
            });
        }
        let disk = volume.rbd.as_ref()?;
        let pool = disk.pool.clone().unwrap_or_else(|| RBD_POOL.to_owned());
        Some(ExclusiveDisk::Rbd {
            monitors: disk.monitors.iter().cloned().collect(),
            image: (pool, disk.image.clone()),
            reads: disk.read_only.unwrap_or_default(),
        })
    }

    /// True if both cannot be used on one node, as in kube-scheduler's VolumeRestrictions.
    fn conflicts(&self, other: &ExclusiveDisk) -> bool {
        match (self, other) {
            (
                ExclusiveDisk::Google { name, reads },
                ExclusiveDisk::Google {
                    name: name2,
                    reads: reads2,
                },
            ) => name == name2 && !(*reads && *reads2),
            (ExclusiveDisk::Amazon { id }, ExclusiveDisk::Amazon { id: id2 }) => id == id2,
            (
                ExclusiveDisk::Iscsi { iqn, reads },
                ExclusiveDisk::Iscsi {
                    iqn: iqn2,
                    reads: reads2,
                },
            ) => iqn == iqn2 && !(*reads && *reads2),
            (
                ExclusiveDisk::Rbd {
                    monitors,
                    image,
                    reads,
                },
                ExclusiveDisk::Rbd {
                    monitors: monitors2,
                    image: image2,
                    reads: reads2,
                },
            ) => !monitors.is_disjoint(monitors2) && image == image2 && !(*reads && *reads2),
            _ => false,
        }
    }
}

/// A pod's inline volumes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Inline {
    pub(super) disks: Vec<VolumeDisk>,
    sole: Vec<ExclusiveDisk>,
}

impl Inline {
    pub(super) fn read(spec: &k8s::PodSpec) -> Inline {
        let volumes = || spec.volumes.iter().flatten();
        Inline {
            disks: volumes().filter_map(VolumeDisk::of_pod).collect(),
            sole: volumes().filter_map(ExclusiveDisk::of_pod).collect(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.disks.is_empty() && self.sole.is_empty()
    }

    /// True if it names a disk that pods on one node may not share.
    pub(super) fn has_exclusive_disk(&self) -> bool {
        !self.sole.is_empty()
    }

    pub(super) fn conflicts(&self, other: &Inline) -> bool {
        let with = |own: &ExclusiveDisk| other.sole.iter().any(|one| own.conflicts(one));
        self.sole.iter().any(with)
    }
}
