//! The device files of a network card for RDMA.

use std::path::Path;

/// The files under `/dev` through which programs do RDMA on a card.
pub fn verbs(sysfs: &Path, card: &str) -> Vec<String> {
    let directory = sysfs.join(format!(
        "sys/class/infiniband/{card}/device/infiniband_verbs"
    ));
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<String> = entries
        .map(|entry| format!("infiniband/{}", entry.file_name().to_string_lossy()))
        .collect();
    files.sort();
    files.push("infiniband/rdma_cm".into());
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cards_files_are_its_own_verbs_and_the_connection_manager() {
        let root = tempfile::tempdir().expect("a directory");
        let verbs_of = |card: &str, file: &str| {
            let device = root
                .path()
                .join(format!("sys/class/infiniband/{card}/device"));
            std::fs::create_dir_all(device.join("infiniband_verbs").join(file)).expect("a tree");
        };
        verbs_of("mlx5_0", "uverbs0");
        verbs_of("mlx5_1", "uverbs1");
        let files = verbs(root.path(), "mlx5_1");
        assert_eq!(files, ["infiniband/uverbs1", "infiniband/rdma_cm"]);
        assert_eq!(verbs(root.path(), "none"), ["infiniband/rdma_cm"]);
    }
}
