//! The settings of the certificate for browsers and clients.

use anyhow::Result;
use toml::Value;

use super::ask;
use super::settings::{Key, of_list, of_text};
use crate::arguments::TlsOptions;

/// The settings that these options give; none if no source is chosen.
pub fn settings(options: &TlsOptions) -> Vec<(Key, Value)> {
    let files = [
        ("tls-cert", &options.tls_cert),
        ("tls-key", &options.tls_key),
        ("tls-ca-cert", &options.tls_ca_cert),
        ("tls-ca-key", &options.tls_ca_key),
        ("acme-root", &options.acme_root),
    ];
    let files = files.into_iter().filter_map(|(name, path)| {
        let path = path.as_ref()?;
        // The service has another working directory.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        Some((key(name), of_text(&path.display().to_string())))
    });
    let mut all: Vec<(Key, Value)> = files.collect();
    if options.acme_domains.is_empty() {
        return all;
    }
    all.push((key("acme-domain"), of_list(&options.acme_domains)));
    all.push((key("acme-directory"), of_text(&options.acme_directory)));
    all.push((
        key("acme-agree-tos"),
        Value::Boolean(options.acme_agree_tos),
    ));
    if !options.acme_contacts.is_empty() {
        all.push((key("acme-contact"), of_list(&options.acme_contacts)));
    }
    if let Some(address) = options.acme_http {
        all.push((key("acme-http"), of_text(&address.to_string())));
    }
    all
}

/// Asks for a certificate's files.
///
/// # Errors
/// The input ended.
pub fn ask(options: &mut TlsOptions) -> Result<()> {
    println!(
        "Browsers and clients get a certificate of Muster's own CA, or one from files, an own CA or ACME."
    );
    let question = "File with a certificate and its chain, in PEM (empty: Muster's own CA; --help has the others)";
    let Some(certificate) = ask::optional(question)? else {
        return Ok(());
    };
    options.tls_cert = Some(certificate.into());
    let key = ask::text("File with its private key, in PEM", None)?;
    options.tls_key = Some(key.into());
    Ok(())
}

fn key(name: &'static str) -> Key {
    Key {
        section: "server",
        name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_given_option_is_a_setting_of_the_server() {
        assert!(settings(&TlsOptions::default()).is_empty());
        let names = |options: &TlsOptions| -> Vec<String> {
            let all = settings(options).into_iter();
            all.map(|(key, value)| format!("{key} = {value}")).collect()
        };
        let files = TlsOptions {
            tls_cert: Some("/c.pem".into()),
            tls_key: Some("/k.pem".into()),
            ..TlsOptions::default()
        };
        let wanted = [
            "server.tls-cert = \"/c.pem\"",
            "server.tls-key = \"/k.pem\"",
        ];
        assert_eq!(names(&files), wanted);
        let acme = TlsOptions {
            acme_domains: vec!["a.example".to_owned()],
            acme_directory: "https://a/dir".to_owned(),
            acme_agree_tos: true,
            ..TlsOptions::default()
        };
        let wanted = [
            "server.acme-domain = [\"a.example\"]",
            "server.acme-directory = \"https://a/dir\"",
            "server.acme-agree-tos = true",
        ];
        assert_eq!(names(&acme), wanted);
    }
}
