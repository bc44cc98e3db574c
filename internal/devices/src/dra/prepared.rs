//! Prepared claims on disk: for each a CDI spec, which the container runtime reads and which is
//! also the record of the claim's devices. So the two cannot differ, and a restarted agent knows
//! the allocations of the previous one. A partition's spec is written before the partition is
//! created and removed after it is gone, so a slice that no spec names was not created by this
//! driver.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use hardware::partition::place::InstancePosition;

use super::DRIVER;
use crate::cdi::{CdiDevice, CdiSpec, Edits, file};

/// The class of a spec's devices, after the driver's name.
const CLASS: &str = "claim";

fn kind() -> String {
    format!("{DRIVER}/{CLASS}")
}

/// The devices of a prepared claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prepared {
    /// The claim's uid.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its devices.
    pub devices: Vec<PreparedDevice>,
    /// The partitions among them, by the devices' names.
    pub cuts: BTreeMap<String, CreatedPartition>,
}

/// A partition that this driver created, or was about to create, for a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedPartition {
    /// The GPU's UUID.
    pub gpu: String,
    /// Its place on the GPU.
    pub place: InstancePosition,
    /// The UUID of its slice; empty until it is created.
    pub slice: String,
}

impl CreatedPartition {
    /// The form in the spec: `GPU-.../1g.10gb/4`.
    fn message(&self) -> String {
        let InstancePosition { profile, start } = &self.place;
        format!("{}/{profile}/{start}", self.gpu)
    }

    fn of(words: &str, slice: String) -> Option<CreatedPartition> {
        let (rest, start) = words.rsplit_once('/')?;
        let (gpu, profile) = rest.rsplit_once('/')?;
        let place = InstancePosition {
            profile: profile.to_owned(),
            start: start.parse().ok()?,
        };
        Some(CreatedPartition {
            gpu: gpu.to_owned(),
            place,
            slice,
        })
    }
}

/// A device of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedDevice {
    /// The request of the claim for which it was allocated.
    pub request: String,
    /// Its name in the node's pool.
    pub device: String,
    /// Whether this is admin access, which leaves the device to others.
    pub admin: bool,
}

/// The name of Muster's annotation in a spec.
fn note(name: &str) -> String {
    format!("{DRIVER}/{name}")
}

fn notes<const N: usize>(all: [(&str, &str); N]) -> BTreeMap<String, String> {
    let notes = all.into_iter();
    notes
        .map(|(name, value)| (note(name), value.to_owned()))
        .collect()
}

impl PreparedDevice {
    /// The request without the allocated alternative (`REQUEST/ALTERNATIVE`): pods and the kubelet
    /// name requests so.
    pub fn main_request(&self) -> &str {
        let request = self.request.split('/').next();
        request.unwrap_or(&self.request)
    }
}

impl Prepared {
    /// The CDI id of one of its devices. It contains the claim's uid, because a runtime may cache
    /// what it read under a name.
    pub fn cdi_id(&self, given: &PreparedDevice) -> String {
        format!("{}={}", kind(), self.device_name(given))
    }

    fn device_name(&self, given: &PreparedDevice) -> String {
        // A device may serve two requests.
        format!(
            "{}_{}_{}",
            self.uid,
            given.request.replace('/', "_"),
            given.device
        )
    }

    /// The claim's spec, with the edits for each device and those common to all.
    fn spec(&self, edits: Vec<Edits>, with_any: Edits) -> CdiSpec {
        let devices = self.devices.iter().zip(edits).map(|(given, edits)| {
            let admin = given.admin.to_string();
            let facts = [
                ("request", given.request.as_str()),
                ("device", &given.device),
                ("admin", &admin),
            ];
            let mut annotations = notes(facts);
            if let Some(cut) = self.cuts.get(&given.device) {
                let words = cut.message();
                annotations.extend(notes([("partition", &*words), ("slice", &cut.slice)]));
            }
            CdiDevice {
                name: self.device_name(given),
                annotations,
                edits,
            }
        });
        CdiSpec {
            kind: kind(),
            annotations: notes([
                ("uid", &self.uid),
                ("namespace", &self.namespace),
                ("name", &self.name),
            ]),
            devices: devices.collect(),
            edits: with_any,
        }
    }

    /// Parses a spec; `None` if it lacks something.
    fn of(spec: &CdiSpec) -> Option<Prepared> {
        let annotation = |notes: &BTreeMap<String, String>, name| notes.get(&note(name)).cloned();
        let given = |device: &CdiDevice| {
            Some(PreparedDevice {
                request: annotation(&device.annotations, "request")?,
                device: annotation(&device.annotations, "device")?,
                admin: annotation(&device.annotations, "admin")?.parse().ok()?,
            })
        };
        let devices = spec.devices.iter();
        let devices: Vec<PreparedDevice> = devices.map(given).collect::<Option<_>>()?;
        let mut cuts = BTreeMap::new();
        for (device, given) in spec.devices.iter().zip(&devices) {
            if let Some(words) = annotation(&device.annotations, "partition") {
                let slice = annotation(&device.annotations, "slice").unwrap_or_default();
                cuts.insert(given.device.clone(), CreatedPartition::of(&words, slice)?);
            }
        }
        Some(Prepared {
            uid: annotation(&spec.annotations, "uid")?,
            namespace: annotation(&spec.annotations, "namespace")?,
            name: annotation(&spec.annotations, "name")?,
            devices,
            cuts,
        })
    }
}

/// The directory with the specs, `/var/run/cdi`, which may contain specs of others.
#[derive(Clone, Debug)]
pub struct Specs {
    directory: PathBuf,
}

impl Specs {
    /// Touches no file yet.
    pub fn new(directory: &Path) -> Specs {
        Specs {
            directory: directory.to_path_buf(),
        }
    }

    /// The file of a claim's spec; an error if the uid is invalid.
    fn file(&self, uid: &str) -> io::Result<PathBuf> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if uid.is_empty() || !uid.chars().all(plain) {
            let problem = format!("{uid:?} is no uid of a claim");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        Ok(file::path(&self.directory, &kind(), Some(uid)))
    }

    /// All prepared claims. A file that cannot be parsed is left alone and logged.
    ///
    /// # Errors
    ///
    /// When the directory can't be read; a missing directory has no specs.
    pub fn all(&self) -> io::Result<Vec<Prepared>> {
        let entries = match std::fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let ours = format!("{DRIVER}-{CLASS}_");
        let mut all = Vec::new();
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if !name.starts_with(&ours) || !name.ends_with(".json") {
                continue;
            }
            let spec = serde_json::from_slice::<CdiSpec>(&std::fs::read(&path)?).ok();
            match spec.as_ref().and_then(Prepared::of) {
                Some(prepared) => all.push(prepared),
                None => tracing::warn!(
                    file = %path.display(),
                    "no CDI spec of this driver's; remove it once no pod here has a claim"
                ),
            }
        }
        all.sort_by(|a, b| a.uid.cmp(&b.uid));
        Ok(all)
    }

    /// Writes a claim's spec atomically.
    ///
    /// # Errors
    ///
    /// When it can't be written.
    pub fn put(&self, prepared: &Prepared, edits: Vec<Edits>, with_any: Edits) -> io::Result<()> {
        file::write(&self.file(&prepared.uid)?, &prepared.spec(edits, with_any))
    }

    /// Removes a claim's spec, if it exists.
    ///
    /// # Errors
    ///
    /// When its file can't be removed.
    pub fn remove(&self, uid: &str) -> io::Result<()> {
        file::remove(&self.file(uid)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(uid: &str) -> Prepared {
        let given = |request: &str, device: &str| PreparedDevice {
            request: request.into(),
            device: device.into(),
            admin: false,
        };
        Prepared {
            uid: uid.into(),
            namespace: "default".into(),
            name: "pair".into(),
            devices: vec![given("gpu", "gpu-ab"), given("nic/any", "nic-mlx5-0")],
            cuts: BTreeMap::new(),
        }
    }

    fn edits() -> Vec<Edits> {
        let one = |variable: &str| Edits {
            env: vec![variable.into()],
            ..Edits::default()
        };
        vec![one("A=1"), one("B=2")]
    }

    #[test]
    fn prepared_claims_are_read_back_and_others_files_are_left_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = directory.path().join("cdi");
        let specs = Specs::new(&at);
        assert_eq!(specs.all().expect("none yet"), []);
        specs.remove("1").expect("none is no error");
        let (one, two) = (prepared("1"), prepared("2"));
        for claim in [&two, &one] {
            specs
                .put(claim, edits(), Edits::default())
                .expect("written");
        }
        std::fs::write(at.join("nvidia.json"), "{}").expect("another's");
        std::fs::write(at.join("gpu.muster.io-claim_3.json"), "{}").expect("damaged");
        assert_eq!(specs.all().expect("two"), [one.clone(), two]);
        assert_eq!(one.devices[1].main_request(), "nic");
        let id = one.cdi_id(&one.devices[1]);
        assert_eq!(id, "gpu.muster.io/claim=1_nic_any_nic-mlx5-0");
        specs.remove("2").expect("removed");
        assert_eq!(specs.all().expect("one"), [one]);
        assert!(at.join("nvidia.json").exists());
        assert!(specs.remove("../nvidia").is_err());
    }

    #[test]
    fn partitions_of_a_claim_are_recorded_before_and_after_their_creation() {
        let directory = tempfile::tempdir().expect("a directory");
        let specs = Specs::new(directory.path());
        let mut claim = prepared("1");
        for slice in ["", "MIG-1"] {
            let cut = CreatedPartition {
                gpu: "GPU-ab".into(),
                place: InstancePosition {
                    profile: "1g.10gb+me".into(),
                    start: 4,
                },
                slice: slice.into(),
            };
            claim.cuts = BTreeMap::from([("gpu-ab".to_owned(), cut)]);
            specs
                .put(&claim, edits(), Edits::default())
                .expect("written");
            assert_eq!(specs.all().expect("one"), [claim.clone()]);
        }
    }

    #[test]
    fn a_spec_is_what_runtimes_read() {
        let spec = prepared("1").spec(edits(), Edits::default());
        let spec = serde_json::to_value(spec).expect("plain data");
        assert_eq!(spec["cdiVersion"], "0.6.0");
        assert_eq!(spec["kind"], "gpu.muster.io/claim");
        assert_eq!(
            spec["devices"][0],
            serde_json::json!({
                "name": "1_gpu_gpu-ab",
                "annotations": {"gpu.muster.io/request": "gpu", "gpu.muster.io/device": "gpu-ab",
                    "gpu.muster.io/admin": "false"},
                "containerEdits": {"env": ["A=1"]}})
        );
    }
}
