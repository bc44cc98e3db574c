//! Creates directories from the files in `trees`, which list a machine's sysfs, proc and dev.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::os::unix::fs::symlink;
use std::path::Path;

/// Creates the listed files below `root`.
pub fn unpack(text: &str, root: &Path) {
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    for line in lines {
        let (path, rest) = line.split_once(' ').unwrap();
        let (kind, said) = rest.split_once(' ').unwrap_or((rest, ""));
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        match kind {
            "=" => std::fs::write(path, format!("{said}\n")).unwrap(),
            "->" => symlink(said, path).unwrap(),
            "@" => std::fs::write(path, bytes(said)).unwrap(),
            other => panic!("{other:?} in {line:?}"),
        }
    }
}

/// `100 0d00`: these bytes from 0x100 on, in a PCIe device's 4096.
fn bytes(said: &str) -> Vec<u8> {
    let (at, hex) = said.split_once(' ').unwrap();
    let at = usize::from_str_radix(at, 16).unwrap();
    let mut all = vec![0; 4096];
    for (place, pair) in (0..hex.len()).step_by(2).enumerate() {
        all[at + place] = u8::from_str_radix(&hex[pair..pair + 2], 16).unwrap();
    }
    all
}
