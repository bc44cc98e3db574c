//! Receives an offered binary through the session, one part at a time, so that the parts never fill
//! the connection; verifies its digest and that it runs here, writes it durably, and puts it on trial.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rpc::agent::v1::{AgentMessage, BinaryAsk, BinaryChunk, BinaryVerdict, OfferBinary};
use rpc::{BINARY_CHUNK_BYTES, BINARY_MAX_BYTES};
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::digest::{digest, hexadecimal};
use super::{BinaryUpgrade, NAME, UpgradeError};
use crate::disk::private_dir;

/// The length of a digest in hexadecimal.
const DIGEST_LENGTH: usize = 64;
/// The limits on the time that a binary on trial may take to get a session, in seconds.
const SESSION_SECONDS: std::ops::RangeInclusive<u32> = 10..=600;
/// How long a part may take to arrive, in seconds.
const PART_SECONDS: u64 = 60;
/// The bytes that must stay free beside the binary.
const RESERVE_BYTES: u64 = 256 << 20;
/// How long a binary may take to print its version.
const VERSION_LIMIT: Duration = Duration::from_secs(30);
/// How its output begins.
const VERSION_BEGIN: &[u8] = b"muster ";
/// Between the verdict and the end of the session, so that the verdict arrives. The server does not
/// depend on it.
const VERDICT_LEAD: Duration = Duration::from_millis(500);

/// The binary that a session is receiving, if there is one.
pub(crate) struct Incoming {
    upgrade: Arc<BinaryUpgrade>,
    outbound: mpsc::Sender<AgentMessage>,
    current: Mutex<Option<Receiving>>,
}

struct Receiving {
    id: u64,
    parts: mpsc::Sender<BinaryChunk>,
    task: AbortHandle,
}

impl Incoming {
    /// Of a session that sends by `outbound`.
    pub(crate) fn new(
        upgrade: Arc<BinaryUpgrade>,
        outbound: mpsc::Sender<AgentMessage>,
    ) -> Incoming {
        Incoming {
            upgrade,
            outbound,
            current: Mutex::default(),
        }
    }

    /// The server has accepted the session.
    pub(crate) fn begun(&self) {
        self.upgrade.has_session();
    }

    /// The server offers a binary; another offer ends the one before.
    pub(crate) fn offered(&self, offer: OfferBinary) {
        let (parts, arriving) = mpsc::channel(1);
        let (upgrade, outbound) = (self.upgrade.clone(), self.outbound.clone());
        let id = offer.id;
        let task = tokio::spawn(async move {
            let fetched = fetch(&upgrade, &outbound, &offer, arriving).await;
            let refusal = fetched.err().map(|error| error.to_string());
            if let Some(detail) = &refusal {
                tracing::warn!(
                    sha256 = offer.sha256,
                    detail,
                    "the agent does not start the offered binary"
                );
            }
            let verdict = BinaryVerdict {
                id,
                accepted: refusal.is_none(),
                detail: refusal.unwrap_or_default(),
            };
            let accepted = verdict.accepted;
            if outbound.send(verdict.into()).await.is_err() || !accepted {
                return;
            }
            tokio::time::sleep(VERDICT_LEAD).await;
            if let Err(error) = upgrade.change_to(&offer.sha256, offer.session_seconds) {
                let detail = error.to_string();
                tracing::error!(detail, "the agent can't change to the received binary");
            }
        });
        let receiving = Receiving {
            id,
            parts,
            task: task.abort_handle(),
        };
        if let Some(before) = self.current.lock().replace(receiving) {
            before.task.abort();
        }
    }

    /// A part arrives. One that was not asked for is dropped.
    pub(crate) fn part(&self, chunk: BinaryChunk) {
        if let Some(receiving) = &*self.current.lock()
            && receiving.id == chunk.id
        {
            // Full: more parts than were asked for.
            let _ = receiving.parts.try_send(chunk);
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Some(receiving) = self.current.lock().take() {
            receiving.task.abort();
        }
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> UpgradeError {
    let path = path.to_owned();
    move |source| UpgradeError::File { path, source }
}

async fn blocking<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, UpgradeError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(io::Error::other)
        .and_then(|done| done)
        .map_err(at(path))
}

fn check(offer: &OfferBinary) -> Result<(), UpgradeError> {
    let hexadecimal = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if offer.sha256.len() != DIGEST_LENGTH || !offer.sha256.bytes().all(hexadecimal) {
        return Err(UpgradeError::Offer("digest"));
    }
    if !(1..=BINARY_MAX_BYTES).contains(&offer.bytes) {
        return Err(UpgradeError::Offer("size"));
    }
    if !SESSION_SECONDS.contains(&offer.session_seconds) {
        return Err(UpgradeError::Offer("time limit"));
    }
    Ok(())
}

/// Has the offered binary on disk, verified, when this returns.
async fn fetch(
    upgrade: &BinaryUpgrade,
    outbound: &mpsc::Sender<AgentMessage>,
    offer: &OfferBinary,
    mut arriving: mpsc::Receiver<BinaryChunk>,
) -> Result<(), UpgradeError> {
    if !upgrade.refusal.is_empty() {
        return Err(UpgradeError::Refused(upgrade.refusal.clone()));
    }
    check(offer)?;
    let _receiving = upgrade
        .receiving
        .try_acquire()
        .map_err(|_| UpgradeError::Busy)?;
    let own = upgrade.path.clone();
    let on_disk = blocking(&upgrade.path, move || digest(&own)).await;
    if on_disk.ok().as_ref() != Some(&upgrade.sha256) {
        return Err(UpgradeError::Replaced(upgrade.path.clone()));
    }
    private_dir(&upgrade.directory)?;
    let directory = upgrade.directory.join(&offer.sha256);
    let binary = directory.join(NAME);
    let earlier = binary.clone();
    let there = blocking(&binary, move || digest(&earlier)).await;
    if there.ok().as_ref() != Some(&offer.sha256) {
        private_dir(&directory)?;
        let space = durable::disk_space(&directory).map_err(at(&directory))?;
        let needed = offer.bytes.saturating_add(RESERVE_BYTES);
        if space.available < needed {
            return Err(UpgradeError::NoSpace {
                path: directory,
                free: space.available,
                needed,
            });
        }
        let partial = directory.join("partial");
        receive(outbound, offer, &mut arriving, &partial).await?;
        let (from, to, above) = (partial, binary.clone(), upgrade.directory.clone());
        blocking(&binary, move || {
            durable::publish(&from, &to)?;
            durable::sync_directory(&above)?;
            Ok(())
        })
        .await?;
    }
    runs_here(&binary).await
}

/// Writes the parts to a file and verifies the whole.
async fn receive(
    outbound: &mpsc::Sender<AgentMessage>,
    offer: &OfferBinary,
    arriving: &mut mpsc::Receiver<BinaryChunk>,
    path: &Path,
) -> Result<(), UpgradeError> {
    let created: PathBuf = path.to_owned();
    let mut file = blocking(path, move || create(&created)).await?;
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    let mut offset = 0;
    while offset < offer.bytes {
        let ask = BinaryAsk {
            id: offer.id,
            offset,
        };
        outbound
            .send(ask.into())
            .await
            .map_err(|_| UpgradeError::Ended)?;
        let limit = Duration::from_secs(PART_SECONDS);
        let part = tokio::time::timeout(limit, arriving.recv()).await;
        let part = part
            .map_err(|_| UpgradeError::Silent(PART_SECONDS))?
            .ok_or(UpgradeError::Ended)?;
        let length = part.data.len() as u64;
        let fits = part.offset == offset
            && (1..=BINARY_CHUNK_BYTES as u64).contains(&length)
            && length <= offer.bytes - offset;
        if !fits {
            return Err(UpgradeError::WrongPart);
        }
        context.update(&part.data);
        file = blocking(path, move || {
            file.write_all(&part.data)?;
            Ok(file)
        })
        .await?;
        offset += length;
    }
    let found = hexadecimal(context);
    if found != offer.sha256 {
        return Err(UpgradeError::Digest {
            found,
            offered: offer.sha256.clone(),
        });
    }
    Ok(())
}

fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    let file = options
        .write(true)
        .create_new(true)
        .mode(0o700)
        .open(path)?;
    // Whatever the umask.
    file.set_permissions(fs::Permissions::from_mode(0o700))?;
    Ok(file)
}

/// Checks that a binary starts on this machine, before the agent gives up the one that works.
async fn runs_here(binary: &Path) -> Result<(), UpgradeError> {
    let mut command = Command::new(binary);
    let output = command.arg("--version").kill_on_drop(true).output();
    let refused = |reason: String| Err(UpgradeError::DoesNotStart(reason));
    match tokio::time::timeout(VERSION_LIMIT, output).await {
        Err(_) => refused(format!("no answer within {} s", VERSION_LIMIT.as_secs())),
        Ok(Err(error)) => refused(error.to_string()),
        Ok(Ok(output)) if !output.status.success() => refused(format!(
            "{}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Ok(Ok(output)) if !output.stdout.starts_with(VERSION_BEGIN) => {
            refused("it is not muster".to_owned())
        }
        Ok(Ok(_)) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use rpc::agent::v1::agent_message::Body;

    use super::*;
    use crate::upgrade::Begin;

    const SCRIPT: &str = "#!/bin/sh\necho muster 9.9.9\n";

    fn sha256(content: &[u8]) -> String {
        let mut context = ring::digest::Context::new(&ring::digest::SHA256);
        context.update(content);
        hexadecimal(context)
    }

    fn offer(content: &[u8]) -> OfferBinary {
        OfferBinary {
            id: 1,
            sha256: sha256(content),
            bytes: content.len() as u64,
            session_seconds: 60,
        }
    }

    /// Offers a binary and answers the questions for its parts with `content`, `part` bytes at a time;
    /// returns the verdict.
    async fn offered(
        upgrade: &Arc<BinaryUpgrade>,
        offer: OfferBinary,
        content: &[u8],
        part: usize,
    ) -> BinaryVerdict {
        let (outbound, mut asked) = mpsc::channel(4);
        let incoming = Incoming::new(upgrade.clone(), outbound);
        incoming.offered(offer);
        loop {
            match asked.recv().await.unwrap().body.unwrap() {
                Body::BinaryAsk(BinaryAsk { id, offset }) => {
                    let from = usize::try_from(offset).unwrap();
                    let data = content[from..(from + part).min(content.len())].to_vec();
                    incoming.part(BinaryChunk { id, offset, data });
                }
                Body::BinaryVerdict(verdict) => {
                    if verdict.accepted {
                        upgrade.must_change().await;
                    }
                    return verdict;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn running(data: &Path) -> Arc<BinaryUpgrade> {
        match BinaryUpgrade::begin(data, true).unwrap() {
            Begin::Run(upgrade) => upgrade,
            Begin::HandOver(path) => panic!("handed over to {}", path.display()),
        }
    }

    #[tokio::test]
    async fn a_binary_arrives_in_parts_is_verified_and_is_started_next() {
        let dir = tempfile::tempdir().unwrap();
        let upgrade = running(dir.path());
        let content = SCRIPT.as_bytes();
        let verdict = offered(&upgrade, offer(content), content, 7).await;
        assert!(verdict.accepted, "{}", verdict.detail);
        let next = upgrade.next().unwrap();
        assert_eq!(fs::read(&next).unwrap(), content);
        assert_eq!(
            fs::metadata(&next).unwrap().permissions().mode() & 0o777,
            0o700
        );
        // It is on trial; the binary before finds it in the record and does not hand over.
        let again = running(dir.path());
        let mut hello = rpc::agent::v1::Hello::default();
        again.describe(&mut hello);
        assert_eq!(hello.failed_sha256, sha256(content));
    }

    #[tokio::test]
    async fn what_is_not_as_offered_or_does_not_run_is_refused_and_the_agent_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let good = SCRIPT.as_bytes();
        let other = b"#!/bin/sh\necho somebody 1.0\n";
        let failing = b"#!/bin/sh\necho no library >&2; exit 127\n";
        let changed = |change: fn(&mut OfferBinary)| {
            let mut offer = offer(good);
            change(&mut offer);
            offer
        };
        for (offer, content, part, words) in [
            (
                changed(|o| o.sha256 = "../x".to_owned()),
                good,
                64,
                "digest",
            ),
            (changed(|o| o.bytes = 0), good, 64, "size"),
            (changed(|o| o.bytes = u64::MAX), good, 64, "size"),
            (changed(|o| o.session_seconds = 0), good, 64, "time limit"),
            (changed(|o| o.bytes -= 1), good, 64, "another part"),
            (
                changed(|o| o.sha256 = "0".repeat(64)),
                good,
                64,
                "has the digest",
            ),
            (offer(other), &other[..], 64, "not muster"),
            (offer(failing), &failing[..], 64, "no library"),
        ] {
            let upgrade = running(dir.path());
            let verdict = offered(&upgrade, offer, content, part).await;
            assert!(
                !verdict.accepted && verdict.detail.contains(words),
                "{words}: {verdict:?}"
            );
            assert_eq!(upgrade.next(), None);
        }
        let off = BinaryUpgrade::off("use apt");
        let verdict = offered(&off, offer(good), good, 64).await;
        assert_eq!((verdict.accepted, &*verdict.detail), (false, "use apt"));
    }
}
