//! Keeps the configured certificate current: it reads files again when they change, issues a certificate by an own CA
//! again in time, or leaves that to ACME.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use fleet::CertificateAuthority;
use jiff::{SignedDuration, Timestamp};

use super::acme::Acme;
use super::pair::{self, CertificatePair, PairText, Purpose};
use super::reload::Reload;
use super::served::ServedCertificates;
use crate::arguments::{KeyFiles, TlsOptions, TlsSource};
use crate::serve::certificate::ServerNames;
use crate::serve::layout::FileLayout;

/// Interval at which files are read again.
const LOOK: Duration = Duration::from_secs(30);

/// A certificate from files that expires within this time is named in the log, once a day.
const WARN_BEFORE: SignedDuration = SignedDuration::from_hours(14 * 24);

/// Interval of that warning.
const WARN_EVERY: SignedDuration = SignedDuration::from_hours(24);

/// The source of the configured certificate, with what it gave at the start.
pub enum ConfiguredCertificate {
    /// None is configured.
    Own,
    /// Files with the certificate.
    Files(WatchedFiles),
    /// Files of a CA that issues it.
    Authority(WatchedFiles),
    /// An ACME server.
    Acme(Acme),
}

/// Files, and their contents when they were last read.
pub struct WatchedFiles {
    files: KeyFiles,
    text: Option<PairText>,
}

/// Checks options and the files that they name as a start does.
///
/// # Errors
/// Options do not fit together, or a file is unusable.
pub fn checked(options: &TlsOptions) -> Result<()> {
    check(&options.source()?)
}

/// Checks the files of a source as a start does.
///
/// # Errors
/// A file is unusable; the error names option, value and what to do.
pub fn check(source: &TlsSource) -> Result<()> {
    let (files, purpose) = match source {
        TlsSource::Own => return Ok(()),
        TlsSource::Files(files) => (files, Purpose::Server),
        TlsSource::Authority(files) => (files, Purpose::Authority),
        TlsSource::Acme(settings) => return super::acme::check(settings),
    };
    let text = pair::read(files)?;
    CertificatePair::of(&text, files, purpose, Timestamp::now())?;
    Ok(())
}

impl ConfiguredCertificate {
    /// Prepares a source and serves the certificate that it has now.
    ///
    /// # Errors
    /// Files are unusable.
    pub fn start(
        source: TlsSource,
        layout: &FileLayout,
        served: &ServedCertificates,
        names: &ServerNames,
    ) -> Result<ConfiguredCertificate> {
        Ok(match source {
            TlsSource::Own => {
                served.forget_configured();
                ConfiguredCertificate::Own
            }
            TlsSource::Files(files) => {
                let text = pair::read(&files)?;
                served.configure(Arc::new(from_files(&text, &files)?));
                ConfiguredCertificate::Files(WatchedFiles {
                    files,
                    text: Some(text),
                })
            }
            TlsSource::Authority(files) => {
                let text = pair::read(&files)?;
                served.configure(Arc::new(from_authority(&text, &files, names)?));
                ConfiguredCertificate::Authority(WatchedFiles {
                    files,
                    text: Some(text),
                })
            }
            TlsSource::Acme(settings) => {
                ConfiguredCertificate::Acme(Acme::start(settings, layout, served)?)
            }
        })
    }

    /// Keeps the served certificate current for as long as the future is polled.
    pub async fn keep(
        self,
        served: &ServedCertificates,
        reload: Reload,
        names: impl Fn() -> ServerNames + Send,
    ) {
        match self {
            // A reload has nothing to read, and must not end the process.
            ConfiguredCertificate::Own => loop {
                reload.requested().await;
                tracing::info!(
                    "SIGHUP: no certificate is configured; there is nothing to read again"
                );
            },
            ConfiguredCertificate::Files(watched) => {
                let make = |text: &PairText, files: &KeyFiles| Ok(from_files(text, files)?);
                watched.keep(served, reload, make, |_| false).await;
            }
            ConfiguredCertificate::Authority(watched) => {
                let make =
                    |text: &PairText, files: &KeyFiles| from_authority(text, files, &names());
                let due = |pair: &CertificatePair| pair.renewal() <= Timestamp::now().as_second();
                watched.keep(served, reload, make, due).await;
            }
            ConfiguredCertificate::Acme(acme) => acme.keep(served, reload).await,
        }
    }
}

impl WatchedFiles {
    /// Reads the files again at each interval and request. If they changed, or the certificate is due, serves what `make`
    /// makes of them; if that fails, the certificate in use stays.
    async fn keep(
        mut self,
        served: &ServedCertificates,
        reload: Reload,
        make: impl Fn(&PairText, &KeyFiles) -> Result<CertificatePair>,
        due: impl Fn(&CertificatePair) -> bool,
    ) {
        let mut warned = Timestamp::MIN;
        loop {
            let requested = tokio::select! {
                () = reload.requested() => true,
                () = tokio::time::sleep(LOOK) => false,
            };
            let in_use = served.configured();
            let text = match pair::read(&self.files) {
                Ok(text) => text,
                Err(error) => {
                    // Reported once for each change, so that a missing file does not fill the log.
                    if requested || self.text.take().is_some() {
                        refused(&error.to_string());
                    }
                    continue;
                }
            };
            let changed = self.text.as_ref() != Some(&text);
            if requested || changed || in_use.as_deref().is_some_and(&due) {
                match make(&text, &self.files) {
                    Ok(pair) => {
                        tracing::info!(
                            names = pair.names.join(","),
                            not_after = %pair.not_after,
                            "the configured certificate was read; new connections get it"
                        );
                        served.configure(Arc::new(pair));
                    }
                    Err(error) => refused(&format!("{error:#}")),
                }
                self.text = Some(text);
            }
            let now = Timestamp::now();
            let ends = served.configured().map(|pair| pair.not_after);
            if let Some(ends) = ends
                && now.duration_until(ends) < WARN_BEFORE
                && warned.duration_until(now) >= WARN_EVERY
            {
                warned = now;
                tracing::warn!(not_after = %ends, "the configured certificate expires soon; renew it, and replace its files");
            }
        }
    }
}

/// Reports that what is configured now is not served.
pub(super) fn refused(error: &str) {
    tracing::error!(
        error,
        "the configured certificate was refused; the one in use stays"
    );
}

fn from_files(text: &PairText, files: &KeyFiles) -> Result<CertificatePair, pair::PairError> {
    CertificatePair::of(text, files, Purpose::Server, Timestamp::now())
}

/// A certificate for these names by the CA in the files.
fn from_authority(
    text: &PairText,
    files: &KeyFiles,
    names: &ServerNames,
) -> Result<CertificatePair> {
    CertificatePair::of(text, files, Purpose::Authority, Timestamp::now())?;
    let named = || format!("--{} = {}", files.key_option, files.key.display());
    let authority =
        CertificateAuthority::from_pem(text.chain.clone(), &text.key).with_context(named)?;
    let issued = authority
        .issue_server(&names.dns, &names.addresses)
        .with_context(named)?;
    let text = PairText {
        chain: issued.chain_pem,
        key: issued.key_pem,
    };
    Ok(CertificatePair::of(
        &text,
        files,
        Purpose::Server,
        Timestamp::now(),
    )?)
}
