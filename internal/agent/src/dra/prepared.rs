//! Claims that are prepared, on disk: for each a CDI spec, which the container runtime reads and
//! which is at the same time the record of what the claim has. So there is nothing that could say
//! something else, and an agent that starts anew knows what the one before gave. A partition's spec is
//! there before it is cut and until it is gone, so what no spec names this driver didn't cut.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use hardware::partition::place::Place;

use super::DRIVER;
use crate::cdi::{Device, Edits, Spec, file};

/// What a spec's devices are a kind of, after the driver's name.
const CLASS: &str = "claim";

fn kind() -> String {
    format!("{DRIVER}/{CLASS}")
}

/// Devices given to a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prepared {
    /// The claim's uid.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What it has.
    pub devices: Vec<Given>,
    /// The partitions among them, by the devices' names.
    pub cuts: BTreeMap<String, Cut>,
}

/// A partition that this driver cut, or was about to, for a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The GPU's UUID.
    pub gpu: String,
    /// Where it lies.
    pub place: Place,
    /// The UUID of the slice that it is; empty until it is cut.
    pub slice: String,
}

impl Cut {
    /// As it is noted: `GPU-.../1g.10gb/4`.
    fn words(&self) -> String {
        let Place { profile, start } = &self.place;
        format!("{}/{profile}/{start}", self.gpu)
    }

    fn of(words: &str, slice: String) -> Option<Cut> {
        let (rest, start) = words.rsplit_once('/')?;
        let (gpu, profile) = rest.rsplit_once('/')?;
        let place = Place {
            profile: profile.to_owned(),
            start: start.parse().ok()?,
        };
        Some(Cut {
            gpu: gpu.to_owned(),
            place,
            slice,
        })
    }
}

/// A device that a claim has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// The request of the claim that it answers.
    pub request: String,
    /// Its name in the node's pool.
    pub device: String,
    /// Whether somebody only watches over it, and others may have it all the same.
    pub admin: bool,
}

/// A note of ours in a spec.
fn note(name: &str) -> String {
    format!("{DRIVER}/{name}")
}

fn notes<const N: usize>(all: [(&str, &str); N]) -> BTreeMap<String, String> {
    let notes = all.into_iter();
    notes
        .map(|(name, value)| (note(name), value.to_owned()))
        .collect()
}

impl Given {
    /// The request without which of its alternatives (`REQUEST/ALTERNATIVE`) was allocated: pods
    /// and the kubelet name requests so.
    pub fn main_request(&self) -> &str {
        let request = self.request.split('/').next();
        request.unwrap_or(&self.request)
    }
}

impl Prepared {
    /// The name by which a container runtime is told of one of its devices. Of a claim's own uid, as
    /// a runtime may remember what it read under a name.
    pub fn cdi_id(&self, given: &Given) -> String {
        format!("{}={}", kind(), self.device_name(given))
    }

    fn device_name(&self, given: &Given) -> String {
        // A device may answer two requests.
        format!(
            "{}_{}_{}",
            self.uid,
            given.request.replace('/', "_"),
            given.device
        )
    }

    /// Its spec, with what a container gets for each device, and what it gets with any.
    fn spec(&self, edits: Vec<Edits>, with_any: Edits) -> Spec {
        let devices = self.devices.iter().zip(edits).map(|(given, edits)| {
            let admin = given.admin.to_string();
            let said = [
                ("request", given.request.as_str()),
                ("device", &given.device),
                ("admin", &admin),
            ];
            let mut annotations = notes(said);
            if let Some(cut) = self.cuts.get(&given.device) {
                let words = cut.words();
                annotations.extend(notes([("partition", &*words), ("slice", &cut.slice)]));
            }
            Device {
                name: self.device_name(given),
                annotations,
                edits,
            }
        });
        Spec {
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

    /// What a spec says; `None` if it lacks something.
    fn of(spec: &Spec) -> Option<Prepared> {
        let said = |notes: &BTreeMap<String, String>, name| notes.get(&note(name)).cloned();
        let given = |device: &Device| {
            Some(Given {
                request: said(&device.annotations, "request")?,
                device: said(&device.annotations, "device")?,
                admin: said(&device.annotations, "admin")?.parse().ok()?,
            })
        };
        let devices = spec.devices.iter();
        let devices: Vec<Given> = devices.map(given).collect::<Option<_>>()?;
        let mut cuts = BTreeMap::new();
        for (device, given) in spec.devices.iter().zip(&devices) {
            if let Some(words) = said(&device.annotations, "partition") {
                let slice = said(&device.annotations, "slice").unwrap_or_default();
                cuts.insert(given.device.clone(), Cut::of(&words, slice)?);
            }
        }
        Some(Prepared {
            uid: said(&spec.annotations, "uid")?,
            namespace: said(&spec.annotations, "namespace")?,
            name: said(&spec.annotations, "name")?,
            devices,
            cuts,
        })
    }
}

/// The directory with the specs, `/var/run/cdi`, in which others may have theirs.
#[derive(Clone, Debug)]
pub struct Specs {
    directory: PathBuf,
}

impl Specs {
    /// Touches nothing yet.
    pub fn new(directory: &Path) -> Specs {
        Specs {
            directory: directory.to_path_buf(),
        }
    }

    /// The file of a claim's spec; an error where the uid is none.
    fn file(&self, uid: &str) -> io::Result<PathBuf> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if uid.is_empty() || !uid.chars().all(plain) {
            let problem = format!("{uid:?} is no uid of a claim");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        Ok(file::path(&self.directory, &kind(), Some(uid)))
    }

    /// All claims that are prepared. A file that can't be understood is left alone, and said.
    ///
    /// # Errors
    ///
    /// When the directory can't be read; one that isn't there has no specs.
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
            let spec = serde_json::from_slice::<Spec>(&std::fs::read(&path)?).ok();
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

    /// Keeps a claim's spec, whole or not at all.
    ///
    /// # Errors
    ///
    /// When it can't be written.
    pub fn put(&self, prepared: &Prepared, edits: Vec<Edits>, with_any: Edits) -> io::Result<()> {
        file::write(&self.file(&prepared.uid)?, &prepared.spec(edits, with_any))
    }

    /// Forgets a claim; one that isn't known is none.
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
        let given = |request: &str, device: &str| Given {
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
    fn what_was_prepared_is_read_back_and_others_files_are_left_alone() {
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
    fn what_was_cut_for_a_claim_is_noted_before_and_after() {
        let directory = tempfile::tempdir().expect("a directory");
        let specs = Specs::new(directory.path());
        let mut claim = prepared("1");
        for slice in ["", "MIG-1"] {
            let cut = Cut {
                gpu: "GPU-ab".into(),
                place: Place {
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
