//! Device files without a device.

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
