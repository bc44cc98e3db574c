//! Which files a sweep removes from a real directory, and which it leaves.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn names(directory: &Path) -> BTreeSet<String> {
    fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// The number of an ended process.
fn ended() -> u32 {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let number = child.id();
    child.wait().unwrap();
    number
}

#[test]
fn files_of_writers_that_are_gone_are_removed_and_no_others() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path();
    let (gone, alive, own) = (
        ended(),
        std::os::unix::process::parent_id(),
        std::process::id(),
    );
    let removed = [
        format!(".format.{gone}-0.new"),
        format!(".state.json.{gone}-17.new"),
        // As if an earlier process had this process's number.
        format!(".format.{own}-900.new"),
    ];
    let kept = [
        "format".to_owned(),
        ".hidden".to_owned(),
        "upload.new".to_owned(),
        format!("format.{gone}-0.new"),
        format!(".format.{gone}-0.new.bak"),
        format!(".format.{alive}-0.new"),
    ];
    for name in removed.iter().chain(&kept) {
        fs::write(directory.join(name), "x").unwrap();
    }
    let below = format!(".directory.{gone}-1.new");
    fs::create_dir(directory.join(&below)).unwrap();
    let link = format!(".link.{gone}-2.new");
    std::os::unix::fs::symlink(directory.join("format"), directory.join(&link)).unwrap();

    assert_eq!(durable::sweep(directory).unwrap(), removed.len());
    let mut left: BTreeSet<String> = kept.into();
    left.extend([below, link]);
    assert_eq!(names(directory), left);

    // A name that this process has given out may belong to a running write.
    let under_way = format!(".format.{own}-5.new");
    fs::write(directory.join(&under_way), "x").unwrap();
    assert_eq!(durable::sweep(directory).unwrap(), 0);
    assert!(directory.join(under_way).exists());
    durable::replace(&directory.join("format"), b"y").unwrap();
    assert_eq!(fs::read(directory.join("format")).unwrap(), b"y");
}

#[test]
fn a_directory_that_does_not_exist_has_nothing_to_sweep_and_a_file_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(durable::sweep(&root.path().join("none")).unwrap(), 0);
    let file = root.path().join("file");
    fs::write(&file, "x").unwrap();
    let error = durable::sweep(&file).unwrap_err().to_string();
    assert!(error.starts_with("cannot list the directory"), "{error}");
}
