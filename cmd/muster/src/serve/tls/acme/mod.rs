//! A certificate from an ACME server (RFC 8555): got at the start unless a good one is kept, and again at two thirds of
//! its life. After a failure the next attempt follows after a minute, then after twice the pause each time, up to six
//! hours.
//!
//! The account's key and the certificate with its key are in `server/acme` of the data directory, readable by the
//! server's user only.

mod challenge;
mod http_challenge;
mod order;
mod transport;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use instant_acme::HttpClient;
use jiff::Timestamp;
use supervisor::contained;

pub use challenge::Challenges;

use super::pair::{CertificatePair, PairText, Purpose};
use super::reload::Reload;
use super::served::ServedCertificates;
use crate::arguments::{AcmeSettings, KeyFiles};
use crate::serve::layout::{FileLayout, write_private};

/// The pause after the first failure.
const FIRST_PAUSE: Duration = Duration::from_secs(60);

/// The longest pause after a failure.
const LONGEST_PAUSE: Duration = Duration::from_secs(6 * 3600);

/// The longest sleep until a renewal, because the clock may be set and the machine may be suspended.
const LOOK: Duration = Duration::from_secs(600);

/// Certificates from an ACME server.
pub struct Acme {
    settings: AcmeSettings,
    directory: PathBuf,
    /// When the ACME server's certificate is to be renewed, in seconds since 1970; none before the first one. Another
    /// source's certificate may be served until then.
    renewal: Option<i64>,
}

/// Checks what a start needs.
///
/// # Errors
/// The CA certificates that verify the ACME server are unusable.
pub fn check(settings: &AcmeSettings) -> Result<()> {
    transport::client(settings.root.as_deref()).map(drop)
}

impl Acme {
    /// Serves the certificate of an earlier start, if there is one for the same names.
    ///
    /// # Errors
    /// The directory cannot be made, or the CA certificates that verify the ACME server are unusable.
    pub fn start(
        settings: AcmeSettings,
        layout: &FileLayout,
        served: &ServedCertificates,
    ) -> Result<Acme> {
        check(&settings)?;
        let directory = layout.acme();
        std::fs::create_dir_all(&directory)
            .with_context(|| format!("{} cannot be created", directory.display()))?;
        let mut acme = Acme {
            settings,
            directory,
            renewal: None,
        };
        match acme.kept() {
            Ok(Some(pair)) => {
                acme.renewal = Some(pair.renewal());
                served.configure(Arc::new(pair));
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "the kept certificate of the ACME server is not usable; a new one is requested"
                );
            }
        }
        Ok(acme)
    }

    /// Gets certificates in time for as long as the future is polled.
    pub async fn keep(mut self, served: &ServedCertificates, reload: Reload) {
        let mut failures = 0;
        loop {
            let left = self
                .renewal
                .map_or(0, |renewal| renewal - Timestamp::now().as_second());
            let left = Duration::from_secs(u64::try_from(left).unwrap_or_default());
            if !left.is_zero() {
                tokio::select! {
                    () = tokio::time::sleep(left.min(LOOK)) => continue,
                    () = reload.requested() => {
                        tracing::info!("SIGHUP: the certificate of the ACME server is not due for renewal");
                        continue;
                    }
                }
            }
            let client = transport::client(self.settings.root.as_deref());
            let renewed = match client {
                Ok(client) => self.attempt(&served.challenges, client).await,
                Err(error) => Err(error),
            };
            match renewed {
                Ok(pair) => {
                    failures = 0;
                    self.renewal = Some(pair.renewal());
                    tracing::info!(
                        names = pair.names.join(","),
                        not_after = %pair.not_after,
                        "the ACME server issued a certificate; new connections get it"
                    );
                    served.configure(Arc::new(pair));
                }
                Err(error) => {
                    failures += 1;
                    let next = pause(failures);
                    tracing::error!(
                        error = format!("{error:#}"),
                        names = self.settings.domains.join(","),
                        next_attempt_seconds = next.as_secs(),
                        "the ACME server issued no certificate; the one in use stays (SIGHUP: try now)"
                    );
                    tokio::select! {
                        () = tokio::time::sleep(next) => {}
                        () = reload.requested() => {}
                    }
                }
            }
        }
    }

    /// One attempt. The library panics over some answers, such as a directory whose `newNonce` is no URL; that costs the
    /// attempt and not the server.
    async fn attempt(
        &self,
        challenges: &Challenges,
        client: Box<dyn HttpClient>,
    ) -> Result<CertificatePair> {
        let attempt = contained(self.renewed(challenges, client)).await;
        attempt.unwrap_or_else(|panic| {
            Err(anyhow!(
                "--acme-directory = {:?}: an answer of the ACME server made the server panic: {panic}; check the URL",
                self.settings.directory
            ))
        })
    }

    async fn renewed(
        &self,
        challenges: &Challenges,
        client: Box<dyn HttpClient>,
    ) -> Result<CertificatePair> {
        let file = self.directory.join("account.json");
        let account = order::account(&self.settings, &file, client).await?;
        let text = order::certificate(&account, &self.settings, challenges).await?;
        let pair = self.pair(&text)?;
        // Key and chain in one file: after an interrupted write the former pair is intact.
        write_private(&self.file(), &format!("{}{}", text.key, text.chain))?;
        Ok(pair)
    }

    /// The certificate of an earlier start; none if there is none, or for other names.
    fn kept(&self) -> Result<Option<CertificatePair>> {
        let both = match std::fs::read_to_string(self.file()) {
            Ok(both) => both,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).context(self.file().display().to_string()),
        };
        let pair = self.pair(&PairText {
            chain: both.clone(),
            key: both,
        })?;
        let mut names = pair.names.clone();
        names.sort();
        Ok(Some(pair).filter(|_| names == self.settings.domains))
    }

    fn pair(&self, text: &PairText) -> Result<CertificatePair> {
        let files = KeyFiles {
            certificate_option: "acme-domain",
            certificate: self.file(),
            key_option: "acme-domain",
            key: self.file(),
        };
        let pair = CertificatePair::of(text, &files, Purpose::Server, Timestamp::now())?;
        Ok(pair)
    }

    fn file(&self) -> PathBuf {
        self.directory.join("certificate.pem")
    }
}

/// The pause after so many failures in a row.
fn pause(failures: u32) -> Duration {
    let doubled = FIRST_PAUSE.saturating_mul(2u32.saturating_pow(failures.saturating_sub(1)));
    doubled.min(LONGEST_PAUSE)
}

#[cfg(test)]
mod fuzz_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_up_to_six_hours() {
        let seconds: Vec<u64> = (1..=11).map(|failures| pause(failures).as_secs()).collect();
        assert_eq!(seconds[..3], [60, 120, 240]);
        assert_eq!(seconds[8..], [15_360, 21_600, 21_600]);
        assert_eq!(pause(u32::MAX), LONGEST_PAUSE);
    }
}
