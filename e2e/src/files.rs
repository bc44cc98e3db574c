//! Files that stand for devices and their driver, and the room for files.

use std::path::Path;
use std::process::Command;

use crate::run;

/// Makes a device file of major 1 and the directories above it: `/dev/null` has the minor 3.
#[track_caller]
pub fn make_device(path: &Path, minor: u32) {
    std::fs::create_dir_all(path.parent().expect("a directory")).expect("it is made");
    let mut mknod = Command::new("mknod");
    // Drivers make their files accessible to all users, and pods do not run as root.
    run(mknod
        .args(["-m", "666"])
        .arg(path)
        .args(["c", "1", &minor.to_string()]))
    .ok();
}

/// Puts the stand-in for the GPU driver's library into the directory, under the library's name.
#[track_caller]
pub fn nvml_standin(library: &Path) {
    std::fs::create_dir_all(library).expect("a directory");
    let beside = std::env::current_exe().expect("this program");
    let built = beside.with_file_name("libnvml_standin.so");
    std::fs::copy(built, library.join("libnvidia-ml.so.1")).expect("the stand-in");
}

/// The free space of the file system that holds this path, in KiB.
#[track_caller]
pub fn free_kib(path: &Path) -> u64 {
    let df = run(Command::new("df").args(["--output=avail", "-k"]).arg(path)).ok();
    let last = df.lines().last().and_then(|line| line.trim().parse().ok());
    last.expect("df tells kibibytes")
}
