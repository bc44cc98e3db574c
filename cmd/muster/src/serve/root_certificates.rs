//! CA certificates that an option names, by which the server verifies another one.

use std::path::Path;

use anyhow::{Context, Result, bail};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Reads them. Errors name the option and the file.
pub fn root_certificates(option: &str, path: &Path) -> Result<RootCertStore> {
    let named = || {
        format!(
            "{option} = {}: name a file with CA certificates in PEM that the server's user may read",
            path.display()
        )
    };
    let pem = std::fs::read(path).with_context(named)?;
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(&pem) {
        roots.add(root.with_context(named)?).with_context(named)?;
    }
    if roots.is_empty() {
        bail!("{}: the file has no certificate", named());
    }
    Ok(roots)
}
