//! Disks that a node attaches for its pods: whose driver each is, and which disk; read off volumes,
//! classes and what pods name without a claim. Kinds that Kubernetes once had built in are their CSI
//! drivers' (Kubernetes' csi-translation-lib has the names).

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1 as k8s;

/// What is not a driver's own answer for a disk of Google's, whose zone nobody says.
const NO_ZONE: &str = "UNSPECIFIED";
const ZONE: &str = "topology.kubernetes.io/zone";
const OLDER_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
/// The pool of an RBD image that names none.
const RBD_POOL: &str = "rbd";

/// Kinds that were built in, and whose they are now.
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

/// Who attaches a disk.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Driver {
    pub(super) name: String,
    /// The built-in kind that it stands in for, on nodes that say so.
    pub(super) instead_of: Option<&'static str>,
}

impl Driver {
    /// The driver behind what a StorageClass names; none where it names none.
    pub(super) fn of_provisioner(provisioner: &str) -> Option<Driver> {
        let built_in = (0..BUILT_IN.len()).find(|kind| BUILT_IN[*kind].0 == provisioner);
        match built_in {
            Some(kind) => Some(Driver::instead(kind)),
            None => (!provisioner.is_empty()).then(|| Driver::named(provisioner)),
        }
    }

    pub(super) fn named(name: &str) -> Driver {
        Driver {
            name: name.to_owned(),
            instead_of: None,
        }
    }

    fn instead(kind: usize) -> Driver {
        Driver {
            name: BUILT_IN[kind].1.to_owned(),
            instead_of: Some(BUILT_IN[kind].0),
        }
    }
}

/// One disk, which is attached once however many pods of a node use it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Disk {
    pub(super) driver: Driver,
    /// As its driver knows it.
    pub(super) handle: String,
}

impl Disk {
    fn built_in(kind: usize, handle: &str) -> Disk {
        Disk {
            driver: Driver::instead(kind),
            handle: handle.to_owned(),
        }
    }

    /// The disk behind a volume, where it is one.
    pub(super) fn of_volume(volume: &k8s::PersistentVolume) -> Option<Disk> {
        let spec = volume.spec.as_ref()?;
        if let Some(csi) = &spec.csi {
            return Some(Disk {
                driver: Driver::named(&csi.driver),
                handle: csi.volume_handle.clone(),
            });
        }
        let label = |key: &str| volume.metadata.labels.as_ref()?.get(key);
        let zone = label(ZONE).or_else(|| label(OLDER_ZONE));
        let disk = Disk::built_in;
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

    /// The disk that a pod names itself.
    fn of_pod(volume: &k8s::Volume) -> Option<Disk> {
        let disk = Disk::built_in;
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

/// `aws://zone/vol-1` and `vol-1` are one.
fn ebs(id: &str) -> &str {
    id.rsplit('/').next().unwrap_or(id)
}

fn google(name: &str, zone: Option<&str>) -> String {
    let zone = zone.unwrap_or(NO_ZONE);
    format!("projects/{NO_ZONE}/zones/{zone}/disks/{name}")
}

/// What two pods on one node can't both have, if one of them writes.
#[derive(Clone, Debug, PartialEq)]
enum Sole {
    Google {
        name: String,
        reads: bool,
    },
    /// Not even to read.
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

impl Sole {
    fn of_pod(volume: &k8s::Volume) -> Option<Sole> {
        if let Some(disk) = &volume.gce_persistent_disk {
            return Some(Sole::Google {
                name: disk.pd_name.clone(),
                reads: disk.read_only.unwrap_or_default(),
            });
        }
        if let Some(disk) = &volume.aws_elastic_block_store {
            let id = disk.volume_id.clone();
            return Some(Sole::Amazon { id });
        }
        if let Some(disk) = &volume.iscsi {
            return Some(Sole::Iscsi {
                iqn: disk.iqn.clone(),
                reads: disk.read_only.unwrap_or_default(),
            });
        }
        let disk = volume.rbd.as_ref()?;
        let pool = disk.pool.clone().unwrap_or_else(|| RBD_POOL.to_owned());
        Some(Sole::Rbd {
            monitors: disk.monitors.iter().cloned().collect(),
            image: (pool, disk.image.clone()),
            reads: disk.read_only.unwrap_or_default(),
        })
    }

    /// Do they stand against each other? As kube-scheduler's VolumeRestrictions has it.
    fn conflicts(&self, other: &Sole) -> bool {
        match (self, other) {
            (
                Sole::Google { name, reads },
                Sole::Google {
                    name: name2,
                    reads: reads2,
                },
            ) => name == name2 && !(*reads && *reads2),
            (Sole::Amazon { id }, Sole::Amazon { id: id2 }) => id == id2,
            (
                Sole::Iscsi { iqn, reads },
                Sole::Iscsi {
                    iqn: iqn2,
                    reads: reads2,
                },
            ) => iqn == iqn2 && !(*reads && *reads2),
            (
                Sole::Rbd {
                    monitors,
                    image,
                    reads,
                },
                Sole::Rbd {
                    monitors: monitors2,
                    image: image2,
                    reads: reads2,
                },
            ) => !monitors.is_disjoint(monitors2) && image == image2 && !(*reads && *reads2),
            _ => false,
        }
    }
}

/// What a pod names without a claim.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Inline {
    pub(super) disks: Vec<Disk>,
    sole: Vec<Sole>,
}

impl Inline {
    pub(super) fn read(spec: &k8s::PodSpec) -> Inline {
        let volumes = || spec.volumes.iter().flatten();
        Inline {
            disks: volumes().filter_map(Disk::of_pod).collect(),
            sole: volumes().filter_map(Sole::of_pod).collect(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.disks.is_empty() && self.sole.is_empty()
    }

    /// Does it name what not every pod beside it may have?
    pub(super) fn is_sole(&self) -> bool {
        !self.sole.is_empty()
    }

    pub(super) fn conflicts(&self, other: &Inline) -> bool {
        let with = |own: &Sole| other.sole.iter().any(|one| own.conflicts(one));
        self.sole.iter().any(with)
    }
}
