//! A server with or without agents, and its clients.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use crate::mounts::Mounts;
use crate::network::NodeNamespace;
use crate::ports::free_address;
use crate::{eventually, kubectl, muster};

/// How long a start may take on a busy machine.
const START: Duration = Duration::from_secs(90);

/// The output and the exit status of a command.
#[derive(Debug)]
pub struct Ran {
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
    /// Exit status; none if a signal ended it.
    pub code: Option<i32>,
}

impl Ran {
    fn of(output: Output) -> Ran {
        Ran {
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
            code: output.status.code(),
        }
    }

    /// Standard output; fails unless the command succeeded.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(
            self.code,
            Some(0),
            "stdout:\n{}\nstderr:\n{}",
            self.out,
            self.err
        );
        self.out
    }

    /// Standard error of a command that has to fail.
    #[track_caller]
    pub fn refused(self) -> String {
        assert_ne!(self.code, Some(0), "{}", self.out);
        self.err
    }
}

/// Runs a command to its end.
pub fn run(command: &mut Command) -> Ran {
    let shown = format!("{command:?}");
    match command.stdin(Stdio::null()).output() {
        Ok(output) => Ran::of(output),
        Err(error) => panic!("{shown} did not start: {error}"),
    }
}

/// A process's resident memory, in MiB; 0 once it has ended.
pub fn resident_mib(pid: u32) -> f64 {
    memory_mib(pid, "VmRSS:")
}

/// A process's peak resident memory, in MiB; 0 once it has ended.
pub fn peak_resident_mib(pid: u32) -> f64 {
    memory_mib(pid, "VmHWM:")
}

fn memory_mib(pid: u32, line: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|all| all.strip_prefix(line));
    let kib = line.and_then(|line| line.split_whitespace().next());
    kib.and_then(|kib| kib.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

/// A process's CPU time in user and kernel mode, in seconds; 0 once it has ended.
pub fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // After the name, which may contain spaces: user and system time are the 14th and 15th fields, in hundredths.
    let behind = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let fields = behind.split(' ').skip(11).take(2);
    fields
        .filter_map(|ticks| ticks.parse::<f64>().ok())
        .sum::<f64>()
        / 100.0
}

/// A server (`muster up` or `muster server`) under test.
pub struct Platform {
    child: Option<Child>,
    /// Its data directory.
    pub data: PathBuf,
    /// The address it listens on.
    pub listen: String,
    /// The command's words before the program.
    inside: Vec<String>,
    arguments: Vec<String>,
    keep: Option<tempfile::TempDir>,
}

impl Platform {
    /// `muster up` with these further arguments, in its own directory; the node is ready when this returns.
    pub fn up(arguments: &[&str]) -> Platform {
        let platform = Platform::start("up", arguments, &free_address());
        platform.await_nodes(1);
        platform
    }

    /// `muster up`, run by a wrapper command with these words that executes it.
    pub fn up_by(inside: &[&str], arguments: &[&str]) -> Platform {
        let platform = Platform::start_in("up", arguments, &free_address(), None, inside);
        platform.await_nodes(1);
        platform
    }

    /// `muster server` with these further arguments.
    pub fn server(arguments: &[&str]) -> Platform {
        Platform::start("server", arguments, &free_address())
    }

    /// `muster server` on an address that other network namespaces reach.
    pub fn server_on(listen: &str, arguments: &[&str]) -> Platform {
        Platform::start("server", arguments, listen)
    }

    /// `muster server` with its data on a disk of the test.
    pub fn server_in(disk: &Path, arguments: &[&str]) -> Platform {
        let listen = free_address();
        Platform::start_in("server", arguments, &listen, Some(disk), &[])
    }

    /// `muster server`, run by a wrapper command with these words that executes the server.
    pub fn server_by(inside: &[&str], arguments: &[&str]) -> Platform {
        Platform::start_in("server", arguments, &free_address(), None, inside)
    }

    fn start(command: &str, arguments: &[&str], listen: &str) -> Platform {
        Platform::start_in(command, arguments, listen, None, &[])
    }

    fn start_in(
        command: &str,
        arguments: &[&str],
        listen: &str,
        disk: Option<&Path>,
        inside: &[&str],
    ) -> Platform {
        let keep = tempfile::Builder::new()
            .prefix("muster-")
            .tempdir_in(ground())
            .expect("a directory");
        // Pods run as other users, and tests write files for them beside the data.
        open_to_all(keep.path());
        let root = disk.unwrap_or(keep.path());
        let mut all = vec![
            command.to_string(),
            "--listen".to_string(),
            listen.to_string(),
        ];
        all.extend(arguments.iter().map(ToString::to_string));
        let mut platform = Platform {
            child: None,
            data: root.join("data"),
            listen: listen.to_string(),
            inside: inside.iter().map(ToString::to_string).collect(),
            arguments: all,
            keep: Some(keep),
        };
        platform.restart();
        platform
    }

    /// Starts it (again) with the existing data.
    pub fn restart(&mut self) {
        self.restart_with(&[]);
    }

    /// Like `restart`, with further options for this run of the server.
    pub fn restart_with(&mut self, options: &[String]) {
        assert!(self.child.is_none(), "it runs already");
        let log = self.log();
        let err = log.try_clone().expect("a file can be shared");
        let child = program(&self.inside)
            .arg("--data")
            .arg(&self.data)
            .args(&self.arguments)
            .args(options)
            .env("MUSTER_LOG", "info")
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(err)
            .spawn()
            .expect("the muster binary starts");
        self.child = Some(child);
        let up = || {
            self.cli(&["get", "namespaces"])
                .code
                .filter(|code| *code == 0)
        };
        let begin = std::time::Instant::now();
        while up().is_none() {
            assert!(
                begin.elapsed() < START,
                "the server did not start:\n{}",
                self.logged()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn log(&self) -> File {
        let directory = self.data.parent().expect("data lies in a directory");
        let path = directory.join("server.log");
        File::options()
            .create(true)
            .append(true)
            .open(path)
            .expect("the log can be written")
    }

    /// The server's log so far.
    pub fn logged(&self) -> String {
        let directory = self.data.parent().expect("data lies in a directory");
        std::fs::read_to_string(directory.join("server.log")).unwrap_or_default()
    }

    /// The server's process id.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Kills the server, as a crash would.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Asks the server to stop and waits for it.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            run(Command::new("kill").arg(child.id().to_string()));
            let _ = child.wait();
        }
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.data.join("server/admin.kubeconfig")
    }

    /// The first administrator's password.
    pub fn password(&self) -> String {
        let text = std::fs::read_to_string(self.data.join("server/first-password"));
        text.expect("the first password is kept").trim().to_string()
    }

    /// Runs one of the client's commands.
    pub fn cli<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Ran {
        run(&mut self.command(&muster(), arguments))
    }

    /// Runs kubectl.
    pub fn kubectl<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Ran {
        run(&mut self.command(&kubectl(), arguments))
    }

    /// A command with an environment for this server.
    pub fn command<S: AsRef<OsStr>>(&self, program: &Path, arguments: &[S]) -> CommandBox {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("MUSTER_DATA", &self.data)
            .env("KUBECONFIG", self.kubeconfig())
            // kubectl caches discovery by host and port, and ports are reused.
            .env("KUBECACHEDIR", self.data.join("kubectl-cache"))
            .env("HOME", self.data.parent().unwrap_or(&self.data))
            // `muster run` uses the current directory, and pods do not run as root: other users may lack access to
            // the repository.
            .current_dir(self.shared("work"));
        CommandBox(command)
    }

    /// A world-writable directory beside the data. Pods see it under this path; pods under an id of the node's id
    /// range can only read it.
    pub fn shared(&self, name: &str) -> PathBuf {
        let path = self.data.with_file_name(name);
        std::fs::create_dir_all(&path).expect("a directory can be made");
        open_to_all(&path);
        path
    }

    /// The process id on the host of a pod's container; none while it has none. Inside the container it has another
    /// one.
    pub fn pod_process(&self, pod: &str) -> Option<u32> {
        let uid = self.get("pod", pod)["metadata"]["uid"].as_str()?.to_owned();
        let group = format!("/{uid}_");
        let all = std::fs::read_dir("/proc").ok()?.flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let mut own = pids.filter(|pid| {
            let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup"));
            groups.is_ok_and(|groups| groups.contains(&group))
        });
        own.next()
    }

    /// Writes a manifest beside the data and returns its path.
    pub fn manifest(&self, name: &str, text: &str) -> PathBuf {
        let directory = self.data.parent().expect("data lies in a directory");
        let path = directory.join(name);
        std::fs::write(&path, text).expect("a manifest can be written");
        path
    }

    /// Applies a manifest given as text.
    #[track_caller]
    pub fn apply(&self, text: &str) -> String {
        let file = self.manifest("apply.yaml", text);
        self.cli(&[OsStr::new("apply"), OsStr::new("-f"), file.as_os_str()])
            .ok()
    }

    /// One object as JSON, or null.
    pub fn get(&self, kind: &str, name: &str) -> serde_json::Value {
        let ran = self.cli(&["get", kind, name, "-o", "json"]);
        serde_json::from_str(&ran.out).unwrap_or_default()
    }

    /// The events in the audit log whose lines have these words. A line that is being written is left out.
    pub fn audited(&self, words: &str) -> Vec<serde_json::Value> {
        let text = self.audit_log();
        let lines = text.lines().filter(|line| line.contains(words));
        lines
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// The text of the audit log, of all its files.
    pub fn audit_log(&self) -> String {
        let files = std::fs::read_dir(self.data.join("audit")).into_iter();
        let files = files.flatten().flatten();
        let texts = files.map(|file| std::fs::read_to_string(file.path()).unwrap_or_default());
        texts.collect()
    }

    /// A pod's phase; empty if it has none.
    pub fn phase(&self, pod: &str) -> String {
        let object = self.get("pod", pod);
        object["status"]["phase"].as_str().unwrap_or("").to_owned()
    }

    /// The messages of the events about objects of this name in the namespace `default`, with this reason.
    pub fn events(&self, name: &str, reason: &str) -> Vec<String> {
        let selector = format!("involvedObject.name={name},reason={reason}");
        let all = ["get", "events", "-o", "json", "--field-selector", &selector];
        let all: serde_json::Value =
            serde_json::from_str(&self.kubectl(&all).ok()).expect("kubectl prints JSON");
        let all = all["items"].as_array().expect("a list").iter();
        let message = |event: &serde_json::Value| {
            let message = event["message"].as_str();
            message.expect("an event has a message").to_owned()
        };
        all.map(message).collect()
    }

    /// When a pod's first container started; empty while it does not run.
    pub fn started_at(&self, pod: &str) -> String {
        let object = self.get("pod", pod);
        let running = &object["status"]["containerStatuses"][0]["state"]["running"];
        running["startedAt"].as_str().unwrap_or("").to_owned()
    }

    /// Runs kubectl with a token in place of the administrator's credential.
    pub fn kubectl_by(&self, token: &str, arguments: &[&str]) -> Ran {
        let data = "jsonpath={.data.ca\\.crt}";
        let map = ["get", "configmap", "kube-root-ca.crt", "-o", data];
        let ca = self.manifest("ca.crt", &self.kubectl(&map).ok());
        let (ca, server) = (ca.display().to_string(), format!("https://{}", self.listen));
        let own = [
            "--kubeconfig=/dev/null",
            "--server",
            &server,
            "--certificate-authority",
            &ca,
            "--token",
            token,
        ];
        self.kubectl(&[&own[..], arguments].concat())
    }

    /// Waits until this many nodes are ready.
    pub fn await_nodes(&self, count: usize) {
        eventually("the nodes are ready", START, || {
            let out = self.cli(&["get", "nodes"]).out;
            (out.lines().filter(|line| line.contains(" Ready")).count() >= count).then_some(())
        });
    }

    /// A join token for agents.
    pub fn join_token(&self) -> String {
        self.cli(&["token", "join"]).ok().trim().to_string()
    }

    /// Starts `muster agent` with its own data directory.
    pub fn agent(&self, name: &str, inside: Option<&NodeNamespace>, arguments: &[&str]) -> Agent {
        self.agent_with(name, inside, &[], arguments)
    }

    /// Like `agent`, with these variables in its environment.
    pub fn agent_with(
        &self,
        name: &str,
        inside: Option<&NodeNamespace>,
        environment: &[(&str, &Path)],
        arguments: &[&str],
    ) -> Agent {
        let inside = inside.map(|inside| ["ip", "netns", "exec", &inside.name].map(str::to_owned));
        let inside = inside.map_or_else(Vec::new, |words| words.to_vec());
        self.agent_by(name, inside, environment, arguments)
    }

    /// An agent in this mount namespace, with the stand-in for the GPU driver's library and the machine that it describes.
    pub fn agent_with_gpus(
        &self,
        name: &str,
        mounts: &Mounts,
        library: &Path,
        machine: &Path,
    ) -> Agent {
        let environment = [
            ("LD_LIBRARY_PATH", library),
            ("MUSTER_NVML_MACHINE", machine),
        ];
        let inside = vec![
            "nsenter".to_owned(),
            format!("--mount={}", mounts.file().display()),
        ];
        let arguments = ["--metrics", "off", "--kmsg", "off"];
        self.agent_by(name, inside, &environment, &arguments)
    }

    /// Like `agent`, run by a wrapper command with these words.
    pub fn agent_by(
        &self,
        name: &str,
        inside: Vec<String>,
        environment: &[(&str, &Path)],
        arguments: &[&str],
    ) -> Agent {
        let directory = self
            .data
            .parent()
            .expect("data lies in a directory")
            .join(name);
        let mut agent = Agent {
            child: None,
            name: name.to_string(),
            data: directory,
            server: format!("https://{}", self.listen),
            token: self.join_token(),
            inside,
            arguments: arguments.iter().map(ToString::to_string).collect(),
            environment: (environment.iter())
                .map(|(name, value)| ((*name).to_owned(), value.to_path_buf()))
                .collect(),
        };
        agent.restart();
        agent
    }
}

/// A command for a single run.
pub struct CommandBox(pub Command);

impl std::ops::Deref for CommandBox {
    type Target = Command;
    fn deref(&self) -> &Command {
        &self.0
    }
}

impl std::ops::DerefMut for CommandBox {
    fn deref_mut(&mut self) -> &mut Command {
        &mut self.0
    }
}

impl Drop for Platform {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the server's log:\n{}", self.logged());
        }
        self.kill();
        end_shims(&self.data);
        if std::env::var_os("MUSTER_TEST_KEEP").is_some()
            && let Some(keep) = self.keep.take()
        {
            eprintln!("kept {}", keep.keep().display());
        }
    }
}

/// An agent in its own process.
pub struct Agent {
    child: Option<Child>,
    /// The node's name.
    pub name: String,
    /// Its data directory.
    pub data: PathBuf,
    server: String,
    token: String,
    /// The command's words before the program.
    inside: Vec<String>,
    arguments: Vec<String>,
    environment: Vec<(String, PathBuf)>,
}

impl Agent {
    /// Starts it (again) with the existing data.
    pub fn restart(&mut self) {
        assert!(self.child.is_none(), "it runs already");
        std::fs::create_dir_all(&self.data).expect("a directory can be made");
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.data.join("agent.log"))
            .expect("the log can be written");
        let err = log.try_clone().expect("a file can be shared");
        let mut command = program(&self.inside);
        command
            .arg("--data")
            .arg(&self.data)
            .args(["agent", "--server", &self.server, "--token", &self.token])
            .args(["--node-name", &self.name])
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(err);
        self.child = Some(command.spawn().expect("the muster binary starts"));
    }

    /// Kills the agent's process; its pods keep running.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// The agent's process id.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// The agent's log so far.
    pub fn logged(&self) -> String {
        std::fs::read_to_string(self.data.join("agent.log")).unwrap_or_default()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- agent {}'s log:\n{}", self.name, self.logged());
        }
        self.kill();
        end_shims(&self.data);
    }
}

/// The binary under test, after these words if there are any.
fn program(inside: &[String]) -> Command {
    match inside.split_first() {
        Some((program, words)) => {
            let mut command = Command::new(program);
            command.args(words).arg(muster());
            command
        }
        None => Command::new(muster()),
    }
}

/// The parent of the platforms' directories: not /tmp, because every pod has its own.
fn ground() -> PathBuf {
    let shown = Path::new("/var/lib");
    let writable = tempfile::tempdir_in(shown).is_ok();
    if writable {
        shown.to_owned()
    } else {
        std::env::temp_dir()
    }
}

fn open_to_all(directory: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let all = std::fs::Permissions::from_mode(0o1777);
    std::fs::set_permissions(directory, all).expect("a directory of the test's own");
}

/// Pods outlive their agent, but a test's pods must not outlive the test.
fn end_shims(data: &Path) {
    let pattern = format!("shim .*{}", data.display());
    run(Command::new("pkill").args(["-TERM", "-f", &pattern]));
    // A test that failed before its pods ended leaves their memory volumes mounted.
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    for point in points.filter(|point| Path::new(point).starts_with(data)) {
        run(Command::new("umount").args(["--lazy", point]));
    }
}
