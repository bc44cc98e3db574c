//! The cost of the agent's metrics: resident memory, and CPU time for a scrape every 15 s, on the
//! described HGX H100 with the stand-in for the GPU driver's library and eight busy GPUs. The same
//! agent without metrics, and Debian's node exporter, are the references.
//!
//! Scrapes follow each other as fast as each gets a new reading; the cost of one is divided by 15
//! s. The stand-in's own work (it checks its file before each answer) counts as the agent's.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use e2e::{Platform, cpu_seconds, eventually, free_address, get, repository, resident_mib};

/// Counted scrapes.
const SCRAPES: u32 = 40;
/// Interval between scrapes: the agent would return a younger page again.
const APART: Duration = Duration::from_millis(1020);
/// Prometheus' usual interval between scrapes.
const USUAL: f64 = 15.0;
/// The limits: MiB, and percent of a core.
const LIMITS: (f64, f64) = (20.0, 1.0);
const START: Duration = Duration::from_secs(60);

/// All eight GPUs have a value of every kind.
fn states() -> String {
    let one = |gpu: u32| {
        format!(
            "[[state]]\ngpu = {gpu}\nutilisation = 97\nmemory_utilisation = 50\nencoder = 0\ndecoder = 0\n\
             watts = 690\ncelsius = 80\nmemory_celsius = 90\nenergy_mj = 1000\nsm_mhz = 1980\n\
             memory_mhz = 2619\nmemory_used_mib = 79000\nnvlink_kib = 4096\ncorrected = 3\n\
             gpm = [{{ metric = 1, value = 95.0 }}, {{ metric = 5, value = 60.0 }}, {{ metric = 10, value = 40.0 }}, \
             {{ metric = 20, value = 10.0 }}, {{ metric = 21, value = 20.0 }}]\n\
             processes = [{{ pid = {}, memory_mib = 79000, utilisation = 97 }}]\n",
            4000 + gpu
        )
    };
    (0..8).map(one).collect()
}

/// Scrapes an address; returns the number of the page's lines.
fn scrape(address: &str) -> usize {
    let (status, page) = get(address, "/metrics").expect("an answer");
    assert_eq!(status, 200, "{page}");
    page.lines().count()
}

fn exporter(address: &str) -> Child {
    let child = Command::new("prometheus-node-exporter")
        .arg(format!("--web.listen-address={address}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("prometheus-node-exporter starts; e2e/parts/get system installs it");
    eventually("the node exporter answers", START, || {
        get(address, "/metrics").ok()
    });
    child
}

fn main() {
    let platform = Platform::server(&[]);
    let library = tempfile::tempdir().expect("a directory");
    let beside = std::env::current_exe().expect("this program's path");
    let built = beside.with_file_name("libnvml_standin.so");
    std::fs::copy(&built, library.path().join("libnvidia-ml.so.1")).expect("the stand-in is built");
    let machine = repository().join("packaging/examples/machines/hgx-h100.toml");
    let machine = std::fs::read_to_string(machine).expect("a machine");
    let described = platform.manifest("machine.toml", &format!("{machine}\n{}", states()));
    let environment: [(&str, &Path); 2] = [
        ("LD_LIBRARY_PATH", library.path()),
        ("MUSTER_NVML_MACHINE", &described),
    ];
    let addresses = [free_address(), free_address()];
    let with = ["--metrics", &addresses[0]];
    let with = platform.agent_with("with", None, &environment, &with);
    let without = platform.agent_with("without", None, &environment, &["--metrics", "off"]);
    platform.await_nodes(2);
    let mut yardstick = exporter(&addresses[1]);
    let pids = [with.pid(), yardstick.id(), without.pid()];
    // The first readings open libraries and fill buffers.
    let mut lines = [0, 0];
    for _ in 0..3 {
        lines = [scrape(&addresses[0]), scrape(&addresses[1])];
        std::thread::sleep(APART);
    }
    let before = pids.map(cpu_seconds);
    for _ in 0..SCRAPES {
        addresses.iter().for_each(|address| {
            scrape(address);
        });
        std::thread::sleep(APART);
    }
    let after = pids.map(cpu_seconds);
    let resident = pids.map(resident_mib);
    let _ = yardstick.kill();
    let _ = yardstick.wait();

    let spent = |at: usize| after[at] - before[at];
    let each = |seconds: f64| seconds * 1000.0 / f64::from(SCRAPES);
    let percent = |seconds: f64| 100.0 * seconds / f64::from(SCRAPES) / USUAL;
    let elapsed = f64::from(SCRAPES) * APART.as_secs_f64();
    println!("a scrape every 15 s, eight GPUs at work; {SCRAPES} scrapes");
    println!(
        "{:<28} {:>9} {:>11} {:>13} {:>7}",
        "", "resident", "a scrape", "of a core", "lines"
    );
    let metrics = (spent(0) - spent(2)).max(0.0);
    for (name, mib, seconds, lines) in [
        (
            "metrics, of the agent",
            (resident[0] - resident[2]).max(0.0),
            metrics,
            lines[0],
        ),
        ("node exporter (yardstick)", resident[1], spent(1), lines[1]),
    ] {
        println!(
            "{name:<28} {mib:>5.1} MiB {:>8.2} ms {:>11.3} % {lines:>7}",
            each(seconds),
            percent(seconds)
        );
    }
    println!(
        "{:<28} {:>5.1} MiB {:>25.3} %",
        "the agent without metrics",
        resident[2],
        100.0 * spent(2) / elapsed
    );
    println!("{:<28} {:>5.1} MiB", "the whole agent", resident[0]);
    let good = resident[0] - resident[2] <= LIMITS.0 && percent(metrics) <= LIMITS.1;
    println!(
        "metrics may cost {} MiB and {} % of a core: {}",
        LIMITS.0,
        LIMITS.1,
        if good { "kept" } else { "NOT KEPT" }
    );
}
