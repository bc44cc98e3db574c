//! Finds the groups that a container's user needs to open its allocated device files. Drivers give
//! such files to a group (mode 0660, as `/dev/kfd` and `/dev/dri/renderD128` to `render`), and a
//! pod's user is in no group of the node.
//!
//! A container without an image sees all of the node's `/dev`: with a group it may open every other
//! file of that group, too, except those devices that the agent counts and hides. So a group is
//! added only for a file that the user could not open without it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use runtime::ProcessUser;

/// Reading and writing, for a file's group.
const GROUP_RW: u32 = 0o060;
/// Reading and writing, for all users.
const OTHERS_RW: u32 = 0o006;

/// The permissions of a device file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Its permission bits.
    pub mode: u32,
    /// The group that owns it.
    pub gid: u32,
}

/// Reads a device file's permissions; `None` if there is no file, or it is not a device.
pub fn look(file: &Path) -> Option<Access> {
    let found = fs::metadata(file).ok()?;
    let kind = found.file_type();
    let is_device = kind.is_char_device() || kind.is_block_device();
    is_device.then(|| Access {
        mode: found.mode() & 0o7777,
        gid: found.gid(),
    })
}

/// The groups that may read and write these files, except files that all users may read and write.
/// Root's group is never among them: it owns more than devices.
pub fn needed(files: &[PathBuf], look: impl Fn(&Path) -> Option<Access>) -> BTreeSet<u32> {
    let found = files.iter().filter_map(|file| look(file));
    found
        .filter(|access| access.gid != 0)
        .filter(|access| access.mode & GROUP_RW == GROUP_RW)
        .filter(|access| access.mode & OTHERS_RW != OTHERS_RW)
        .map(|access| access.gid)
        .collect()
}

/// Adds groups to those of a user. Root, and a user that the agent does not choose, keep their own.
pub fn add(user: &mut ProcessUser, groups: BTreeSet<u32>) {
    if user.uid.is_none_or(|uid| uid == 0) {
        return;
    }
    for group in groups {
        if !user.groups.contains(&group) {
            user.groups.push(group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_needed_where_it_alone_opens_the_file_and_never_roots() {
        for (mode, gid, given) in [
            (0o660, 44, true),
            (0o664, 44, true),
            (0o662, 44, true),
            (0o060, 44, true),
            // All users may open it.
            (0o666, 44, false),
            (0o606, 44, false),
            // The group may not, either.
            (0o600, 44, false),
            (0o640, 44, false),
            (0o620, 44, false),
            (0o660, 0, false),
        ] {
            let groups = needed(&["/dev/x".into()], |_| Some(Access { mode, gid }));
            let expected: BTreeSet<u32> = given.then_some(gid).into_iter().collect();
            assert_eq!(groups, expected, "{mode:o} {gid}");
        }
    }

    #[test]
    fn each_group_is_given_once_and_files_that_are_no_devices_give_none() {
        let files = ["kfd", "renderD128", "renderD129", "card0", "gone"].map(PathBuf::from);
        let table = |file: &Path| {
            let gid = match file.to_str()? {
                "card0" => 44,
                "gone" => return None,
                _ => 107,
            };
            Some(Access { mode: 0o660, gid })
        };
        assert_eq!(needed(&files, table), BTreeSet::from([44, 107]));
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(look(&file), None);
        assert_eq!(look(&dir.path().join("none")), None);
        assert!(look(Path::new("/dev/null")).is_some());
    }

    #[test]
    fn groups_are_added_to_a_pods_user_and_not_to_root() {
        let with = |uid: Option<u32>| {
            let mut user = ProcessUser {
                uid,
                gid: Some(100),
                groups: vec![500, 44],
            };
            add(&mut user, BTreeSet::from([44, 107]));
            user.groups
        };
        assert_eq!(with(Some(1000)), [500, 44, 107]);
        assert_eq!(with(Some(0)), [500, 44]);
        assert_eq!(with(None), [500, 44]);
    }
}
