//! A pod's volumes on disk: created before its first container starts, removed after its last one
//! ended. Claims are directories that stay. Owns each volume's path; the runtime does the mounting.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::{Pod, Volume};
use resources::invalid_value::InvalidValue;
use resources::quantity::Quantity;
use rpc::agent::v1::{VolumeData, VolumeFile};

use crate::fields::{self, NodeFieldValues, ReferenceError};

/// Kubernetes' mode for the files of ConfigMap, Secret and similar volumes.
const DEFAULT_FILE_MODE: u32 = 0o644;

/// The types of a hostPath.
const HOST_PATH_TYPES: &str = "DirectoryOrCreate, Directory, FileOrCreate, File, Socket, CharDevice, BlockDevice, or \
                               leave it out";

/// The path of one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumePath {
    /// The directory or file.
    pub path: PathBuf,
    /// Whether it is read-only for every mount.
    pub read_only: bool,
}

/// The paths of a pod's volumes, by name.
pub type VolumePaths = BTreeMap<String, VolumePath>;

/// The inputs for volumes.
pub struct VolumeInputs<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// The server's data from ConfigMaps, Secrets and claims.
    pub data: &'a [VolumeData],
    /// The node.
    pub node: &'a NodeFieldValues,
    /// The pod's directory for volumes.
    pub pod_dir: &'a Path,
    /// The directory of all claims of this node.
    pub claims_dir: &'a Path,
    /// The user and group of the pod's own files; the agent's if `None`.
    pub owner: Option<(u32, u32)>,
    /// The group of writable volumes and files.
    pub group: Option<u32>,
}

/// A volume that can't be created yet; its text is in the kubelet's words.
#[derive(Debug, thiserror::Error)]
#[error("MountVolume.SetUp failed for volume {volume:?} : {problem}")]
pub struct VolumeError {
    /// The volume.
    pub volume: String,
    /// Why.
    pub problem: VolumeProblem,
}

/// Why a volume can't be created.
#[derive(Debug, thiserror::Error)]
pub enum VolumeProblem {
    /// The server lacks its source; in its words.
    #[error("{0}")]
    Source(String),
    /// The server sent nothing about the volume's claim.
    #[error("the server sent nothing about its claim")]
    NoClaim,
    /// The volume's kind is not supported.
    #[error(
        "its kind is not supported on nodes that run pods as processes; use emptyDir, hostPath, configMap, secret, projected, downwardAPI or persistentVolumeClaim"
    )]
    Kind,
    /// A downward API file has no value.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// A name or path that can't be used.
    #[error(transparent)]
    Field(#[from] InvalidValue),
    /// The hostPath is of another type.
    #[error("hostPath type check failed: {} is not a {wanted}", path.display())]
    HostPathType {
        /// The path.
        path: PathBuf,
        /// The wanted type.
        wanted: &'static str,
    },
    /// A file operation failed.
    #[error("{}: {source}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The memory-backed directory can't be mounted.
    #[error("{0}")]
    Memory(String),
}

/// Creates the pod's volumes; existing ones are left, so that a retry is safe.
///
/// # Errors
///
/// When a volume can't be created: the pod waits, and the next try may succeed.
pub fn prepare(sources: &VolumeInputs) -> Result<VolumePaths, VolumeError> {
    let spec = sources.pod.spec.as_ref();
    let mut places = VolumePaths::new();
    let volumes = spec.and_then(|spec| spec.volumes.as_ref());
    for volume in volumes.into_iter().flatten() {
        let place = one(volume, sources, sources.group).map_err(|problem| VolumeError {
            volume: volume.name.clone(),
            problem,
        })?;
        places.insert(volume.name.clone(), place);
    }
    Ok(places)
}

fn one(
    volume: &Volume,
    sources: &VolumeInputs,
    group: Option<u32>,
) -> Result<VolumePath, VolumeProblem> {
    let own = sources.pod_dir.join(plain(&volume.name)?);
    let data = sources.data.iter().find(|data| data.volume == volume.name);
    if let Some(data) = data.filter(|data| !data.problem.is_empty()) {
        return Err(VolumeProblem::Source(data.problem.clone()));
    }
    let namespace = sources
        .pod
        .metadata
        .namespace
        .as_deref()
        .unwrap_or_default();
    if let Some(source) = &volume.empty_dir {
        make_dir(&own, 0o777)?;
        if source.medium.as_deref() == Some("Memory") {
            let size = source
                .size_limit
                .as_ref()
                .and_then(|size| size.0.parse::<Quantity>().ok())
                .and_then(|size| u64::try_from(size.value()).ok());
            runtime::volumes::mount_memory(&own, size)
                .map_err(|error| VolumeProblem::Memory(error.to_string()))?;
        }
        give_to_owner(&own, sources.owner)?;
        give_to_group(&own, group)?;
        return Ok(VolumePath {
            path: own,
            read_only: false,
        });
    }
    if let Some(source) = &volume.host_path {
        let path = host_path(
            Path::new(&source.path),
            source.type_.as_deref().unwrap_or_default(),
        )?;
        return Ok(VolumePath {
            path,
            read_only: false,
        });
    }
    if volume.persistent_volume_claim.is_some() {
        let data = data.ok_or(VolumeProblem::NoClaim)?;
        let path = sources
            .claims_dir
            .join(plain(namespace)?)
            .join(plain(&data.claim)?);
        make_dir(&path, 0o777)?;
        give_to_group(&path, group)?;
        return Ok(VolumePath {
            path,
            read_only: data.read_only,
        });
    }
    if let Some(files) = files_of(volume, data, sources)? {
        let mode = default_mode(volume);
        write_files(&own, &files, mode, group, sources.owner)?;
        return Ok(VolumePath {
            path: own,
            read_only: true,
        });
    }
    Err(VolumeProblem::Kind)
}

/// The files of a volume that consists of files.
fn files_of(
    volume: &Volume,
    data: Option<&VolumeData>,
    sources: &VolumeInputs,
) -> Result<Option<Vec<VolumeFile>>, VolumeProblem> {
    let fetched = || data.map(|data| data.files.clone()).unwrap_or_default();
    if volume.config_map.is_some() || volume.secret.is_some() {
        return Ok(Some(fetched()));
    }
    let downward = |items: &[k8s_openapi::api::core::v1::DownwardAPIVolumeFile]| {
        items
            .iter()
            .map(|item| {
                Ok(VolumeFile {
                    path: item.path.clone(),
                    data: fields::file(sources.pod, sources.node, item)?.into_bytes(),
                    mode: item
                        .mode
                        .and_then(|mode| u32::try_from(mode).ok())
                        .unwrap_or(0),
                })
            })
            .collect::<Result<Vec<_>, VolumeProblem>>()
    };
    if let Some(source) = &volume.downward_api {
        return downward(source.items.as_deref().unwrap_or_default()).map(Some);
    }
    if let Some(source) = &volume.projected {
        let mut files = fetched();
        for projection in source.sources.iter().flatten() {
            if let Some(api) = &projection.downward_api {
                files.extend(downward(api.items.as_deref().unwrap_or_default())?);
            }
        }
        return Ok(Some(files));
    }
    Ok(None)
}

fn default_mode(volume: &Volume) -> u32 {
    let mode = [
        volume.config_map.as_ref().and_then(|s| s.default_mode),
        volume.secret.as_ref().and_then(|s| s.default_mode),
        volume.downward_api.as_ref().and_then(|s| s.default_mode),
        volume.projected.as_ref().and_then(|s| s.default_mode),
    ];
    let mode = mode.into_iter().flatten().next();
    mode.and_then(|mode| u32::try_from(mode).ok())
        .unwrap_or(DEFAULT_FILE_MODE)
}

fn write_files(
    dir: &Path,
    files: &[VolumeFile],
    mode: u32,
    group: Option<u32>,
    owner: Option<(u32, u32)>,
) -> Result<(), VolumeProblem> {
    make_dir(dir, 0o755)?;
    for file in files {
        let path = dir.join(relative(&file.path)?);
        if let Some(parent) = path.parent() {
            make_dir(parent, 0o755)?;
        }
        // Replaces the old file atomically: a reader sees either, whole.
        let mut temporary = path.clone();
        temporary.as_mut_os_string().push(".new");
        let written = (|| {
            fs::write(&temporary, &file.data)?;
            let mode = if file.mode == 0 { mode } else { file.mode };
            fs::set_permissions(&temporary, fs::Permissions::from_mode(mode & 0o777))?;
            // A Secret with mode 0400 is for the pod, and the pod is not root.
            if let Some((user, group)) = owner {
                chown(&temporary, Some(user), Some(group))?;
            }
            if let Some(group) = group {
                chown(&temporary, None, Some(group))?;
                let readable = (mode | 0o440) & 0o777;
                fs::set_permissions(&temporary, fs::Permissions::from_mode(readable))?;
            }
            fs::rename(&temporary, &path)
        })();
        written.map_err(failed(&path))?;
    }
    Ok(())
}

/// Checks a hostPath by its type, and creates it if the type requires that.
fn host_path(path: &Path, kind: &str) -> Result<PathBuf, VolumeProblem> {
    if !path.is_absolute() || path.components().any(|c| c == Component::ParentDir) {
        let valid = "an absolute path without '..'";
        return Err(InvalidValue::new("hostPath.path", path.to_string_lossy(), valid).into());
    }
    let found = fs::metadata(path).ok();
    let wrong = |wanted: &'static str| VolumeProblem::HostPathType {
        path: path.to_owned(),
        wanted,
    };
    let is = |test: fn(&fs::Metadata) -> bool| found.as_ref().is_some_and(test);
    match kind {
        "" => {
            // Kubernetes leaves a missing path to the runtime, which creates a directory.
            if found.is_none() {
                make_dir(path, 0o755)?;
            }
        }
        "DirectoryOrCreate" => {
            if found.is_none() {
                make_dir(path, 0o755)?;
            } else if !is(fs::Metadata::is_dir) {
                return Err(wrong("directory"));
            }
        }
        "FileOrCreate" => {
            if found.is_none() {
                fs::File::create_new(path)
                    .and_then(|file| file.set_permissions(fs::Permissions::from_mode(0o644)))
                    .map_err(failed(path))?;
            } else if !is(fs::Metadata::is_file) {
                return Err(wrong("file"));
            }
        }
        "Directory" if !is(fs::Metadata::is_dir) => return Err(wrong("directory")),
        "File" if !is(fs::Metadata::is_file) => return Err(wrong("file")),
        "Socket" if !is(|m| m.file_type().is_socket()) => return Err(wrong("socket")),
        "CharDevice" if !is(|m| m.file_type().is_char_device()) => {
            return Err(wrong("character device"));
        }
        "BlockDevice" if !is(|m| m.file_type().is_block_device()) => {
            return Err(wrong("block device"));
        }
        "Directory" | "File" | "Socket" | "CharDevice" | "BlockDevice" => {}
        other => return Err(InvalidValue::new("hostPath.type", other, HOST_PATH_TYPES).into()),
    }
    Ok(path.to_owned())
}

/// Removes a pod's volumes; memory-backed ones are unmounted first.
pub fn remove(pod_dir: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(pod_dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        runtime::volumes::unmount(&entry?.path()).map_err(io::Error::other)?;
    }
    runtime::volumes::remove_tree(pod_dir)
}

fn give_to_owner(path: &Path, owner: Option<(u32, u32)>) -> Result<(), VolumeProblem> {
    let Some((user, group)) = owner else {
        return Ok(());
    };
    chown(path, Some(user), Some(group)).map_err(failed(path))
}

fn give_to_group(path: &Path, group: Option<u32>) -> Result<(), VolumeProblem> {
    let Some(group) = group else { return Ok(()) };
    chown(path, None, Some(group)).map_err(failed(path))?;
    // Files that are created inside belong to the group too.
    fs::set_permissions(path, fs::Permissions::from_mode(0o2777)).map_err(failed(path))
}

fn make_dir(path: &Path, mode: u32) -> Result<(), VolumeProblem> {
    if path.is_dir() {
        return Ok(());
    }
    runtime::volumes::open_dir(path)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)))
        .map_err(failed(path))
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> VolumeProblem {
    let path = path.to_owned();
    move |source| VolumeProblem::File { path, source }
}

/// Checks that a name is a single path component.
fn plain(name: &str) -> Result<&str, InvalidValue> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(part)), None) if part == name => Ok(name),
        _ => Err(InvalidValue::new("name", name, "the name of a directory")),
    }
}

/// Checks that a path stays below its directory.
fn relative(path: &str) -> Result<&Path, InvalidValue> {
    let path = Path::new(path);
    let fine = path.components().next().is_some()
        && path
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
    if fine {
        Ok(path)
    } else {
        let valid = "a relative path without '..'";
        Err(InvalidValue::new("path", path.to_string_lossy(), valid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn try_prepare(
        dir: &Path,
        volumes: Value,
        data: Vec<VolumeData>,
    ) -> Result<VolumePaths, VolumeError> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "p", "labels": {"a": "b"}},
            "spec": {"containers": [], "volumes": volumes}}))
        .unwrap();
        prepare(&VolumeInputs {
            pod: &pod,
            data: &data,
            node: &NodeFieldValues::default(),
            pod_dir: &dir.join("pod"),
            claims_dir: &dir.join("claims"),
            owner: None,
            group: None,
        })
    }

    fn file(path: &str, data: &str, mode: u32) -> VolumeFile {
        VolumeFile {
            path: path.to_owned(),
            data: data.as_bytes().to_vec(),
            mode,
        }
    }

    fn config(files: Vec<VolumeFile>) -> Vec<VolumeData> {
        vec![VolumeData {
            volume: "v".to_owned(),
            files,
            ..VolumeData::default()
        }]
    }

    #[test]
    fn files_are_written_with_their_modes_and_read_only() {
        let dir = tempfile::tempdir().unwrap();
        let data = config(vec![file("a", "1", 0), file("sub/b", "2", 0o400)]);
        let places = try_prepare(
            dir.path(),
            json!([{"name": "v", "configMap": {"name": "c"}}]),
            data,
        )
        .unwrap();
        assert!(places["v"].read_only);
        let at = |path| places["v"].path.join(path);
        assert_eq!(fs::read_to_string(at("a")).unwrap(), "1");
        let mode = |path| fs::metadata(at(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("a"), mode("sub/b")), (0o644, 0o400));
    }

    #[test]
    fn no_file_leaves_its_volume() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["../x", "/etc/x", "", "a/../../x", "."] {
            let data = config(vec![file(path, "1", 0)]);
            let refused = try_prepare(
                dir.path(),
                json!([{"name": "v", "configMap": {"name": "c"}}]),
                data,
            );
            assert!(refused.is_err(), "{path:?}");
        }
        assert!(
            try_prepare(
                dir.path(),
                json!([{"name": "../v", "emptyDir": {}}]),
                vec![]
            )
            .is_err()
        );
    }

    #[test]
    fn an_empty_dir_keeps_its_content_until_it_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let volumes = json!([{"name": "v", "emptyDir": {}}]);
        let places = try_prepare(dir.path(), volumes.clone(), vec![]).unwrap();
        fs::write(places["v"].path.join("kept"), "x").unwrap();
        let again = try_prepare(dir.path(), volumes, vec![]).unwrap();
        assert!(again["v"].path.join("kept").exists());
        remove(&dir.path().join("pod")).unwrap();
        assert!(!again["v"].path.exists());
        remove(&dir.path().join("pod")).unwrap();
    }

    #[test]
    fn a_claim_is_a_directory_that_outlives_the_pod() {
        let dir = tempfile::tempdir().unwrap();
        let data = vec![VolumeData {
            volume: "v".to_owned(),
            claim: "disk".to_owned(),
            ..VolumeData::default()
        }];
        let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "disk"}}]);
        let places = try_prepare(dir.path(), volumes, data).unwrap();
        assert_eq!(places["v"].path, dir.path().join("claims/ns/disk"));
        remove(&dir.path().join("pod")).unwrap();
        assert!(places["v"].path.is_dir());
    }

    #[test]
    fn a_host_path_is_checked_by_its_type() {
        let dir = tempfile::tempdir().unwrap();
        let there = dir.path().join("there");
        fs::create_dir(&there).unwrap();
        let a_file = dir.path().join("file");
        fs::write(&a_file, "").unwrap();
        let new = |name: &str| dir.path().join(name);
        for (path, kind, good) in [
            (there.clone(), "Directory", true),
            (there.clone(), "File", false),
            (a_file.clone(), "File", true),
            (a_file.clone(), "Directory", false),
            (a_file, "Socket", false),
            (new("x"), "Directory", false),
            (new("y"), "DirectoryOrCreate", true),
            (new("z"), "FileOrCreate", true),
            (there, "Nonsense", false),
            (PathBuf::from("relative"), "", false),
            (PathBuf::from("/a/../b"), "", false),
        ] {
            assert_eq!(
                host_path(&path, kind).is_ok(),
                good,
                "{} {kind}",
                path.display()
            );
        }
    }

    #[test]
    fn a_downward_api_file_has_the_value_of_its_field() {
        let dir = tempfile::tempdir().unwrap();
        let volumes = json!([{"name": "v", "downwardAPI": {"items": [
            {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}}]);
        let places = try_prepare(dir.path(), volumes, vec![]).unwrap();
        assert_eq!(
            fs::read_to_string(places["v"].path.join("labels")).unwrap(),
            "a=\"b\""
        );
    }

    #[test]
    fn missing_and_unsupported_sources_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let data = vec![VolumeData {
            volume: "v".to_owned(),
            problem: "configmap \"c\" not found".to_owned(),
            ..VolumeData::default()
        }];
        let volumes = json!([{"name": "v", "configMap": {"name": "c"}}]);
        assert_eq!(
            try_prepare(dir.path(), volumes, data)
                .unwrap_err()
                .to_string(),
            "MountVolume.SetUp failed for volume \"v\" : configmap \"c\" not found"
        );
        let volumes = json!([{"name": "v", "nfs": {"server": "s", "path": "/"}}]);
        assert!(
            try_prepare(dir.path(), volumes, vec![])
                .unwrap_err()
                .to_string()
                .contains("not supported")
        );
    }
}
