//! The driver's files that programs on a GPU need: their place below a root, and their place in a
//! container. No hook runs in the container and its linker's cache stays unchanged, so each library
//! is mounted where the linkers of common images look by default: for Debian and Ubuntu in the
//! directory of the architecture, for Red Hat and SUSE in `/usr/lib64`.

use std::path::{Component, Path, PathBuf};

use super::CdiMount;

/// Libraries for compute, monitoring and video. A name that ends with `.*` has the driver's version
/// there.
pub const LIBRARIES: [&str; 16] = [
    "libcuda.so",
    "libcuda.so.1",
    "libcudadebugger.so.1",
    "libnvcuvid.so.1",
    "libnvidia-allocator.so.1",
    "libnvidia-cfg.so.1",
    "libnvidia-encode.so.1",
    "libnvidia-gpucomp.so.*",
    "libnvidia-ml.so",
    "libnvidia-ml.so.1",
    "libnvidia-nvvm.so.4",
    "libnvidia-nvvm70.so.4",
    "libnvidia-opencl.so.1",
    "libnvidia-opticalflow.so.1",
    "libnvidia-pkcs11-openssl3.so.*",
    "libnvidia-ptxjitcompiler.so.1",
];

/// Programs, mounted in `/usr/bin`.
pub const PROGRAMS: [&str; 1] = ["nvidia-smi"];

/// Where the linkers of common images look for libraries.
#[cfg(target_arch = "aarch64")]
const MULTIARCH: &str = "usr/lib/aarch64-linux-gnu";
#[cfg(not(target_arch = "aarch64"))]
const MULTIARCH: &str = "usr/lib/x86_64-linux-gnu";
const LIB64: &str = "usr/lib64";

/// Maximum number of links to follow before a file is skipped.
const MAX_LINKS: usize = 40;

/// The files below `seen`, which is the machine's `root` as this process sees it.
pub fn mounts(seen: &Path, root: &Path) -> Vec<CdiMount> {
    let nested = format!("{MULTIARCH}/nvidia/current");
    let libraries = [MULTIARCH, &nested, LIB64, "usr/lib"];
    let mut mounts = Vec::new();
    for wanted in LIBRARIES {
        let Some((name, file)) = libraries.iter().find_map(|dir| find(seen, dir, wanted)) else {
            continue;
        };
        for to in [MULTIARCH, LIB64] {
            mounts.push(mount(root, &file, Path::new("/").join(to).join(&name)));
        }
    }
    for name in PROGRAMS {
        if let Some((_, file)) = find(seen, "usr/bin", name) {
            mounts.push(mount(root, &file, Path::new("/usr/bin").join(name)));
        }
    }
    mounts
}

fn mount(root: &Path, file: &Path, container_path: PathBuf) -> CdiMount {
    CdiMount {
        host_path: root.join(file),
        container_path,
        options: ["ro", "nosuid", "nodev", "rbind", "rprivate"]
            .map(String::from)
            .to_vec(),
    }
}

/// Finds a file of a directory by its name or, with `.*` at the end, by its prefix: returns its
/// name there, and its resolved path below the root.
fn find(seen: &Path, directory: &str, wanted: &str) -> Option<(String, PathBuf)> {
    let name = match wanted.strip_suffix('*') {
        None => wanted.to_owned(),
        Some(start) => {
            let entries = std::fs::read_dir(seen.join(resolve(seen, directory.as_ref())?)).ok()?;
            let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            names.filter(|name| name.starts_with(start)).max()?
        }
    };
    let file = resolve(seen, &Path::new(directory).join(&name))?;
    seen.join(&file).is_file().then_some((name, file))
}

/// Resolves a path below a root, with links followed as if the root were `/`; `None` for a dangling
/// link or a loop.
fn resolve(root: &Path, path: &Path) -> Option<PathBuf> {
    let parts = |path: &Path| -> Vec<PathBuf> {
        let parts = path.components().rev();
        parts.map(|part| PathBuf::from(part.as_os_str())).collect()
    };
    let mut left = parts(path);
    let mut at = PathBuf::new();
    let mut links = 0;
    while let Some(part) = left.pop() {
        match part.components().next()? {
            Component::RootDir | Component::Prefix(_) => at = PathBuf::new(),
            Component::CurDir => {}
            Component::ParentDir => {
                at.pop();
            }
            Component::Normal(name) => {
                let next = at.join(name);
                let there = root.join(&next);
                if there.symlink_metadata().ok()?.is_symlink() {
                    links += 1;
                    if links > MAX_LINKS {
                        return None;
                    }
                    left.extend(parts(&there.read_link().ok()?));
                } else {
                    at = next;
                }
            }
        }
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn file(root: &Path, path: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("it is made");
        fs::write(path, "").expect("it is written");
    }

    /// The mounts of a root as `FROM TO`, without those of `/usr/lib64`, which repeat the others.
    fn told(seen: &Path, root: &str) -> Vec<String> {
        let mounts = mounts(seen, root.as_ref());
        let of64 = |mount: &&CdiMount| mount.container_path.starts_with("/usr/lib64");
        let doubled = mounts.iter().filter(of64).count();
        let rest: Vec<String> = (mounts.iter())
            .filter(|mount| !of64(mount))
            .map(|m| format!("{} {}", m.host_path.display(), m.container_path.display()))
            .collect();
        let libraries = rest
            .iter()
            .filter(|line| !line.contains("/usr/bin"))
            .count();
        assert_eq!(doubled, libraries);
        rest
    }

    #[test]
    fn libraries_are_found_by_the_links_of_each_distribution_and_never_outside_the_root() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path();
        // Debian: a link to /etc/alternatives, from there into another directory.
        file(
            root,
            &format!("{MULTIARCH}/nvidia/current/libcuda.so.550.1"),
        );
        fs::create_dir_all(root.join("etc/alternatives")).expect("a directory");
        let real = format!("/{MULTIARCH}/nvidia/current/libcuda.so.550.1");
        symlink(real, root.join("etc/alternatives/cuda")).expect("a link");
        let soname = root.join(MULTIARCH).join("libcuda.so.1");
        symlink("/etc/alternatives/cuda", soname).expect("a link");
        // Red Hat: by the driver's version, in a directory that is itself a link.
        file(root, "usr/lib64/libnvidia-gpucomp.so.550.1");
        file(root, "usr/lib64/libnvidia-ml.so.550.1");
        symlink(
            "libnvidia-ml.so.550.1",
            root.join("usr/lib64/libnvidia-ml.so.1"),
        )
        .expect("a link");
        // A loop, a link out of the root, and a dangling link.
        symlink(
            "libnvidia-cfg.so.1",
            root.join("usr/lib64/libnvidia-cfg.so.1"),
        )
        .expect("a link");
        let out = "../../../../../../../../../etc/hostname";
        symlink(out, root.join("usr/lib64/libnvcuvid.so.1")).expect("a link");
        symlink("gone", root.join("usr/lib64/libnvidia-encode.so.1")).expect("a link");
        file(root, "usr/bin/nvidia-smi");
        let wanted = [
            format!("/r/{MULTIARCH}/nvidia/current/libcuda.so.550.1 /{MULTIARCH}/libcuda.so.1"),
            format!(
                "/r/usr/lib64/libnvidia-gpucomp.so.550.1 /{MULTIARCH}/libnvidia-gpucomp.so.550.1"
            ),
            format!("/r/usr/lib64/libnvidia-ml.so.550.1 /{MULTIARCH}/libnvidia-ml.so.1"),
            "/r/usr/bin/nvidia-smi /usr/bin/nvidia-smi".to_owned(),
        ];
        assert_eq!(told(root, "/r"), wanted);
    }

    #[test]
    fn a_machine_without_the_driver_has_none_of_its_files() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(mounts(dir.path(), Path::new("/")), []);
    }
}
