//! The shim itself: starts the container, carries its output to the log, stops it when
//! asked, waits for its end, leaves nothing of it running, and writes down what became of
//! it. One thread, one poll loop.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, chdir, setsid};

use super::attach::AttachPoint;
use super::changes::DirectoryChanges;
use super::error::ShimError;
use super::record::{SAVE_RETRY, ShimRecord};
use super::start::STAGING;
use super::streams::{self, Stream};
use super::{STAGE_START, again};
use crate::cgroup::{Cgroup, HierarchyLayout};
use crate::error::StartFault;
use crate::logs::write::LogWriter;
use crate::proc::{self, ProcessId};
use crate::spec::ContainerSpec;
use crate::state::{
    ContainerExit, ContainerState, ExitReason, FORMAT, LOCK_FILE, SPEC_FILE, STOP_FILE, StateFile,
    StopRequest, load, load_state,
};

/// The name of the cgroup that containers' cgroups are made in; the caller may set another.
pub const CGROUP_PARENT: &str = "MUSTER_SHIM_CGROUP";
/// That name if none is set.
pub const DEFAULT_CGROUP_PARENT: &str = "muster";
/// Bytes read from an output at once.
const READ_BYTES: usize = 64 * 1024;
/// Between two attempts to kill what does not die, and between two looks at what is left.
const RETRY: Duration = Duration::from_millis(20);
/// How long after the end of the container its leftovers and its output are waited for.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);
/// Longest report from the starting stage.
const MAX_REPORT: usize = 64 * 1024;

/// Runs the shim until its container is over.
pub fn run(dir: &Path) -> ExitCode {
    match shim(dir) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("{} {fault}", Timestamp::now());
            ExitCode::FAILURE
        }
    }
}

/// Whether the file with this path is the open one.
fn is_at(open: &File, path: &Path) -> bool {
    let same = |open: fs::Metadata, there: fs::Metadata| {
        (open.dev(), open.ino()) == (there.dev(), there.ino())
    };
    match (open.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(there)) => same(open, there),
        _ => false,
    }
}

fn shim(dir: &Path) -> Result<(), ShimError> {
    let dir = dir.canonicalize().map_err(|source| ShimError::Directory {
        path: dir.to_path_buf(),
        source,
    })?;
    // The agent's terminal, session and directory are not ours.
    let _ = setsid();
    chdir("/").map_err(ShimError::Root)?;
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(dir.join(LOCK_FILE))
        .map_err(ShimError::OpenLock)?;
    // Held until this process ends, however it ends. Waits while the agent looks.
    lock.lock().map_err(ShimError::Lock)?;
    // An agent that came later may have removed the container for want of a shim, and made it again.
    if !is_at(&lock, &dir.join(LOCK_FILE)) || load_state(&dir)?.is_some() {
        return Err(ShimError::RunAlready);
    }
    let spec: ContainerSpec = load(&dir, SPEC_FILE)?.ok_or(ShimError::NoSpec)?;
    prctl::set_child_subreaper(true).map_err(ShimError::Adopt)?;

    let parent = std::env::var(CGROUP_PARENT).unwrap_or_else(|_| DEFAULT_CGROUP_PARENT.into());
    let (cgroup, notes) = Cgroup::create(
        &HierarchyLayout::detect(),
        &parent,
        spec.id.as_str(),
        &spec.limits,
        &spec.devices,
    );
    let state = StateFile {
        format: FORMAT,
        boot_id: proc::boot_id(),
        state: ContainerState::Starting,
        cgroup,
        notes,
    };
    let mut record = ShimRecord {
        dir: dir.clone(),
        state,
        unsaved: false,
    };
    let started = record
        .save()
        .map_err(ShimError::from)
        .and_then(|()| ContainerSupervisor::start(&dir, &spec));
    let (end, attached) = match started {
        Err(fault) => (
            ContainerExit::start_error(fault.to_string(), Timestamp::now()),
            None,
        ),
        Ok(mut supervisor) => (supervisor.run(&mut record)?, supervisor.attached),
    };
    record.state.cgroup.kill_all();
    record.state.cgroup.remove();
    let _ = fs::remove_dir(dir.join(STAGING));
    record.state.state = ContainerState::Exited(end);
    record.save_surely()?;
    if let Some(attached) = attached {
        attached.finish();
    }
    Ok(())
}

struct ContainerSupervisor {
    dir: PathBuf,
    grace: Duration,
    /// The starting stage, until that has become the container or has handed over.
    process: ProcessId,
    /// Whether the starting stage has said that another process becomes the container.
    handed_over: bool,
    signals: SignalFd,
    changes: DirectoryChanges,
    /// From the starting stage, until the command has taken over.
    report: Option<File>,
    reported: Vec<u8>,
    streams: Vec<Stream>,
    /// Where clients attach; none if the socket could not be made.
    attached: Option<AttachPoint>,
    log: LogWriter,
    started_at: Timestamp,
    /// When SIGKILL is due, once a stop has been asked for.
    kill_at: Option<Instant>,
    /// How the container's process ended.
    ended: Option<(i32, Option<i32>, Timestamp)>,
    /// When waiting for leftovers ends.
    drain_until: Option<Instant>,
    save_at: Instant,
}

/// What woke the loop.
#[derive(Clone, Copy, PartialEq)]
enum WakeReason {
    Signals,
    Changes,
    Report,
    Stream(usize),
    Attached,
}

impl ContainerSupervisor {
    fn start(dir: &Path, spec: &ContainerSpec) -> Result<ContainerSupervisor, ShimError> {
        spec.validate()?;
        let failed = |what: &'static str| move |source: Errno| ShimError::Call { what, source };
        let mut set = SigSet::empty();
        for signal in [
            Signal::SIGCHLD,
            Signal::SIGTERM,
            Signal::SIGINT,
            Signal::SIGHUP,
        ] {
            set.add(signal);
        }
        set.thread_block().map_err(failed("cannot block signals"))?;
        let signals = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .map_err(failed("cannot receive signals"))?;
        let changes = DirectoryChanges::watch(dir);
        let log = LogWriter::open(spec.log.clone()).map_err(|source| ShimError::Log {
            path: spec.log.path.clone(),
            source,
        })?;
        let (report, report_end) = io::pipe().map_err(ShimError::Pipe)?;
        fcntl(report.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
            .map_err(failed("cannot read the start's report"))?;
        let mut command = again(STAGE_START);
        command.stdin(Stdio::from(report_end));
        let given = streams::give(&mut command, spec)?;
        let child = command.spawn().map_err(ShimError::Spawn)?;
        // The container's ends are its own alone, so that their closing is seen.
        drop((command, given.of_container));
        let attached = AttachPoint::open(dir, given.input)
            .inspect_err(|error| eprintln!("clients cannot attach: {error}"));
        let pid = i32::try_from(child.id()).map_err(ShimError::ProcessNumber)?;
        Ok(ContainerSupervisor {
            dir: dir.to_path_buf(),
            grace: Duration::from_secs(spec.grace_seconds),
            // Not reaped before the loop runs, so it is there, if only as a zombie.
            process: ProcessId::of(pid).ok_or(ShimError::Vanished)?,
            handed_over: false,
            signals,
            changes,
            report: Some(File::from(std::os::fd::OwnedFd::from(report))),
            reported: Vec::new(),
            streams: given.outputs,
            attached: attached.ok(),
            log,
            started_at: Timestamp::now(),
            kill_at: None,
            ended: None,
            drain_until: None,
            save_at: Instant::now(),
        })
    }

    /// The loop. Ends when the container and all it left behind are gone.
    fn run(&mut self, record: &mut ShimRecord) -> Result<ContainerExit, ShimError> {
        loop {
            // What changed before the watch was set is seen here.
            if self.changes.look_is_due() {
                self.read_requests();
            }
            for source in self.wait(record.unsaved)? {
                match source {
                    WakeReason::Signals => self.on_signals(),
                    WakeReason::Changes => self.changes.take_in(),
                    WakeReason::Report => self.on_report(record),
                    WakeReason::Stream(index) => self.on_output(index),
                    WakeReason::Attached => {
                        if let Some(attached) = &mut self.attached {
                            attached.serve();
                        }
                    }
                }
            }
            self.streams.retain(|stream| stream.open);
            self.on_deadlines(record);
            if let Some(exit) = self.finished(record) {
                return Ok(exit);
            }
        }
    }

    fn wait(&mut self, unsaved: bool) -> Result<Vec<WakeReason>, ShimError> {
        let mut sources = vec![WakeReason::Signals];
        let mut fds: Vec<BorrowedFd> = vec![self.signals.as_fd()];
        if let Some(changes) = self.changes.descriptor() {
            sources.push(WakeReason::Changes);
            fds.push(changes);
        }
        if let Some(report) = &self.report {
            sources.push(WakeReason::Report);
            fds.push(report.as_fd());
        }
        for (index, stream) in self.streams.iter().enumerate() {
            sources.push(WakeReason::Stream(index));
            fds.push(stream.pipe.as_fd());
        }
        let mut polled: Vec<PollFd> = fds
            .into_iter()
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        for (fd, flags) in self.attached.iter().flat_map(AttachPoint::wanted) {
            sources.push(WakeReason::Attached);
            polled.push(PollFd::new(fd, flags));
        }
        let now = Instant::now();
        let next = [
            self.kill_at,
            self.drain_until.map(|_| now + RETRY),
            unsaved.then_some(self.save_at),
            self.changes.next_look(),
        ];
        let timeout = next
            .into_iter()
            .flatten()
            .min()
            .map_or(PollTimeout::NONE, |at| {
                // Rounded up, so that the deadline has passed when poll returns.
                let left = at.saturating_duration_since(now) + Duration::from_millis(1);
                PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
            });
        match poll(&mut polled, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(source) => {
                return Err(ShimError::Call {
                    what: "poll",
                    source,
                });
            }
        }
        let ready = |fd: &PollFd| fd.revents().is_some_and(|events| !events.is_empty());
        Ok(sources
            .into_iter()
            .zip(&polled)
            .filter(|(_, fd)| ready(fd))
            .map(|(source, _)| source)
            .collect())
    }

    fn on_signals(&mut self) {
        while let Ok(Some(signal)) = self.signals.read_signal() {
            if signal.ssi_signo == Signal::SIGTERM as u32 {
                self.stop(self.grace);
            }
        }
        self.reap();
    }

    /// Takes leave of every child that has ended; true when none is left.
    fn reap(&mut self) -> bool {
        loop {
            match waitpid(None::<Pid>, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => self.on_end(pid, code, None),
                Ok(WaitStatus::Signaled(pid, signal, _)) => {
                    self.on_end(pid, 128 + signal as i32, Some(signal as i32))
                }
                Ok(WaitStatus::StillAlive) => return false,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => return true,
            }
        }
    }

    fn on_end(&mut self, pid: Pid, code: i32, signal: Option<i32>) {
        // What was reported before comes first: it may say that the container is another process.
        self.drain_report();
        if pid.as_raw() == self.process.pid && self.ended.is_none() {
            self.ended = Some((code, signal, Timestamp::now()));
            self.drain_until = Some(Instant::now() + DRAIN_LIMIT);
        }
    }

    /// Stops the container if a client asked for it, or if its directory is being removed: it
    /// could never be stopped afterwards.
    fn read_requests(&mut self) {
        self.read_stop_request();
        if !self.dir.join(SPEC_FILE).exists() {
            self.stop(Duration::ZERO);
        }
    }

    fn read_stop_request(&mut self) {
        match load::<StopRequest>(&self.dir, STOP_FILE) {
            Ok(Some(request)) => self.stop(Duration::from_millis(request.grace_ms)),
            Ok(None) => {}
            Err(e) => eprintln!("{} {e}", Timestamp::now()),
        }
    }

    /// SIGTERM now, SIGKILL after `grace`. A later request can only bring it forward.
    fn stop(&mut self, grace: Duration) {
        let at = Instant::now() + grace;
        if self.kill_at.is_none() && !grace.is_zero() && self.ended.is_none() {
            self.signal_group(Signal::SIGTERM);
        }
        self.kill_at = Some(self.kill_at.map_or(at, |before| before.min(at)));
    }

    /// To the whole process group, or to the process alone while it has none of its own yet.
    fn signal_group(&self, signal: Signal) {
        let pid = Pid::from_raw(self.process.pid);
        if killpg(pid, signal).is_err() {
            let _ = kill(pid, signal);
        }
    }

    /// Takes in what has been reported so far; true once the report is at its end.
    fn drain_report(&mut self) -> bool {
        let Some(report) = &mut self.report else {
            return false;
        };
        let mut buffer = [0; 4096];
        let ended = loop {
            match report.read(&mut buffer) {
                Ok(0) => break true,
                Ok(read) => {
                    if self.reported.len() < MAX_REPORT {
                        self.reported.extend_from_slice(&buffer[..read]);
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => break e.kind() != io::ErrorKind::WouldBlock,
            }
        };
        if !self.handed_over
            && let Some(pid) = reported_process(&self.reported)
        {
            self.handed_over = true;
            // Without a start if it is gone already; then its own end is the next to be judged.
            self.process = ProcessId::of(pid).unwrap_or(ProcessId {
                pid,
                start_ticks: 0,
            });
            // A stop that was asked for meanwhile reached the starting stage alone.
            if self.kill_at.is_some() {
                self.signal_group(Signal::SIGTERM);
            }
        }
        ended
    }

    fn on_report(&mut self, record: &mut ShimRecord) {
        if !self.drain_report() {
            return;
        }
        self.report = None;
        let (notes, fault) = read_report(&self.reported);
        record.state.notes.extend(notes);
        // What has ended already needs no word of having run.
        if fault.is_none() && self.ended.is_none() {
            self.started_at = Timestamp::now();
            record.state.state = ContainerState::Running {
                process: self.process,
                started_at: self.started_at,
            };
            self.save_at = Instant::now() + SAVE_RETRY;
            let _ = record.save();
        }
    }

    fn on_output(&mut self, index: usize) {
        let Some(stream) = self.streams.get_mut(index) else {
            return;
        };
        let mut buffer = [0; READ_BYTES];
        let (output, log, now) = (stream.output, &mut self.log, Timestamp::now());
        match stream.pipe.read(&mut buffer) {
            Ok(read) if read > 0 => {
                if let Some(attached) = &mut self.attached {
                    attached.output(output, &buffer[..read]);
                }
                stream.splitter.push(&buffer[..read], |full, text| {
                    log.add(now, output, full, text)
                });
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            // At a terminal the end is an error: no process has it open any more.
            _ => {
                stream
                    .splitter
                    .finish(|full, text| log.add(now, output, full, text));
                stream.open = false;
            }
        }
        log.flush();
    }

    fn on_deadlines(&mut self, record: &mut ShimRecord) {
        let now = Instant::now();
        if record.unsaved && self.save_at <= now {
            let _ = record.save();
            self.save_at = now + SAVE_RETRY;
        }
        if self.ended.is_none() && self.kill_at.is_some_and(|at| at <= now) {
            self.signal_group(Signal::SIGKILL);
            record.state.cgroup.kill_once();
            // What does not die at once is shot at again.
            self.kill_at = Some(now + RETRY);
        }
        if self.ended.is_some() {
            self.kill_at = None;
            // Not by the process group: its number may be another's by now.
            record.state.cgroup.kill_once();
            kill_children();
        }
    }

    /// The end, once nothing of the container runs and its output has been read.
    fn finished(&mut self, record: &ShimRecord) -> Option<ContainerExit> {
        let (code, signal, finished_at) = self.ended?;
        let gone = self.reap() && record.state.cgroup.processes().is_empty();
        let read = self.streams.is_empty() && self.report.is_none();
        let late = self
            .drain_until
            .is_some_and(|until| until <= Instant::now());
        let over = (gone && read) || late;
        if !over {
            return None;
        }
        let (now, log) = (Timestamp::now(), &mut self.log);
        for stream in &mut self.streams {
            stream
                .splitter
                .finish(|full, text| log.add(now, stream.output, full, text));
        }
        log.flush();
        match read_report(&self.reported) {
            (_, Some(StartFault::Container(why))) => {
                return Some(ContainerExit::start_error(why, finished_at));
            }
            (_, Some(StartFault::Node(why))) => {
                return Some(ContainerExit::node_unfit(why, finished_at));
            }
            (_, Some(StartFault::Busy(why))) => {
                return Some(ContainerExit::node_busy(why, finished_at));
            }
            (_, None) => {}
        }
        let oom_killed = code != 0 && record.state.cgroup.oom_kills() > 0;
        let reason = match code {
            0 => ExitReason::Completed,
            _ if oom_killed => ExitReason::OomKilled,
            _ => ExitReason::Error,
        };
        let message = match signal {
            Some(number) if !oom_killed => {
                let name = Signal::try_from(number).map_or("?", Signal::as_str);
                format!("ended by signal {number} ({name})")
            }
            _ if oom_killed => "the kernel killed it at its memory limit".into(),
            _ => String::new(),
        };
        Some(ContainerExit {
            code,
            signal,
            oom_killed,
            reason,
            message,
            started_at: Some(self.started_at),
            finished_at,
        })
    }
}

/// SIGKILLs every child of this process; orphans of the container are children here.
fn kill_children() {
    let me = i32::try_from(std::process::id()).unwrap_or(0);
    for (pid, stat) in proc::all() {
        if stat.parent == me && stat.state != 'Z' {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// The notes and the fault in what the starting stage reported.
fn read_report(bytes: &[u8]) -> (Vec<String>, Option<StartFault>) {
    let text = String::from_utf8_lossy(bytes);
    let notes = text
        .lines()
        .filter_map(|line| line.strip_prefix("note "))
        .map(str::to_string)
        .collect();
    let fault = text.lines().find_map(|line| {
        let (kind, why) = line.split_once(' ')?;
        let fault = match kind {
            "error" => StartFault::Container,
            "unfit" => StartFault::Node,
            "busy" => StartFault::Busy,
            _ => return None,
        };
        Some(fault(why.to_string()))
    });
    (notes, fault)
}

/// The number of the process that becomes the container in the starting stage's place, once that
/// line has come whole.
fn reported_process(bytes: &[u8]) -> Option<i32> {
    let text = String::from_utf8_lossy(bytes);
    let (whole, _) = text.rsplit_once('\n')?;
    let mut lines = whole.lines();
    lines.find_map(|line| line.strip_prefix("process ")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_line_by_line_and_faults_have_an_owner() {
        let (notes, fault) = read_report(b"init\nprocess 7\nnote a b\ntied\nnote c\n");
        assert_eq!((notes, fault), (vec!["a b".into(), "c".into()], None));
        let faults = [
            (
                "error no such file",
                StartFault::Container("no such file".into()),
            ),
            ("unfit no mounts", StartFault::Node("no mounts".into())),
            ("busy no processes", StartFault::Busy("no processes".into())),
        ];
        for (line, expected) in faults {
            assert_eq!(read_report(line.as_bytes()).1, Some(expected));
        }
    }

    #[test]
    fn half_a_process_number_is_none() {
        let cases = [
            ("", None),
            ("process 12", None),
            ("init\nprocess 12", None),
            ("init\nprocess 123\n", Some(123)),
            ("process 123\nnote x", Some(123)),
            ("process x\n", None),
        ];
        for (text, expected) in cases {
            assert_eq!(reported_process(text.as_bytes()), expected, "{text:?}");
        }
    }
}
