//! The agent's files on disk, by which a restarted agent finds its pods again, and the directories
//! of a pod below the data directory. A pod's spec and its lifecycle state are two files, each
//! replaced atomically.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use prost::Message;
use rpc::agent::v1::Assign;

use crate::error::{AgentError, file};
use crate::lifecycle::PodLifecycle;

/// The oldest format of the data directory whose agents read what this one writes. A release raises
/// it only if the release before reads the new one: an upgrade of agents may be undone.
const FORMAT: u32 = 1;
/// The newest format that this agent reads.
const FORMAT_READ_MAX: u32 = 1;
const FORMAT_FILE: &str = "format";
const FORMAT_NAME: &str = "muster-agent";

const ASSIGNED: &str = "assigned";
const STATE: &str = "state.json";

/// The paths below the data directory.
#[derive(Clone, Debug)]
pub struct DataLayout {
    data: PathBuf,
}

impl DataLayout {
    /// Creates the required directories.
    pub fn open(data: &Path) -> Result<DataLayout, AgentError> {
        private_dir(data)?;
        let data = data.canonicalize().map_err(file("resolve", data))?;
        check_format(&data)?;
        let layout = DataLayout { data };
        for dir in [
            layout.pods(),
            layout.logs(),
            layout.data.join("volumes"),
            layout.claims(),
            layout.identity(),
        ] {
            private_dir(&dir)?;
        }
        layout.sweep()?;
        for name in fs::read_dir(layout.identity()).map_err(file("read", layout.identity()))? {
            let path = name.map_err(file("read", layout.identity()))?.path();
            tighten(&path, 0o600)?;
        }
        Ok(layout)
    }

    /// Removes temporary files that a killed agent left: beside the agent's own files, its identity
    /// and each pod's record. If that fails the agent continues.
    fn sweep(&self) -> Result<(), AgentError> {
        let pods = self.pods();
        let mut directories = vec![self.data.clone(), self.identity()];
        for entry in fs::read_dir(&pods).map_err(file("read", &pods))? {
            directories.push(entry.map_err(file("read", &pods))?.path());
        }
        for directory in directories.iter().filter(|path| path.is_dir()) {
            if let Err(error) = durable::sweep(directory) {
                tracing::warn!(%error, "temporary files of an earlier agent are left over");
            }
        }
        Ok(())
    }

    /// The directory of all pods.
    pub fn pods(&self) -> PathBuf {
        self.data.join("pods")
    }

    /// The directory of one pod.
    pub fn pod(&self, uid: &str) -> PodDir {
        PodDir {
            dir: self.pods().join(uid),
        }
    }

    /// The directory of the pods' networks.
    pub fn networks(&self) -> PathBuf {
        self.data.join("networks")
    }

    /// The directory of all logs, which outlast the pods.
    pub fn logs(&self) -> PathBuf {
        self.data.join("logs")
    }

    /// The directory of all claims, which outlast the pods too.
    pub fn claims(&self) -> PathBuf {
        self.data.join("volumes").join("claims")
    }

    /// The directory of key and certificates.
    pub fn identity(&self) -> PathBuf {
        self.data.join("identity")
    }

    /// The file with the machine's PCIe tree, for NCCL.
    pub fn topology(&self) -> PathBuf {
        self.data.join("nccl-topology.xml")
    }

    /// The file with the ids of namespaces.
    pub fn pod_ids(&self) -> PathBuf {
        self.data.join("pod-ids.json")
    }

    /// The directory where subPaths are bound for a container runtime while containers start.
    pub fn sub_paths(&self) -> PathBuf {
        self.data.join("sub-paths")
    }

    /// The process runtime's own directory.
    pub fn containers(&self) -> PathBuf {
        self.data.join("containers")
    }

    /// The pods found on disk; a record that can't be read is logged and left alone.
    pub fn kept_pods(&self) -> Result<Vec<(Assign, PodLifecycle)>, AgentError> {
        let dir = self.pods();
        let mut found = Vec::new();
        for entry in fs::read_dir(&dir).map_err(file("read", &dir))? {
            let entry = entry.map_err(file("read", &dir))?;
            let pod = PodDir { dir: entry.path() };
            match pod.load() {
                Ok(Some(kept)) => found.push(kept),
                // The agent ended before the pod's spec was written: the server sends it again.
                Ok(None) => drop(fs::remove_dir_all(&pod.dir)),
                Err(error) => {
                    tracing::warn!(%error, "the agent cannot read a pod's record and leaves the file in place")
                }
            }
        }
        Ok(found)
    }
}

/// Refuses a data directory that a newer agent wrote in another format, and records this agent's. A
/// directory without the record is of the first format.
fn check_format(data: &Path) -> Result<(), AgentError> {
    let path = data.join(FORMAT_FILE);
    let found = match fs::read_to_string(&path) {
        Ok(text) => {
            let number = text.trim_end().strip_prefix(FORMAT_NAME);
            let number = number.and_then(|number| number.trim_start().parse::<u32>().ok());
            number.ok_or_else(|| AgentError::DataFormat {
                path: data.to_owned(),
                found: text.trim_end().to_owned(),
                newest: FORMAT_READ_MAX,
            })?
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(file("read", path)(error)),
    };
    if found > FORMAT_READ_MAX {
        return Err(AgentError::DataFormat {
            path: data.to_owned(),
            found: found.to_string(),
            newest: FORMAT_READ_MAX,
        });
    }
    if found == FORMAT {
        return Ok(());
    }
    replace(&path, format!("{FORMAT_NAME} {FORMAT}\n").as_bytes())
}

/// Creates a directory that only its owner may enter; an existing one gets that mode.
pub fn private_dir(dir: &Path) -> Result<(), AgentError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(file("make", dir))?;
    tighten(dir, 0o700)
}

/// Removes mode bits beyond `allowed`, and logs that: an earlier version or an administrator left
/// the path open to other users of this machine.
fn tighten(path: &Path, allowed: u32) -> Result<(), AgentError> {
    let mode = fs::symlink_metadata(path)
        .map_err(file("look at", path))?
        .permissions()
        .mode()
        & 0o7777;
    if mode & !allowed == 0 {
        return Ok(());
    }
    tracing::warn!(
        path = %path.display(),
        "others could read it (mode {mode:o}); its mode is {:o} now",
        mode & allowed
    );
    fs::set_permissions(path, fs::Permissions::from_mode(mode & allowed))
        .map_err(file("protect", path))
}

/// Whether a uid is a valid directory name; every uid from the API is.
pub fn valid_uid(uid: &str) -> bool {
    !uid.is_empty()
        && uid.len() <= 64
        && uid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// One pod's directory.
#[derive(Clone, Debug)]
pub struct PodDir {
    dir: PathBuf,
}

impl PodDir {
    /// The directory of its volumes.
    pub fn volumes(&self) -> PathBuf {
        self.dir.join("volumes")
    }

    /// Its hosts file.
    pub fn hosts(&self) -> PathBuf {
        self.dir.join("hosts")
    }

    /// Its `resolv.conf`, if it has one of its own.
    pub fn resolv_conf(&self) -> PathBuf {
        self.dir.join("resolv.conf")
    }

    /// The directory of all runs' termination messages.
    pub fn messages(&self) -> PathBuf {
        self.dir.join("messages")
    }

    /// The file of a run's termination message.
    pub fn message(&self, container: &str, attempt: u32) -> PathBuf {
        self.messages().join(format!("{container}.{attempt}"))
    }

    /// Creates an empty file for a run's termination message.
    pub fn make_message(&self, container: &str, attempt: u32) -> io::Result<PathBuf> {
        let path = self.message(container, attempt);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&path, "")?;
        // Any user as which the container runs may write it.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
        Ok(path)
    }

    /// Saves the spec.
    pub fn keep_assigned(&self, assigned: &Assign) -> Result<(), AgentError> {
        private_dir(&self.dir)?;
        replace(&self.dir.join(ASSIGNED), &assigned.encode_to_vec())?;
        // The directory may be new: its entry must survive a power failure, too.
        let above = self.dir.parent().unwrap_or(&self.dir);
        durable::sync_directory(above).map_err(|error| file("sync", above)(error.into()))
    }

    /// Saves the state.
    pub fn keep_state(&self, machine: &PodLifecycle) -> Result<(), AgentError> {
        let json =
            serde_json::to_vec(machine).expect("a pod's state is plain data and always JSON");
        replace(&self.dir.join(STATE), &json)
    }

    /// Whether files that its containers may have written are still there.
    pub fn holds_files(&self) -> bool {
        self.volumes().exists() || self.messages().exists()
    }

    /// Removes the files that its containers may have written: volumes and termination messages.
    pub fn clear(&self) -> Result<(), AgentError> {
        let (volumes, messages) = (self.volumes(), self.messages());
        crate::volumes::remove(&volumes).map_err(file("remove", &volumes))?;
        match fs::remove_dir_all(&messages) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(file("remove", &messages)(error))
            }
            _ => Ok(()),
        }
    }

    /// Removes all but the logs, which are stored elsewhere.
    pub fn remove(&self) -> Result<(), AgentError> {
        let volumes = self.volumes();
        crate::volumes::remove(&volumes).map_err(file("remove", &volumes))?;
        match fs::remove_dir_all(&self.dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(file("remove", &self.dir)(error))
            }
            _ => Ok(()),
        }
    }

    pub fn load(&self) -> Result<Option<(Assign, PodLifecycle)>, AgentError> {
        let path = self.dir.join(ASSIGNED);
        let damaged = |path: &Path, detail: String| AgentError::File {
            action: "understand",
            path: path.to_owned(),
            source: io::Error::new(io::ErrorKind::InvalidData, detail),
        };
        let assigned = match fs::read(&path) {
            Ok(bytes) => {
                Assign::decode(bytes.as_slice()).map_err(|e| damaged(&path, e.to_string()))?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(file("read", path)(error)),
        };
        let path = self.dir.join(STATE);
        let machine = match fs::read(&path) {
            Ok(bytes) => {
                serde_json::from_slice(&bytes).map_err(|e| damaged(&path, e.to_string()))?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => PodLifecycle::default(),
            Err(error) => return Err(file("read", path)(error)),
        };
        Ok(Some((assigned, machine)))
    }
}

/// Replaces a file atomically; it is on disk when this returns, and readable by its owner only
/// (specs contain Secrets' values).
pub fn replace(path: &Path, content: &[u8]) -> Result<(), AgentError> {
    durable::replace(path, content).map_err(|error| file("write", path)(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agents_files_are_private_to_its_owner_also_after_a_wider_mode() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("agent");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        fs::create_dir_all(data.join("identity")).unwrap();
        fs::write(data.join("identity/identity.json"), "key").unwrap();
        for (path, open) in [
            ("", 0o755),
            ("identity", 0o755),
            ("identity/identity.json", 0o644),
        ] {
            fs::set_permissions(data.join(path), fs::Permissions::from_mode(open)).unwrap();
        }
        DataLayout::open(&data).unwrap();
        for name in ["", "pods", "logs", "identity", "volumes", "volumes/claims"] {
            assert_eq!(mode(&data.join(name)), 0o700, "{name}");
        }
        assert_eq!(mode(&data.join("identity/identity.json")), 0o600);
    }

    #[test]
    fn a_newer_agents_directory_is_refused_and_an_older_one_is_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FORMAT_FILE);
        let own = format!("{FORMAT_NAME} {FORMAT}\n");
        for (text, opens) in [
            (None, true),
            (Some(own.clone()), true),
            (
                Some(format!("{FORMAT_NAME} {}\n", FORMAT_READ_MAX + 1)),
                false,
            ),
            (Some("muster-agent x\n".to_owned()), false),
            (Some(String::new()), false),
        ] {
            match &text {
                Some(text) => fs::write(&path, text).unwrap(),
                None => assert!(!path.exists()),
            }
            let opened = DataLayout::open(dir.path());
            assert_eq!(opened.is_ok(), opens, "{text:?}");
            if let Err(error) = opened {
                assert!(error.to_string().contains("newer agent"), "{error}");
            }
            let expected = text.filter(|_| !opens).unwrap_or_else(|| own.clone());
            assert_eq!(fs::read_to_string(&path).unwrap(), expected);
        }
    }

    #[test]
    fn a_pod_is_found_again_with_its_state() {
        let dir = tempfile::tempdir().unwrap();
        let layout = DataLayout::open(dir.path()).unwrap();
        let assigned = Assign {
            pod_json: "{}".to_owned(),
            ..Assign::default()
        };
        let mut machine = PodLifecycle::default();
        machine.stop(3, "x", jiff::Timestamp::from_second(5).unwrap());
        let pod = layout.pod("u");
        pod.keep_assigned(&assigned).unwrap();
        pod.keep_state(&machine).unwrap();
        assert_eq!(layout.kept_pods().unwrap(), [(assigned, machine)]);
        pod.remove().unwrap();
        pod.remove().unwrap();
        assert!(layout.kept_pods().unwrap().is_empty());
    }

    #[test]
    fn a_damaged_record_is_left_alone_and_an_incomplete_record_is_cleared() {
        let dir = tempfile::tempdir().unwrap();
        let layout = DataLayout::open(dir.path()).unwrap();
        fs::create_dir(layout.pods().join("half")).unwrap();
        fs::create_dir(layout.pods().join("damaged")).unwrap();
        fs::write(layout.pods().join("damaged/assigned"), [0xff]).unwrap();
        assert!(layout.kept_pods().unwrap().is_empty());
        assert!(layout.pods().join("damaged").exists());
        assert!(!layout.pods().join("half").exists());
    }

    #[test]
    fn only_harmless_uids_name_directories() {
        assert!(valid_uid("0f9e-AB"));
        for bad in ["", ".", "..", "a/b", "a b", &"a".repeat(65)] {
            assert!(!valid_uid(bad), "{bad}");
        }
    }
}
