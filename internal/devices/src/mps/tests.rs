//! The daemons' lifecycle, with a stand-in for NVIDIA's control program
//! (`testing/mps-control-standin`).

use std::path::PathBuf;
use std::time::Duration;

use hardware::InventorySources;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::*;

const GPU: &str = "GPU-1";

/// An agent's daemon keeper.
struct Keeping {
    want: watch::Sender<MpsPlan>,
    stands: watch::Receiver<MpsDaemonStates>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Keeping {
    fn begin(directory: &TempDir, wanted: MpsPlan) -> Keeping {
        let (want, wants) = watch::channel(wanted);
        let (tell, stands) = watch::channel(MpsDaemonStates::new());
        let (stop, stopping) = watch::channel(false);
        let source = InventorySources {
            nvml: false,
            ..InventorySources::default()
        };
        let task = tokio::spawn(keep(config(directory), source, wants, tell, stopping));
        Keeping {
            want,
            stands,
            stop,
            task,
        }
    }

    async fn until(&mut self, is: impl Fn(&MpsDaemonState) -> bool) -> MpsDaemonState {
        let all = self
            .stands
            .wait_for(|all| all.get(GPU).is_some_and(&is))
            .await;
        all.expect("it is kept")[GPU].clone()
    }

    async fn until_ready(&mut self) -> MpsDaemonState {
        self.until(|stand| stand.problem.is_none()).await
    }

    async fn end(self) {
        self.stop.send_replace(true);
        self.task.await.expect("it ends");
    }
}

fn config(directory: &TempDir) -> MpsConfig {
    let standin = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testing/mps-control-standin");
    MpsConfig {
        program: standin,
        directory: directory.path().to_owned(),
    }
}

fn control(directory: &TempDir) -> Control {
    let config = config(directory);
    Control::new(&config.program, GPU, &config.directory)
}

fn parts(replicas: usize) -> MpsPlan {
    MpsPlan::from([(GPU.to_owned(), Ok(ShareLimit::of_replica(replicas, 80_000)))])
}

/// The daemons' settings.
fn told(directory: &TempDir) -> Vec<String> {
    let log = directory.path().join(GPU).join("log/control.log");
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn count(directory: &TempDir, words: &str) -> usize {
    told(directory).iter().filter(|line| *line == words).count()
}

async fn until(what: impl Fn() -> bool) {
    while !what() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn clients(directory: &TempDir, text: Option<&str>) {
    let file = control(directory).pipe().join("clients");
    match text {
        Some(text) => std::fs::write(file, text).expect("clients are written"),
        None => std::fs::remove_file(file).expect("clients go"),
    }
}

#[tokio::test]
async fn a_daemon_gets_its_limits_is_restarted_when_it_dies_and_ends_with_the_agent() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut keeping = Keeping::begin(&directory, parts(4));
    let stand = keeping.until_ready().await;
    assert_eq!(stand.pipe, control(&directory).pipe());
    assert_eq!(stand.limit, ShareLimit::of_replica(4, 80_000));
    let first = control(&directory).process().expect("it runs");
    let wanted = [
        "starts for GPU-1",
        "set_default_device_pinned_mem_limit 0 20000M",
        "set_default_active_thread_percentage 25",
    ];
    assert_eq!(told(&directory), wanted);

    let kill = std::process::Command::new("kill")
        .arg(first.pid.to_string())
        .status();
    assert!(kill.expect("kill runs").success());
    until(|| count(&directory, wanted[2]) == 2).await;
    until(|| {
        control(&directory)
            .process()
            .is_some_and(|now| now != first)
    })
    .await;
    let second = control(&directory).process().expect("it runs again");
    keeping.end().await;
    until(|| !second.is_alive()).await;
}

#[tokio::test]
async fn a_daemon_that_is_used_outlives_the_agent_and_is_taken_up_by_the_next() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut keeping = Keeping::begin(&directory, parts(4));
    keeping.until_ready().await;
    let process = control(&directory).process().expect("it runs");
    clients(&directory, Some("4711\n"));
    keeping.end().await;
    assert!(process.is_alive(), "somebody uses it");

    let mut next = Keeping::begin(&directory, parts(4));
    next.until_ready().await;
    assert_eq!(control(&directory).process(), Some(process));
    assert_eq!(count(&directory, "starts for GPU-1"), 1);

    // New limits apply after these processes have ended.
    next.want.send_replace(parts(2));
    let stand = next.until(|stand| stand.problem.is_some()).await;
    let why = stand.problem.expect("it waits");
    assert!(why.contains("other limits") && process.is_alive(), "{why}");
    clients(&directory, None);
    next.until_ready().await;
    until(|| !process.is_alive()).await;
    assert_eq!(
        count(&directory, "set_default_active_thread_percentage 50"),
        1
    );

    // A GPU that is no longer shared has no daemon, also if another agent started it.
    let process = control(&directory).process().expect("it runs");
    next.want.send_replace(MpsPlan::new());
    until(|| !process.is_alive()).await;
    next.end().await;
    let left = control(&directory)
        .start(&ShareLimit::default())
        .await
        .expect("it starts");
    let last = Keeping::begin(&directory, MpsPlan::new());
    until(|| !left.is_alive()).await;
    last.end().await;
}

#[tokio::test]
async fn a_daemon_that_does_not_start_says_why_and_is_tried_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let pipe = control(&directory).pipe();
    std::fs::create_dir_all(&pipe).expect("a directory");
    std::fs::write(pipe.join("refuse"), "").expect("a file");
    let mut keeping = Keeping::begin(&directory, parts(1));
    let stand = keeping.until(|stand| stand.problem.is_some()).await;
    let why = stand.problem.expect("it did not start");
    assert!(
        why.contains("exit status: 1") && why.contains("log"),
        "{why}"
    );
    std::fs::remove_file(pipe.join("refuse")).expect("the file goes");
    keeping.until_ready().await;
    keeping.end().await;

    let nowhere = Control::new(Path::new("/nonexistent/control"), GPU, directory.path());
    let why = nowhere
        .start(&ShareLimit::default())
        .await
        .expect_err("there is none")
        .to_string();
    assert!(
        why.contains("/nonexistent/control") && why.contains("--mps-control"),
        "{why}"
    );
}

#[test]
fn a_gpu_without_a_known_daemon_waits() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut wanted = parts(2);
    wanted.insert("GPU-2".into(), Err(NotShared::Slice));
    let known = MpsDaemonStates::from([(GPU.to_owned(), MpsDaemonState::default())]);
    let stands = known_or_waiting(&wanted, &MpsDaemonStates::new(), &config(&directory));
    assert!(stands[GPU].problem.is_some() && stands["GPU-2"].problem.is_some());
    let stands = known_or_waiting(&wanted, &known, &config(&directory));
    assert_eq!(stands[GPU], MpsDaemonState::default());
    assert!(known_or_waiting(&MpsPlan::new(), &known, &config(&directory)).is_empty());
}
