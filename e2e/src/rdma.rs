//! A machine with two GPUs, each with an InfiniBand card under its switch, built from a fixture tree.

use std::path::{Path, PathBuf};

use crate::{device_files, make_device, repository};

#[path = "../../internal/hardware/testing/unpack.rs"]
mod unpack;

/// Shell commands that give a mount namespace a `/dev` with this machine's files and those of the cards that
/// [`make_rdma`] created in `$DIR`.
pub fn rdma_device_files() -> String {
    device_files(
        "mkdir \"$DIR/dev/infiniband\"; mount --bind \"$DIR/rdma/dev/infiniband\" \"$DIR/dev/infiniband\"",
    )
}

/// Creates the machine's root, `directory`/rdma, whose device files have the numbers of other devices.
#[track_caller]
pub fn make_rdma(directory: &Path) -> PathBuf {
    let machine = directory.join("rdma");
    let tree = repository().join("internal/hardware/testing/trees/infiniband.txt");
    let tree = std::fs::read_to_string(tree).expect("the tree");
    unpack::unpack(&tree, &machine);
    let files = [
        "uverbs0", "uverbs1", "umad0", "umad1", "issm0", "issm1", "rdma_cm",
    ];
    for (name, minor) in files.into_iter().zip(1..) {
        let file = machine.join("dev/infiniband").join(name);
        std::fs::remove_file(&file).expect("the tree's");
        make_device(&file, minor);
    }
    machine
}
