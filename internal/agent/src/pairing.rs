//! The node's part in an RDMA test between two nodes: describes its end, and runs perftest's
//! programs as either end of a test. One test at a time, of limited duration, and none while pods
//! have GPUs unless it is forced.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use devices::fabric::FabricWatch;
use devices::holders::DeviceHolder;
use hardware::rdma::pair::{self, PairAnswer, PairEnd, PairRequest, TestRun};
use rpc::agent::v1::{AgentMessage, RdmaAnswer, RdmaAsk};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, timeout};

use crate::node::AgentNode;
use crate::pods::Pods;

/// Time limit of a test, from its start at either end: three seconds of measurement, and the time
/// that slow cards and soft-RoCE need to start and end.
const LIMIT: Duration = Duration::from_secs(30);
/// How long a far end may take until it listens.
const BEGIN: Duration = Duration::from_secs(10);
/// Interval of checks whether it listens.
const LOOK: Duration = Duration::from_millis(50);
/// The state of a listening socket, in `/proc/net/tcp`.
const LISTENS: &str = "0A";

/// Why a node has no part in a test, or no result.
#[derive(Debug, thiserror::Error)]
pub enum PairingError {
    /// The request is of another version.
    #[error(
        "this agent does not know this request ({0}); run one version of muster on server and agents"
    )]
    Request(serde_json::Error),
    /// The answer can't be written.
    #[error("the answer: {0}")]
    Answer(serde_json::Error),
    /// Pods would lose bandwidth.
    #[error(
        "pods with GPUs run on {node} ({}), from which a test takes bandwidth; wait until they have ended, or say --force",
        pods.join(", ")
    )]
    Pods {
        /// The node.
        node: String,
        /// The pods.
        pods: Vec<String>,
    },
    /// The node takes part in another test.
    #[error(
        "{node} takes part in another test; try again when it is over, after {limit} s at most",
        limit = LIMIT.as_secs()
    )]
    Busy {
        /// The node.
        node: String,
    },
    /// No work uses the port.
    #[error("{card}/{port} is no port that work uses here; look at muster doctor on this node")]
    Port {
        /// The card.
        card: String,
        /// The port's number.
        port: u32,
    },
    /// The node has no free TCP port.
    #[error("{node} has no TCP port for a test: {source}")]
    Tcp {
        /// The node.
        node: String,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The far end is not ready.
    #[error(
        "{program} on {node} did not listen within {limit} s; look whether the card's driver hangs (dmesg)",
        limit = BEGIN.as_secs()
    )]
    NotListening {
        /// The program.
        program: String,
        /// The node.
        node: String,
    },
    /// The test takes too long.
    #[error(
        "{program} on {node} took longer than {limit} s; look whether its packets arrive (counters, PFC, firewalls for UDP port 4791)",
        limit = LIMIT.as_secs()
    )]
    Timeout {
        /// The program.
        program: String,
        /// The node.
        node: String,
    },
    /// perftest is not installed.
    #[error(
        "{node} has no {program} in its agent's PATH; install perftest there (apt-get install perftest)"
    )]
    NotInstalled {
        /// The program.
        program: String,
        /// The node.
        node: String,
    },
    /// The program can't be started.
    #[error("{program} cannot be started on {node}: {source}")]
    Start {
        /// The program.
        program: String,
        /// The node.
        node: String,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The program's end can't be waited for.
    #[error("{program} on {node}: {source}")]
    Wait {
        /// The program.
        program: String,
        /// The node.
        node: String,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The program ended without a result.
    #[error(
        "{program} on {node} gave no result; its output was: {output}; run muster doctor there"
    )]
    NoResult {
        /// The program.
        program: String,
        /// The node.
        node: String,
        /// Its last line.
        output: String,
    },
    /// The cluster's API does not have the node's address.
    #[error("{node}'s address is on its Node, which its agent cannot read: {source}")]
    Address {
        /// The node.
        node: String,
        /// The API's error.
        source: Box<kube::Error>,
    },
    /// The kubelet does not list the pods with GPUs.
    #[error(
        "the kubelet of {node} does not say which pods have GPUs ({detail}), and a test takes bandwidth from those; look whether the kubelet runs there (systemctl status kubelet)"
    )]
    Kubelet {
        /// The node.
        node: String,
        /// The kubelet's answer.
        detail: String,
    },
}

/// One end of a test: this node.
pub struct Here<'a> {
    /// The node's name, for messages.
    pub name: &'a str,
    /// The address by which other nodes reach it.
    pub address: String,
    /// The pods with GPUs on this node, each as `namespace/name`.
    pub pods: Vec<String>,
    /// Its RDMA network.
    pub fabric: &'a FabricWatch,
    /// Held while the node takes part in a test.
    pub lone: &'a Arc<Semaphore>,
}

/// Answers the server's request, when the answer is ready.
pub fn answer(
    node: &Arc<AgentNode>,
    pods: &Arc<Pods>,
    outbound: &mpsc::Sender<AgentMessage>,
    ask: RdmaAsk,
) {
    let (node, pods, outbound) = (node.clone(), pods.clone(), outbound.clone());
    tokio::spawn(async move {
        let answered = match serde_json::from_str(&ask.json) {
            Ok(wanted) => {
                let holders = pods.holders().into_iter();
                let with_devices = holders.filter(|(_, devices)| !devices.is_empty());
                let here = Here {
                    name: &node.facts.name,
                    address: node.facts.ip.clone(),
                    pods: names(with_devices.map(|(holder, _)| holder)),
                    fabric: &node.fabric,
                    lone: &node.pairing,
                };
                here.take(wanted).await
            }
            Err(error) => Err(PairingError::Request(error)),
        };
        let json = answered
            .and_then(|answered| serde_json::to_string(&answered).map_err(PairingError::Answer));
        let (json, error) = match json {
            Ok(json) => (json, String::new()),
            Err(error) => (String::new(), error.to_string()),
        };
        let id = ask.id;
        // A session that ended meanwhile has no receiver.
        let _ = outbound.send(RdmaAnswer { id, json, error }.into()).await;
    });
}

impl Here<'_> {
    /// The answer of this end, or why it can't answer.
    pub async fn take(&self, ask: PairRequest) -> Result<PairAnswer, PairingError> {
        let end = PairEnd {
            address: self.address.clone(),
            pods: self.pods.clone(),
            ..self.fabric.end()
        };
        match ask {
            PairRequest::Examine => Ok(PairAnswer::End(end)),
            PairRequest::Serve(run) => {
                let permit = self.begin(&run)?;
                serve(self.name, &end, &run, permit).await
            }
            PairRequest::Measure { run, address, tcp } => {
                let _permit = self.begin(&run)?;
                let (program, words) = pair::arguments(&run, gid(&end, &run)?, tcp, Some(address));
                measure(self.name, program, &words, &run).await
            }
        }
    }

    /// The permit for a test; there is one at a time.
    fn begin(&self, run: &TestRun) -> Result<OwnedSemaphorePermit, PairingError> {
        let node = self.name.to_owned();
        if !self.pods.is_empty() && !run.force {
            let pods = self.pods.clone();
            return Err(PairingError::Pods { node, pods });
        }
        let permit = self.lone.clone().try_acquire_owned();
        permit.map_err(|_| PairingError::Busy { node })
    }
}

/// The pods of containers, each once, as `namespace/name`.
pub fn names(holders: impl Iterator<Item = DeviceHolder>) -> Vec<String> {
    let mut names: Vec<String> = holders
        .map(|holder| format!("{}/{}", holder.namespace, holder.pod))
        .collect();
    names.sort();
    names.dedup();
    names
}

/// The GID index for a port: only for a port that work uses here.
fn gid(end: &PairEnd, run: &TestRun) -> Result<Option<u32>, PairingError> {
    let mut ports = end.ports.iter();
    let port = ports.find(|port| port.card == run.card && port.number == run.port);
    port.map(|port| port.gid).ok_or_else(|| PairingError::Port {
        card: run.card.clone(),
        port: run.port,
    })
}

/// Starts a far end, which runs in the background until its test ends or its time is over.
async fn serve(
    name: &str,
    end: &PairEnd,
    run: &TestRun,
    permit: OwnedSemaphorePermit,
) -> Result<PairAnswer, PairingError> {
    let failed = |source: std::io::Error| PairingError::Tcp {
        node: name.to_owned(),
        source,
    };
    // The kernel picks a free port; perftest accepts no socket, only a port number.
    let free = TcpListener::bind(("0.0.0.0", 0)).await.map_err(failed)?;
    let tcp = free.local_addr().map_err(failed)?.port();
    drop(free);
    let (program, words) = pair::arguments(run, gid(end, run)?, tcp, None);
    let mut child = start(name, program, &words)?;
    let began = Instant::now();
    while !listens(tcp) {
        if matches!(child.try_wait(), Ok(Some(_))) {
            return Err(ended(name, program, child).await);
        }
        if began.elapsed() >= BEGIN {
            return Err(PairingError::NotListening {
                program: program.to_owned(),
                node: name.to_owned(),
            });
        }
        tokio::time::sleep(LOOK).await;
    }
    tokio::spawn(async move {
        // A dropped child is killed.
        let _ = timeout(LIMIT, child.wait_with_output()).await;
        drop(permit);
    });
    Ok(PairAnswer::Serving(tcp))
}

/// Runs a test against a serving far end.
async fn measure(
    name: &str,
    program: &str,
    words: &[String],
    run: &TestRun,
) -> Result<PairAnswer, PairingError> {
    let child = start(name, program, words)?;
    let ended = timeout(LIMIT, child.wait_with_output()).await;
    let out = match ended {
        Err(_) => {
            return Err(PairingError::Timeout {
                program: program.to_owned(),
                node: name.to_owned(),
            });
        }
        Ok(Err(source)) => return Err(wait(name, program, source)),
        Ok(Ok(out)) => out,
    };
    let printed = String::from_utf8_lossy(&out.stdout);
    match pair::read(run.test, &printed).filter(|_| out.status.success()) {
        Some(result) => Ok(PairAnswer::Measured(result)),
        None => Err(no_result(name, program, &printed, &out.stderr)),
    }
}

fn start(name: &str, program: &str, words: &[String]) -> Result<Child, PairingError> {
    let mut command = Command::new(program);
    command.args(words).kill_on_drop(true);
    for name in runtime::SERVICE_MANAGER_VARIABLES {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().map_err(|source| {
        let (program, node) = (program.to_owned(), name.to_owned());
        match source.kind() {
            std::io::ErrorKind::NotFound => PairingError::NotInstalled { program, node },
            _ => PairingError::Start {
                program,
                node,
                source,
            },
        }
    })
}

fn wait(name: &str, program: &str, source: std::io::Error) -> PairingError {
    PairingError::Wait {
        program: program.to_owned(),
        node: name.to_owned(),
        source,
    }
}

/// Why a far end has ended.
async fn ended(name: &str, program: &str, child: Child) -> PairingError {
    match child.wait_with_output().await {
        Ok(out) => no_result(
            name,
            program,
            &String::from_utf8_lossy(&out.stdout),
            &out.stderr,
        ),
        Err(source) => wait(name, program, source),
    }
}

/// A program's error message, else its last line of output.
fn no_result(name: &str, program: &str, printed: &str, errors: &[u8]) -> PairingError {
    let errors = String::from_utf8_lossy(errors);
    let last = |text: &str| {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        lines.next_back().map(str::to_owned)
    };
    let words = last(&errors).or_else(|| last(printed));
    PairingError::NoResult {
        program: program.to_owned(),
        node: name.to_owned(),
        output: words.unwrap_or_else(|| "nothing".to_owned()),
    }
}

/// Whether a process listens at a TCP port here.
fn listens(tcp: u16) -> bool {
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
    let read = |table: &str| std::fs::read_to_string(table).unwrap_or_default();
    tables.iter().any(|table| listed(&read(table), tcp))
}

/// Whether a socket table has a listener at a port: number, own address, other's, state.
fn listed(table: &str, tcp: u16) -> bool {
    let port = format!(":{tcp:04X}");
    table.lines().skip(1).any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let own = words.next().is_some_and(|own| own.ends_with(&port));
        own && words.nth(1) == Some(LISTENS)
    })
}

#[cfg(test)]
mod tests {
    use hardware::rdma::pair::Test;

    use super::*;

    #[test]
    fn a_port_is_listened_at_when_the_table_says_so_of_its_own_address() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n\
            \x20  0: 00000000:4853 00000000:0000 0A 00000000:00000000 00:00000000\n\
            \x20  1: 0100007F:4854 0100007F:4855 01 00000000:00000000 00:00000000\n";
        assert!(listed(table, 0x4853));
        assert!(!listed(table, 0x4854), "a connection is none");
        assert!(!listed(table, 0x4855), "the other's is none");
        assert!(!listed("", 0x4853));
        let socket = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        assert!(listens(socket.local_addr().unwrap().port()));
    }

    proptest::proptest! {
        #[test]
        fn no_table_of_sockets_panics(text in "([ 0-9A-F:xyz\\PC]{0,80}\n){0,6}", port: u16) {
            let _ = listed(&text, port);
            let with = format!("sl\n 0: 0100007F:{port:04X} 00000000:0000 0A 0\n{text}");
            proptest::prop_assert!(listed(&with, port));
        }
    }

    #[test]
    fn a_test_runs_on_a_port_that_work_uses_with_its_own_address() {
        let port = |card: &str, gid| pair::EndPort {
            card: card.into(),
            number: 1,
            gid,
            ..pair::EndPort::default()
        };
        let end = PairEnd {
            ports: vec![port("mlx5_0", Some(3)), port("mlx5_1", None)],
            ..PairEnd::default()
        };
        let run = |card: &str, port: u32| TestRun {
            test: Test::Latency,
            card: card.into(),
            port,
            force: false,
        };
        assert_eq!(gid(&end, &run("mlx5_0", 1)).unwrap(), Some(3));
        assert_eq!(gid(&end, &run("mlx5_1", 1)).unwrap(), None);
        for (card, number) in [("mlx5_0", 2), ("--all", 1)] {
            let why = gid(&end, &run(card, number)).unwrap_err().to_string();
            assert!(why.contains("no port that work uses"), "{why}");
        }
    }

    #[tokio::test]
    async fn a_programs_last_words_are_the_reason_for_its_missing_result() {
        let run = TestRun {
            test: Test::Bandwidth,
            card: "mlx5_0".into(),
            port: 1,
            force: false,
        };
        let shell = |script: &str| ["-c".to_owned(), script.to_owned()];
        let of = async |script: &str| {
            let measured = measure("n1", "sh", &shell(script), &run).await;
            measured.map_err(|error| error.to_string())
        };
        let row = "echo ' 65536  10  0.0  3.5  0.1'";
        assert_eq!(of(row).await, Ok(PairAnswer::Measured(3.5)));
        let failed = format!("{row}; exit 1");
        assert!(of(&failed).await.unwrap_err().contains("65536"));
        let why = of("echo first; echo Unable to init >&2; exit 1").await;
        assert!(why.unwrap_err().contains("its output was: Unable to init;"));
        let why = measure("n1", "no-such-perftest", &[], &run).await;
        assert!(
            why.unwrap_err()
                .to_string()
                .contains("apt-get install perftest")
        );
    }
}
