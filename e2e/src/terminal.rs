//! kubectl in a terminal, as a person has one.

use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::parts::kubectl;
use crate::platform::{Platform, Ran};

/// How long a person takes between two lines: the shell has answered the line before.
const BETWEEN_LINES: Duration = Duration::from_millis(700);

impl Platform {
    /// Runs kubectl with these arguments in a terminal of 33 rows and 111 columns, and types the lines.
    ///
    /// # Panics
    /// The terminal could not be had, or ended before all lines were typed.
    pub fn kubectl_in_terminal(&self, arguments: &str, lines: &[&str]) -> Ran {
        let command = format!("stty rows 33 cols 111; {} {arguments}", kubectl().display());
        // script(1) gives kubectl a terminal.
        let mut child = self
            .command(
                Path::new("/usr/bin/script"),
                &["-qec", &command, "/dev/null"],
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script(1) starts");
        let mut stdin = child.stdin.take().expect("the input is a pipe");
        for line in lines {
            std::thread::sleep(BETWEEN_LINES);
            let line = format!("{line}\n");
            stdin
                .write_all(line.as_bytes())
                .expect("the terminal takes a line");
        }
        let ended = child.wait_with_output().expect("script(1) ends");
        Ran {
            code: ended.status.code(),
            out: String::from_utf8_lossy(&ended.stdout).into_owned(),
            err: String::from_utf8_lossy(&ended.stderr).into_owned(),
        }
    }

    /// Waits until a pod is ready.
    ///
    /// # Panics
    /// It is not within a minute.
    pub fn until_ready(&self, name: &str) {
        let pod = format!("pod/{name}");
        self.kubectl(&["wait", "--for=condition=Ready", &pod, "--timeout=60s"])
            .ok();
    }
}
