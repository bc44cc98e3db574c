//! Cuts the power after every step of durable writes and removals, with every subset of the
//! unsynced operations lost. A file has its old content or its new one, whole, and once a call has
//! returned, the new one. The test must also detect disks that skip a sync; otherwise it proves
//! nothing.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use durable::{Disk, DurableStep, PRIVATE, remove_on, replace_on};

/// A change of the names in a directory.
#[derive(Clone, Debug)]
enum Naming {
    Create(PathBuf, usize),
    Rename(PathBuf, PathBuf, usize),
    Remove(PathBuf),
}

/// A file's content: what is on the disk, and what a running system reads.
#[derive(Clone, Debug, Default)]
struct Inode {
    synced: Vec<u8>,
    current: Vec<u8>,
}

/// The whole disk. Only the running system sees unsynced state.
#[derive(Clone, Debug, Default)]
struct State {
    inodes: Vec<Inode>,
    /// The names on the disk.
    synced: BTreeMap<PathBuf, usize>,
    /// The names that a running system sees.
    current: BTreeMap<PathBuf, usize>,
    /// Changes of names since the directory was last synced, in order.
    pending: Vec<Naming>,
}

impl State {
    fn name(&mut self, naming: Naming) {
        apply(&mut self.current, &naming);
        self.pending.push(naming);
    }

    /// All states that a power cut now may leave: each file's content by its name.
    fn after_power_cuts(&self) -> Vec<BTreeMap<PathBuf, Vec<u8>>> {
        let mut left = Vec::new();
        for subset in 0_u32..1 << self.pending.len() {
            let mut names = self.synced.clone();
            for (bit, naming) in self.pending.iter().enumerate() {
                if subset & (1 << bit) != 0 {
                    apply(&mut names, naming);
                }
            }
            // None, half or all of the unsynced content may remain, for each file independently.
            let named: Vec<(PathBuf, usize)> = names.into_iter().collect();
            for variant in 0..3_u32.pow(u32::try_from(named.len()).unwrap()) {
                let contents = named.iter().enumerate().map(|(place, (path, inode))| {
                    let share = variant / 3_u32.pow(u32::try_from(place).unwrap()) % 3;
                    (path.clone(), self.inodes[*inode].after(share))
                });
                left.push(contents.collect());
            }
        }
        left
    }
}

impl Inode {
    fn after(&self, share: u32) -> Vec<u8> {
        match share {
            0 => self.synced.clone(),
            1 => self.current[..self.current.len() / 2]
                .iter()
                .copied()
                .chain(self.synced.iter().skip(self.current.len() / 2).copied())
                .collect(),
            _ => self.current.clone(),
        }
    }
}

fn apply(names: &mut BTreeMap<PathBuf, usize>, naming: &Naming) {
    match naming {
        Naming::Create(path, inode) => {
            names.insert(path.clone(), *inode);
        }
        Naming::Rename(from, to, inode) => {
            names.remove(from);
            names.insert(to.clone(), *inode);
        }
        Naming::Remove(path) => {
            names.remove(path);
        }
    }
}

/// The sync that a simulated disk skips, to show that the test detects it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    NoFileSync,
    NoDirectorySync,
}

/// A disk in memory. It keeps its state after each operation, and can fail at one of them.
struct Simulated {
    state: RefCell<State>,
    history: RefCell<Vec<State>>,
    fault: Fault,
    fails_at: Option<usize>,
}

impl Simulated {
    fn new(fault: Fault, fails_at: Option<usize>) -> Simulated {
        Simulated {
            state: RefCell::default(),
            history: RefCell::new(vec![State::default()]),
            fault,
            fails_at,
        }
    }

    fn step<T>(&self, change: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        if self.fails_at == Some(self.history.borrow().len() - 1) {
            self.history.borrow_mut().push(self.state.borrow().clone());
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        let done = change(&mut self.state.borrow_mut());
        self.history.borrow_mut().push(self.state.borrow().clone());
        done
    }

    fn steps(&self) -> usize {
        self.history.borrow().len() - 1
    }

    fn read(&self, path: &Path) -> Option<Vec<u8>> {
        let state = self.state.borrow();
        let inode = state.current.get(path)?;
        Some(state.inodes[*inode].current.clone())
    }
}

impl Disk for Simulated {
    type File = usize;

    fn create(&self, path: &Path, _mode: u32) -> io::Result<usize> {
        self.step(|state| {
            state.inodes.push(Inode::default());
            let inode = state.inodes.len() - 1;
            state.name(Naming::Create(path.to_owned(), inode));
            Ok(inode)
        })
    }

    fn write(&self, file: &mut usize, content: &[u8]) -> io::Result<()> {
        self.step(|state| {
            state.inodes[*file].current.extend_from_slice(content);
            Ok(())
        })
    }

    fn sync_file(&self, file: &usize) -> io::Result<()> {
        self.step(|state| {
            if self.fault != Fault::NoFileSync {
                let inode = &mut state.inodes[*file];
                inode.synced = inode.current.clone();
            }
            Ok(())
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step(|state| {
            let inode = *state
                .current
                .get(from)
                .ok_or(io::Error::from(io::ErrorKind::NotFound))?;
            state.name(Naming::Rename(from.to_owned(), to.to_owned(), inode));
            Ok(())
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.step(|state| {
            if !state.current.contains_key(path) {
                return Err(io::Error::from(io::ErrorKind::NotFound));
            }
            state.name(Naming::Remove(path.to_owned()));
            Ok(())
        })
    }

    fn sync_dir(&self, _path: &Path) -> io::Result<()> {
        self.step(|state| {
            if self.fault != Fault::NoDirectorySync {
                state.synced = state.current.clone();
                state.pending.clear();
            }
            Ok(())
        })
    }

    fn has_directory(&self, _path: &Path) -> bool {
        true
    }
}

/// One call of a sequence.
#[derive(Clone, Copy, Debug)]
enum Action {
    Replace(&'static str, &'static str),
    Remove(&'static str),
}

impl Action {
    fn path(self) -> PathBuf {
        let (Action::Replace(name, _) | Action::Remove(name)) = self;
        Path::new("/d").join(name)
    }

    fn outcome(self) -> Option<Vec<u8>> {
        match self {
            Action::Replace(_, content) => Some(content.as_bytes().to_vec()),
            Action::Remove(_) => None,
        }
    }

    fn run(self, disk: &Simulated) -> Result<(), durable::Error> {
        match self {
            Action::Replace(_, content) => {
                replace_on(disk, &self.path(), content.as_bytes(), PRIVATE)
            }
            Action::Remove(_) => remove_on(disk, &self.path()),
        }
    }
}

type Files = BTreeMap<PathBuf, Vec<u8>>;

fn take(files: &mut Files, action: Action) {
    match action.outcome() {
        Some(content) => files.insert(action.path(), content),
        None => files.remove(&action.path()),
    };
}

/// Runs a sequence, cuts the power after each step in all ways, and counts the states that are
/// neither the acknowledged state nor that state with the one change in flight. Also returns the
/// number of states that were checked.
fn violations(actions: &[Action], fault: Fault) -> (usize, usize) {
    let disk = Simulated::new(fault, None);
    let mut acknowledged = Files::new();
    let (mut wrong, mut seen) = (0, 0);
    for action in actions {
        let begin = disk.steps();
        action.run(&disk).unwrap();
        let mut after = acknowledged.clone();
        take(&mut after, *action);
        let history = disk.history.borrow();
        for (step, state) in history.iter().enumerate().skip(begin) {
            let returned = step + 1 == history.len();
            for left in state.after_power_cuts() {
                let visible: Files = left
                    .into_iter()
                    .filter(|(path, _)| path.extension().is_none_or(|end| end != "new"))
                    .collect();
                let right = visible == after || (!returned && visible == acknowledged);
                seen += 1;
                wrong += usize::from(!right);
            }
        }
        drop(history);
        acknowledged = after;
    }
    (wrong, seen)
}

const SEQUENCES: &[&[Action]] = &[
    &[Action::Replace("a", "first")],
    &[
        Action::Replace("a", "first"),
        Action::Replace("a", "the second"),
    ],
    &[
        Action::Replace("a", "first"),
        Action::Remove("a"),
        Action::Replace("a", "3"),
    ],
    // Writes a key before its certificate: a process that finds the certificate also finds the key.
    &[
        Action::Replace("key", "k"),
        Action::Replace("certificate", "cc"),
        Action::Replace("key", "new k"),
        Action::Remove("certificate"),
        Action::Remove("certificate"),
    ],
];

#[test]
fn after_any_power_cut_a_file_is_old_or_new_and_new_once_the_call_returned() {
    for actions in SEQUENCES {
        let (wrong, seen) = violations(actions, Fault::None);
        assert_eq!(wrong, 0, "{wrong} of {seen} power cuts in {actions:?}");
        assert!(
            seen > 5 * actions.len(),
            "only {seen} power cuts were tried"
        );
    }
}

#[test]
fn a_write_without_one_of_its_syncs_is_caught() {
    for fault in [Fault::NoFileSync, Fault::NoDirectorySync] {
        for actions in SEQUENCES {
            let (wrong, _) = violations(actions, fault);
            assert!(wrong > 0, "a missing sync went unnoticed in {actions:?}");
        }
    }
}

#[test]
fn a_failing_step_is_named_and_leaves_the_old_content_and_no_temporary_file() {
    let path = Path::new("/d/a");
    let steps = [
        DurableStep::Create,
        DurableStep::Write,
        DurableStep::SyncFile,
        DurableStep::Rename,
        DurableStep::SyncDirectory,
    ];
    for (number, step) in steps.into_iter().enumerate() {
        // The first write takes as many steps as there are.
        let disk = Simulated::new(Fault::None, Some(steps.len() + number));
        replace_on(&disk, path, b"old", PRIVATE).unwrap();
        assert_eq!(disk.steps(), steps.len());
        let error = replace_on(&disk, path, b"new", PRIVATE).unwrap_err();
        assert_eq!(error.step, step);
        assert!(error.path.starts_with("/d"), "{}", error.path.display());
        let kept: &[u8] = if step == DurableStep::SyncDirectory {
            b"new"
        } else {
            b"old"
        };
        assert_eq!(disk.read(path).unwrap(), kept, "{step:?}");
        let names: Vec<PathBuf> = disk.state.borrow().current.keys().cloned().collect();
        assert_eq!(names, [path], "{step:?}");
        let text = error.to_string();
        assert!(text.contains("/d"), "{text}");
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::StorageFull);
    }
}

#[test]
fn the_real_disk_replaces_and_removes_with_the_mode_that_was_asked_for() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    durable::replace(&path, b"one").unwrap();
    assert_eq!(mode(), 0o600);
    durable::replace_with_mode(&path, b"two", 0o666).unwrap();
    assert_eq!(mode(), 0o666, "whatever the umask");
    durable::replace(&path, b"three").unwrap();
    assert_eq!(mode(), 0o600);
    assert_eq!(std::fs::read(&path).unwrap(), b"three");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    durable::remove(&path).unwrap();
    durable::remove(&path).unwrap();
    assert!(!path.exists());
    durable::remove(&dir.path().join("none/there")).unwrap();
    let error = durable::replace(&dir.path().join("none/there"), b"x").unwrap_err();
    assert_eq!(error.step, DurableStep::Create);
    assert!(error.to_string().contains("none/"), "{error}");
}
