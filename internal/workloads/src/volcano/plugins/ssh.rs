//! The ssh plugin: a pair of keys for SSH in every pod of a job, and a configuration that names the pods. Source:
//! Volcano's `pkg/controllers/job/plugins/ssh`. Unlike there, the configuration names the private key and the pods' long
//! host names, too, so that `ssh -F FILE` works where the files are not in the user's home.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Secret, Volume};

use super::{arguments, host, port};
use crate::action::SshKeys;
use crate::mpi::ssh::{self, AUTHORIZED_KEYS, PRIVATE_KEY, PUBLIC_KEY};
use crate::volcano::plan::{ParsedVolcanoJob, Unrunnable};
use crate::volcano::pods::metadata;

/// The port of an SSH server.
const PORT: u16 = 22;
/// Where the files are if pods share their node's address: there they do not run as root, and only root may enter its
/// home.
const SHARED_PATH: &str = "/etc/volcano-ssh";
/// The configuration's file.
const CONFIG: &str = "config";
/// An argument of earlier versions of Volcano, which manifests still have. The files are always those of the pod's user.
const NO_ROOT: &str = "--no-root";
/// The most bytes of the Secret's data; it needs some for the keys' names.
const SECRET_BYTES_MAX: usize = 1020 * 1024;

/// The plugin's arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ssh {
    /// Where the files are, if the user chose it.
    path: Option<String>,
    port: Option<u16>,
    private_key: Option<String>,
    public_key: Option<String>,
}

impl Ssh {
    pub(super) fn of(given: &[String]) -> Result<Ssh, Unrunnable> {
        let mut ssh = Ssh::default();
        let given: Vec<String> = given
            .iter()
            .filter(|argument| argument.trim() != NO_ROOT)
            .cloned()
            .collect();
        let known = "--ssh-key-file-path=/PATH, --ssh-private-key=KEY, --ssh-public-key=KEY, --ssh-port=PORT, --no-root";
        arguments("ssh", &given, known, |name, value| {
            let text = Some(value.to_owned());
            match name {
                "ssh-key-file-path" => {
                    ssh.path = text;
                    // A path with a colon is refused in a pod.
                    return value.starts_with('/') && !value.contains(':');
                }
                "ssh-private-key" => ssh.private_key = text,
                "ssh-public-key" => ssh.public_key = text,
                "ssh-port" => return port(value, &mut ssh.port),
                _ => return false,
            }
            true
        })?;
        if ssh.private_key.is_some() != ssh.public_key.is_some() {
            return Err(Unrunnable::HalfPair);
        }
        Ok(ssh)
    }

    /// Whether the Secret can hold the files.
    pub(super) fn check(&self, plan: &ParsedVolcanoJob<'_>) -> Result<(), Unrunnable> {
        let data = self.data(plan, true);
        let bytes: usize = data.values().map(|file| file.0.len()).sum();
        if bytes > SECRET_BYTES_MAX {
            return Err(Unrunnable::TooLong {
                plugin: "ssh",
                what: "the Secret with keys and host names",
                bytes,
                most: SECRET_BYTES_MAX,
            });
        }
        Ok(())
    }

    /// Where the files are. `shared`: pods share their node's address.
    pub(crate) fn path(&self, shared: bool) -> &str {
        let default = if shared { SHARED_PATH } else { ssh::OF_ROOT };
        self.path.as_deref().unwrap_or(default)
    }

    /// The volume with the files; it has the Secret's name.
    pub(crate) fn volume(plan: &ParsedVolcanoJob<'_>) -> Volume {
        let files = [PRIVATE_KEY, PUBLIC_KEY, AUTHORIZED_KEYS, CONFIG];
        let name = name(plan);
        ssh::volume(&name, &name, &files.map(|file| (file, file)))
    }

    /// The Secret with the files.
    pub(super) fn keys(&self, plan: &ParsedVolcanoJob<'_>, shared: bool) -> SshKeys {
        SshKeys {
            secret: Secret {
                metadata: metadata(plan, &name(plan)),
                data: Some(self.data(plan, shared)),
                ..Secret::default()
            },
            private: PRIVATE_KEY,
            public: &[PUBLIC_KEY, AUTHORIZED_KEYS],
        }
    }

    /// The files that are known: the configuration, and the pair of keys if the user gave one.
    fn data(&self, plan: &ParsedVolcanoJob<'_>, shared: bool) -> BTreeMap<String, ByteString> {
        let pair = self.private_key.as_ref().zip(self.public_key.as_ref());
        let pair = pair.map(|(private, public)| {
            // OpenSSH reads no private key whose last line does not end.
            let private = format!("{}\n", private.trim_end());
            [
                (PRIVATE_KEY, private),
                (PUBLIC_KEY, public.clone()),
                (AUTHORIZED_KEYS, public.clone()),
            ]
        });
        let files = pair.into_iter().flatten();
        files
            .chain([(CONFIG, self.config(plan, shared))])
            .map(|(file, text)| (file.to_owned(), ByteString(text.into_bytes())))
            .collect()
    }

    /// The configuration: no questions about hosts that were never seen, and each pod's names and port.
    fn config(&self, plan: &ParsedVolcanoJob<'_>, shared: bool) -> String {
        let path = self.path(shared).trim_end_matches('/');
        let port = self.port.unwrap_or(PORT);
        let hosts = plan.tasks.iter().flat_map(|task| {
            (0..task.replicas).map(move |index| {
                let (short, long) = (plan.pod_name(task, index), host(plan, task, index));
                format!("Host {short} {long}\n  HostName {long}\n  Port {port}\n")
            })
        });
        let hosts: String = hosts.collect();
        format!(
            "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nIdentityFile {path}/{PRIVATE_KEY}\n{hosts}"
        )
    }
}

/// The Secret's name.
fn name(plan: &ParsedVolcanoJob<'_>) -> String {
    format!("{}-ssh", plan.name())
}
