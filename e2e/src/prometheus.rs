//! A real Prometheus that scrapes one address, with the alerts of packaging/monitoring.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use crate::ports::free_address;
use crate::{eventually, repository};

const START: Duration = Duration::from_secs(60);

/// Sends a plain GET; returns the status and the body.
pub fn get(address: &str, path: &str) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let status = text
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok((status.unwrap_or(0), body.to_owned()))
}

/// Debian's Prometheus, in its own directory.
pub struct Prometheus {
    child: Child,
    address: String,
    directory: tempfile::TempDir,
}

impl Prometheus {
    /// Scrapes `target` each second.
    pub fn scraping(target: &str) -> Prometheus {
        Prometheus::scraping_by(target, None)
    }

    /// Scrapes `target` each second with a bearer token.
    pub fn scraping_by(target: &str, token: Option<&str>) -> Prometheus {
        let credentials = token.map_or_else(String::new, |token| {
            format!("    authorization: {{credentials: '{token}'}}\n")
        });
        let directory = tempfile::tempdir().expect("a directory");
        let rules = repository().join("packaging/monitoring/rules.yaml");
        let configuration = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{}']\n\
             scrape_configs:\n  - job_name: muster\n    honor_labels: true\n    \
             static_configs: [{{targets: ['{target}']}}]\n{credentials}",
            rules.display()
        );
        let file = directory.path().join("prometheus.yml");
        std::fs::write(&file, configuration).expect("a configuration is written");
        let log = File::create(directory.path().join("log")).expect("a log");
        let address = free_address();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                directory.path().join("data").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("prometheus starts; e2e/parts/get system installs it");
        let prometheus = Prometheus {
            child,
            address,
            directory,
        };
        eventually("Prometheus is ready", START, || {
            let (status, _) = get(&prometheus.address, "/-/ready").ok()?;
            (status == 200).then_some(())
        });
        prometheus
    }

    /// The API's answer to a GET; fails on an error.
    pub fn api(&self, path: &str) -> Value {
        let (_, body) = get(&self.address, path).expect("Prometheus answers");
        // Larger answers come in chunks, whose sizes are on separate lines.
        let plain: String = match body.starts_with('{') {
            true => body,
            false => body.split("\r\n").filter(|line| line.len() > 8).collect(),
        };
        let answer: Value =
            serde_json::from_str(&plain).unwrap_or_else(|error| panic!("{path}: {error}: {plain}"));
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        answer["data"].clone()
    }

    /// The current values of a query.
    pub fn query(&self, query: &str) -> Vec<Value> {
        let encoded = utf8_percent_encode(query, NON_ALPHANUMERIC);
        let data = self.api(&format!("/api/v1/query?query={encoded}"));
        data["result"].as_array().cloned().unwrap_or_default()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.directory.path().join("log"));
            eprintln!("--- Prometheus' log:\n{}", log.unwrap_or_default());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
