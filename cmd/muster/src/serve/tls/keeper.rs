//! Keeps the configured certificate current, and takes another source for it at SIGHUP, where the configuration names
//! one.

use std::sync::Arc;

use anyhow::Result;

use super::reload::{Hangup, Reload};
use super::served::ServedCertificates;
use super::source::{self, ConfiguredCertificate};
use crate::arguments::{TlsOptions, TlsSource};
use crate::serve::certificate::ServerNames;
use crate::serve::layout::FileLayout;

/// Reads the options of the certificate as a start would take them now.
pub type ReadTlsOptions = fn() -> Result<TlsOptions>;

/// Keeps the configured certificate current.
pub struct CertificateKeeper {
    source: TlsSource,
    configured: ConfiguredCertificate,
    hangup: Hangup,
    layout: FileLayout,
    served: Arc<ServedCertificates>,
    read_options: ReadTlsOptions,
}

impl CertificateKeeper {
    /// Serves the certificate that the source has now.
    ///
    /// # Errors
    /// Files are unusable, or SIGHUP cannot be handled.
    pub fn start(
        source: TlsSource,
        layout: &FileLayout,
        served: Arc<ServedCertificates>,
        names: &ServerNames,
        read_options: ReadTlsOptions,
    ) -> Result<CertificateKeeper> {
        let configured = ConfiguredCertificate::start(source.clone(), layout, &served, names)?;
        Ok(CertificateKeeper {
            source,
            configured,
            hangup: Hangup::listen()?,
            layout: layout.clone(),
            served,
            read_options,
        })
    }

    /// Keeps it for as long as the future is polled.
    pub async fn keep(self, names: impl Fn() -> ServerNames + Send + Sync) {
        let CertificateKeeper {
            mut source,
            mut configured,
            mut hangup,
            layout,
            served,
            read_options,
        } = self;
        loop {
            let reload = Reload::default();
            let keeping = configured.keep(&served, reload.clone(), &names);
            tokio::pin!(keeping);
            let (next_source, next) = loop {
                tokio::select! {
                    // It never ends: whichever source it is, there may be a certificate to renew.
                    () = &mut keeping => return,
                    () = hangup.received() => {}
                }
                let found = match read_options().and_then(|options| Ok(options.source()?)) {
                    Ok(found) => found,
                    Err(error) => {
                        source::refused(&format!("{error:#}"));
                        continue;
                    }
                };
                if found == source {
                    reload.request();
                    continue;
                }
                match ConfiguredCertificate::start(found.clone(), &layout, &served, &names()) {
                    Ok(started) => break (found, started),
                    Err(error) => source::refused(&format!("{error:#}")),
                }
            };
            tracing::info!(
                before = source.name(),
                now = next_source.name(),
                "SIGHUP: the certificate for browsers and clients has another source; new connections get its certificate"
            );
            source = next_source;
            configured = next;
        }
    }
}
