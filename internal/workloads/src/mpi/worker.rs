//! The program of a worker's container.

use k8s_openapi::api::core::v1::Container;
use resources::training::MPI_WORKER_COMMAND;

/// The program that workers run where `mpirun` reaches them by SSH.
const SSH_SERVER: [&str; 2] = ["/usr/sbin/sshd", "-De"];
/// Shells whose script is read.
const SHELLS: [&str; 3] = ["sh", "bash", "dash"];

/// Gives a worker its program if its template has none. Where pods share their node's address (`shared`), an SSH server
/// of the template cannot run and is not needed: the worker waits instead.
pub(crate) fn serve(container: &mut Container, shared: bool) {
    let texts = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect());
    let words = container.command.iter().chain(&container.args).flatten();
    let words: Vec<&str> = words.map(String::as_str).collect();
    let bare = words.is_empty();
    if shared && (bare || ends_in_ssh_server(&words)) {
        container.command = texts(&MPI_WORKER_COMMAND);
        container.args = None;
    } else if bare {
        container.command = texts(&SSH_SERVER);
    }
}

/// Whether a command ends in an SSH server: as its program, or as the last command of a shell's script, such as
/// `mkdir -p /run/sshd; /usr/sbin/sshd -D`.
fn ends_in_ssh_server(words: &[&str]) -> bool {
    match words {
        [shell, option, script, ..] if is_shell(shell, option) => {
            let lines = script.split(['\n', ';']).flat_map(|part| part.split("&&"));
            let commands = lines
                .map(str::trim)
                .filter(|line| !line.is_empty() && !line.starts_with('#'));
            let last = commands.last().unwrap_or_default();
            let last = last.strip_prefix("exec ").unwrap_or(last);
            last.split_whitespace().next().map(file_name) == Some("sshd")
        }
        [program, ..] => file_name(program) == "sshd",
        [] => false,
    }
}

/// Whether a script follows: `sh -c`, `bash -lc`.
fn is_shell(program: &str, option: &str) -> bool {
    SHELLS.contains(&file_name(program)) && option.starts_with('-') && option.ends_with('c')
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_would_run_an_ssh_server_on_a_shared_address_waits() {
        for (words, waits) in [
            (&[][..], true),
            (&["/usr/sbin/sshd", "-De"][..], true),
            (&["sshd"][..], true),
            (
                &[
                    "/bin/sh",
                    "-c",
                    "mkdir -p /var/run/sshd; /usr/sbin/sshd -D;\n",
                ][..],
                true,
            ),
            (
                &[
                    "bash",
                    "-lc",
                    "mkdir -p /run/sshd && exec /usr/sbin/sshd -D -e\n# never ends",
                ][..],
                true,
            ),
            (
                &[
                    "/bin/sh",
                    "-c",
                    "/usr/sbin/sshd; mpiexec --host ${MPI_HOST} -np 2 hello",
                ][..],
                false,
            ),
            (&["/bin/sh", "-c", "echo no sshd"][..], false),
            (&["/bin/sh", "-c", ""][..], false),
            (&["/bin/sh", "/usr/sbin/sshd"][..], false),
            (&["sleep", "infinity"][..], false),
        ] {
            let given: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let mut container = Container {
                command: (!given.is_empty()).then(|| given.clone()),
                ..Container::default()
            };
            serve(&mut container, true);
            let command = container.command.clone().unwrap_or_default();
            let expected: Vec<String> = match waits {
                true => MPI_WORKER_COMMAND
                    .iter()
                    .map(|word| (*word).to_owned())
                    .collect(),
                false => given.clone(),
            };
            assert_eq!(command, expected, "{words:?}");
        }
    }

    #[test]
    fn a_worker_with_an_address_of_its_own_runs_what_it_says_or_an_ssh_server() {
        let mut bare = Container::default();
        serve(&mut bare, false);
        assert_eq!(
            bare.command.as_deref(),
            Some(&["/usr/sbin/sshd".to_owned(), "-De".to_owned()][..])
        );
        let own = vec!["/usr/sbin/sshd".to_owned(), "-D".to_owned()];
        let mut container = Container {
            args: Some(own.clone()),
            ..Container::default()
        };
        serve(&mut container, false);
        assert_eq!((container.command, container.args), (None, Some(own)));
    }
}
