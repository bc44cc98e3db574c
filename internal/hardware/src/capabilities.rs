//! The device files through which programs use a MIG slice (`/dev/nvidia-caps/nvidia-capN`). NVIDIA's driver creates
//! one for each GPU instance and one for each compute instance in it, and lists their numbers in proc. Paths are
//! below a root.

use std::fs;
use std::path::Path;

/// The driver's directory with those numbers.
const CAPABILITIES: &str = "proc/driver/nvidia/capabilities";

/// The numbers of the files that a user of a compute instance needs: its GPU instance's, then its own. `gpu` is the
/// number in the GPU's device file's name. Empty unless the driver lists both, because one without the other opens
/// nothing.
pub(crate) fn of_slice(root: &Path, gpu: u32, instance: u32, compute: u32) -> Vec<u32> {
    let instance = (root.join(CAPABILITIES))
        .join(format!("gpu{gpu}/mig/gi{instance}"))
        .join("access");
    let compute = instance
        .with_file_name(format!("ci{compute}"))
        .join("access");
    let number = |file: &Path| minor(&fs::read_to_string(file).ok()?);
    match (number(&instance), number(&compute)) {
        (Some(instance), Some(compute)) => vec![instance, compute],
        _ => Vec::new(),
    }
}

/// The number in such a file: `DeviceFileMinor: 12`, among other lines.
fn minor(text: &str) -> Option<u32> {
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let (_, number) = fields.find(|(name, _)| name.trim() == "DeviceFileMinor")?;
    number.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(CAPABILITIES).join(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("it is made");
        fs::write(path, text).expect("it is written");
    }

    #[test]
    fn a_slice_is_reached_by_the_files_of_both_its_instances_or_not_at_all() {
        let root = tempfile::tempdir().expect("a directory");
        let file = |minor: u32| {
            format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
        };
        write(root.path(), "gpu3/mig/gi2/access", &file(21));
        write(root.path(), "gpu3/mig/gi2/ci0/access", &file(22));
        write(
            root.path(),
            "gpu3/mig/gi2/ci1/access",
            "DeviceFileMode: 292\n",
        );
        assert_eq!(of_slice(root.path(), 3, 2, 0), [21, 22]);
        for (gpu, instance, compute) in [(3, 2, 1), (3, 2, 2), (3, 1, 0), (2, 2, 0)] {
            assert!(of_slice(root.path(), gpu, instance, compute).is_empty());
        }
    }
}
