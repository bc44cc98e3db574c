//! Runs `ip` and `nft` in the network of the calling thread.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::error::{NetworkError, kernel};

/// How long a command may take: the kernel has one lock for all changes of networks, which many pods may want.
const LIMIT: Duration = Duration::from_secs(30);
/// The most that is read of a command's output, in bytes.
const OUTPUT_MAX: u64 = 16 << 20;
/// The most of a command's errors that a message shows, in characters.
const SHOWN: usize = 300;
/// Where programs of administrators are besides the agent's PATH.
const SYSTEM_DIRECTORIES: &str = "/usr/sbin:/sbin:/usr/bin:/bin";

/// The programs that change a machine's network.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    ip: PathBuf,
    nft: PathBuf,
}

impl Tools {
    /// Finds them in the agent's PATH and where systems keep them.
    pub fn find() -> Result<Tools, NetworkError> {
        let path = std::env::var("PATH").unwrap_or_default();
        let all = format!("{path}:{SYSTEM_DIRECTORIES}");
        let find = |program: &'static str, package: &'static str| {
            let places = all.split(':').filter(|dir| !dir.is_empty());
            let mut files = places.map(|dir| Path::new(dir).join(program));
            let missing = NetworkError::NoProgram { program, package };
            files.find(|file| file.is_file()).ok_or(missing)
        };
        Ok(Tools {
            ip: find("ip", "iproute2 (Fedora: iproute)")?,
            nft: find("nft", "nftables")?,
        })
    }

    /// Gives `ip` commands, one a line; stops at the first that fails.
    pub fn ip_batch(&self, commands: &str) -> Result<(), NetworkError> {
        run("ip", &self.ip, &["-batch", "-"], commands).map(drop)
    }

    /// Runs one command of `ip`.
    pub fn ip(&self, words: &[&str]) -> Result<(), NetworkError> {
        run("ip", &self.ip, words, "").map(drop)
    }

    /// What a command of `ip` lists.
    pub fn list<T: DeserializeOwned>(&self, words: &[&str]) -> Result<Vec<T>, NetworkError> {
        let words = [&["-json"], words].concat();
        let text = run("ip", &self.ip, &words, "")?;
        if text.trim().is_empty() {
            return Ok(Vec::new());
        }
        serde_json::from_str(&text).map_err(|error| NetworkError::Command {
            program: "ip",
            detail: format!("its list cannot be read: {error}"),
        })
    }

    /// Gives `nft` rules, all of which apply in one step or none.
    pub fn nft(&self, rules: &str) -> Result<(), NetworkError> {
        run("nft", &self.nft, &["-f", "-"], rules).map(drop)
    }
}

/// Runs a program to its end; its output.
fn run(
    program: &'static str,
    path: &Path,
    words: &[&str],
    input: &str,
) -> Result<String, NetworkError> {
    let failed = |detail: String| NetworkError::Command { program, detail };
    let mut child = Command::new(path)
        .args(words)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(kernel(format!("start {}", path.display())))?;
    let (out, err) = (read(&mut child, true), read(&mut child, false));
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends early says why by its errors.
        let _ = stdin.write_all(input.as_bytes());
    }
    let (Ok(out), Ok(err)) = (out.recv_timeout(LIMIT), err.recv_timeout(LIMIT)) else {
        let _ = child.kill();
        let _ = child.wait();
        return Err(failed(format!(
            "it did not end within {} s",
            LIMIT.as_secs()
        )));
    };
    let status = child
        .wait()
        .map_err(kernel(format!("wait for {program}")))?;
    if status.success() {
        return Ok(out);
    }
    let shown: String = err.trim().replace('\n', "; ").chars().take(SHOWN).collect();
    Err(failed(match shown.is_empty() {
        true => status.to_string(),
        false => shown,
    }))
}

/// Reads one of a program's outputs to its end, on a thread of its own.
fn read(child: &mut Child, standard: bool) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    let stream: Option<Box<dyn Read + Send>> = match standard {
        true => child.stdout.take().map(|stream| Box::new(stream) as _),
        false => child.stderr.take().map(|stream| Box::new(stream) as _),
    };
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(stream) = stream {
            let _ = stream.take(OUTPUT_MAX).read_to_end(&mut bytes);
        }
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_is_named_with_its_errors() {
        let shell = Path::new("/bin/sh");
        let ran = |script: &str| run("sh", shell, &["-c", script], "in\n");
        assert_eq!(ran("cat; echo out").unwrap(), "in\nout\n");
        let error = ran("echo one >&2; echo two >&2; exit 3").unwrap_err();
        assert_eq!(error.to_string(), "sh failed: one; two");
        assert!(ran("exit 3").unwrap_err().to_string().contains('3'));
        let missing = run("sh", Path::new("/nowhere"), &[], "").unwrap_err();
        assert!(missing.to_string().starts_with("cannot start /nowhere: "));
    }
}
