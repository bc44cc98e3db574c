//! Plans for trees and volumes, by table and by property.

use super::*;
use proptest::prelude::*;

struct Tree(BTreeMap<PathBuf, PathKind>);

impl Tree {
    /// `d/` is a directory, `l -> t` a link, anything else a file; parents are implied.
    fn new(lines: &[&str]) -> Tree {
        let mut map = BTreeMap::from([(PathBuf::from("/"), PathKind::Directory)]);
        for line in lines {
            let (path, kind) = match line.split_once(" -> ") {
                Some((path, to)) => (path, PathKind::Link(to.into())),
                None if line.ends_with('/') => (line.trim_end_matches('/'), PathKind::Directory),
                None => (*line, PathKind::File),
            };
            for above in Path::new(path).ancestors().skip(1) {
                map.entry(above.into()).or_insert(PathKind::Directory);
            }
            map.insert(path.into(), kind);
        }
        Tree(map)
    }
}

impl HostTree for Tree {
    fn kind(&self, path: &Path) -> Option<PathKind> {
        self.0.get(path).cloned()
    }
    fn entries(&self, dir: &Path) -> Result<Vec<(OsString, PathKind)>, UnreadableDirectory> {
        Ok(self
            .0
            .iter()
            .filter(|(path, _)| path.parent() == Some(dir))
            .filter_map(|(path, kind)| Some((path.file_name()?.to_os_string(), kind.clone())))
            .collect())
    }
}

fn volumes(lines: &[&str]) -> Vec<WantedMount> {
    lines
        .iter()
        .enumerate()
        .map(|(index, line)| {
            let read_only = line.starts_with("ro ");
            let line = line.trim_start_matches("ro ");
            let (target, source) = match line.split_once(" <- ") {
                Some((target, source)) => (target, Some(PathBuf::from(source))),
                None => (line, None),
            };
            WantedMount {
                index,
                target: target.trim_end_matches('/').into(),
                is_directory: target.ends_with('/'),
                read_only,
                source,
            }
        })
        .collect()
}

fn show(steps: Result<Vec<MountStep>, PlanError>) -> Vec<String> {
    match steps {
        Err(e) => vec![e.to_string()],
        Ok(steps) => steps
            .into_iter()
            .map(|step| match step {
                MountStep::Hollow { dir, entries } => {
                    let names: Vec<_> = entries
                        .iter()
                        .map(|(name, _)| name.to_string_lossy().into_owned())
                        .collect();
                    format!("hollow {} [{}]", dir.display(), names.join(" "))
                }
                MountStep::Point { path, is_directory } => {
                    format!(
                        "point {}{}",
                        path.display(),
                        if is_directory { "/" } else { "" }
                    )
                }
                MountStep::Mount { index, target } => format!("mount {index} {}", target.display()),
            })
            .collect(),
    }
}

#[test]
fn plans_for_volumes_here_and_there() {
    let host = Tree::new(&[
        "/etc/hosts",
        "/mnt/a/",
        "/mnt/b",
        "/usr/lib/",
        "/lib -> usr/lib",
        "/run/x/",
        "/var/run -> /run",
        "/loop -> /loop",
        "/vol/data/",
        "/vol/file",
    ]);
    let cases: &[(&[&str], &[&str])] = &[
        (&[], &[]),
        (&["/etc/hosts"], &["mount 0 /etc/hosts"]),
        (&["/mnt/a/"], &["mount 0 /mnt/a"]),
        (
            &["/mnt/c/"],
            &["hollow /mnt [a b]", "point /mnt/c/", "mount 0 /mnt/c"],
        ),
        (
            &["/mnt/c/d/e"],
            &[
                "hollow /mnt [a b]",
                "point /mnt/c/d/e",
                "mount 0 /mnt/c/d/e",
            ],
        ),
        // One hollow serves two mount points, and one inside the other's new directory.
        (
            &["/mnt/c/x/", "/mnt/d/", "/mnt/c/y/"],
            &[
                "hollow /mnt [a b]",
                "point /mnt/d/",
                "mount 1 /mnt/d",
                "point /mnt/c/x/",
                "mount 0 /mnt/c/x",
                "point /mnt/c/y/",
                "mount 2 /mnt/c/y",
            ],
        ),
        // A new root comes first.
        (
            &["/mnt/c/", "/data/"],
            &[
                "hollow / [etc lib loop mnt run usr var vol]",
                "hollow /mnt [a b]",
                "point /data/",
                "mount 1 /data",
                "point /mnt/c/",
                "mount 0 /mnt/c",
            ],
        ),
        // Links of the node are followed.
        (
            &["/lib/z/"],
            &[
                "hollow /usr/lib []",
                "point /usr/lib/z/",
                "mount 0 /usr/lib/z",
            ],
        ),
        (
            &["/var/run/secrets/s/"],
            &[
                "hollow /run [x]",
                "point /run/secrets/s/",
                "mount 0 /run/secrets/s",
            ],
        ),
        // A volume in a writable volume makes its point there; in a read-only one it is hollowed.
        (
            &["/mnt/a/ <- /vol", "/mnt/a/new/"],
            &["mount 0 /mnt/a", "point /mnt/a/new/", "mount 1 /mnt/a/new"],
        ),
        (
            &["/mnt/a/ <- /vol", "/mnt/a/data/"],
            &["mount 0 /mnt/a", "mount 1 /mnt/a/data"],
        ),
        (
            &["ro /mnt/a/ <- /vol", "/mnt/a/new/"],
            &[
                "mount 0 /mnt/a",
                "hollow /mnt/a [data file]",
                "point /mnt/a/new/",
                "mount 1 /mnt/a/new",
            ],
        ),
        (
            &["ro /mnt/a/ <- /vol", "/mnt/a/data/new/"],
            &[
                "mount 0 /mnt/a",
                "hollow /mnt/a/data []",
                "point /mnt/a/data/new/",
                "mount 1 /mnt/a/data/new",
            ],
        ),
        // A memory file system takes anything.
        (
            &["/mnt/a/", "/mnt/a/x/y/"],
            &["mount 0 /mnt/a", "point /mnt/a/x/y/", "mount 1 /mnt/a/x/y"],
        ),
        // Faults.
        (
            &["/mnt/a/", "/mnt/./a/"],
            &["two volumes are mounted at /mnt/./a; give each a path of its own"],
        ),
        (
            &["/lib/", "/usr/lib/"],
            &["two volumes are mounted at /usr/lib; give each a path of its own"],
        ),
        (
            &["/mnt/b/"],
            &["/mnt/b is a file on this node, and the volume is a directory; mount it elsewhere"],
        ),
        (
            &["/mnt/a"],
            &["/mnt/a is a directory on this node, and the volume is a file; mount it elsewhere"],
        ),
        (
            &["/loop/x/"],
            &["/loop/x cannot be resolved on this node: too many levels of symbolic links"],
        ),
    ];
    for (wanted, expected) in cases {
        assert_eq!(show(plan(&volumes(wanted), &host)), *expected, "{wanted:?}");
    }
}

#[test]
fn a_crowded_directory_is_refused_with_what_to_do() {
    let names: Vec<String> = (0..=MAX_ENTRIES).map(|n| format!("/big/{n}")).collect();
    let host = Tree::new(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let shown = show(plan(&volumes(&["/big/new/"]), &host));
    assert!(
        shown[0].contains("make that directory on the node"),
        "{shown:?}"
    );
}

proptest! {
    /// Every volume is mounted once, no directory is hollowed twice, and a mount never
    /// comes before the hollowing of a directory above it on the node.
    #[test]
    fn plans_are_well_formed(paths in proptest::collection::btree_set("(/[abc]){1,4}", 1..8), host in proptest::collection::vec("(/[abc]){1,3}/", 0..6)) {
        let host = Tree::new(&host.iter().map(String::as_str).collect::<Vec<_>>());
        let lines: Vec<String> = paths.iter().map(|path| format!("{path}/")).collect();
        let wanted = volumes(&lines.iter().map(String::as_str).collect::<Vec<_>>());
        let steps = plan(&wanted, &host).unwrap();
        let mut mounted = BTreeSet::new();
        let mut hollowed = BTreeSet::new();
        for step in steps {
            match step {
                MountStep::Hollow { dir, .. } => {
                    prop_assert!(mounted.is_empty());
                    prop_assert!(hollowed.insert(dir));
                }
                MountStep::Point { .. } => {}
                MountStep::Mount { index, target } => {
                    prop_assert!(mounted.iter().all(|(_, other): &(usize, PathBuf)| !other.starts_with(&target)));
                    mounted.insert((index, target));
                }
            }
        }
        prop_assert_eq!(mounted.len(), wanted.len());
    }
}

#[test]
fn what_is_the_kernels_is_not_covered_by_whatever_way() {
    let tree = Tree::new(&["/proc/self/", "/etc/table -> ../proc/self/mounts"]);
    for target in ["/proc/", "/proc/self/fd/", "/etc/table"] {
        let refused = plan(&volumes(&[target]), &tree).unwrap_err();
        assert!(matches!(refused, PlanError::Links { .. }), "{refused}");
    }
    assert!(plan(&volumes(&["/process/"]), &tree).is_ok());
}

#[test]
fn the_entries_bound_for_one_container_have_an_end() {
    let entries = |dirs: usize, more: usize| -> Tree {
        let names = (0..dirs).flat_map(|dir| (0..MAX_ENTRIES).map(move |n| (dir, n)));
        let more = (0..more).map(|n| (dirs, n));
        let lines: Vec<String> = (names.chain(more))
            .map(|(dir, n)| format!("/d{dir}/f{n}"))
            .collect();
        Tree::new(&lines.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let wanted = ["/d0/new/", "/d1/new/", "/d2/new/", "/d3/new/", "/d4/new/"];
    let full = MAX_BOUND / MAX_ENTRIES;
    assert!(plan(&volumes(&wanted[..full]), &entries(full, 0)).is_ok());
    let refused = plan(&volumes(&wanted), &entries(full, 1)).unwrap_err();
    assert!(matches!(refused, PlanError::Crowded { .. }), "{refused}");
}
