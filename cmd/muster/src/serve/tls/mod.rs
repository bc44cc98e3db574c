//! The certificate that browsers and clients get by the server's DNS names: from files, from an own CA, or from an ACME
//! server. It changes while the server runs. Agents, and clients that call the server by an address or another name, get
//! the one of Muster's own CA.
//!
//! [`served`] decides which certificate a handshake gets; [`pair`] reads and checks a certificate with its key;
//! [`source`] keeps the configured one current; [`acme`] gets one from an ACME server; [`keeper`] takes another source at
//! SIGHUP, which [`reload`] receives.

mod acme;
mod keeper;
mod pair;
mod reload;
mod served;
mod source;

pub use keeper::{CertificateKeeper, ReadTlsOptions};
pub use served::ServedCertificates;
pub use source::{check, checked};
