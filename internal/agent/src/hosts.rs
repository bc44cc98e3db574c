//! The text of a pod's hosts file. Pure.

use k8s_openapi::api::core::v1::HostAlias;
use rpc::agent::v1::HostsEntry;

/// The file for a pod at `ip` with its own `names`, the names from the server and those in the
/// pod's spec.
pub fn text(ip: &str, names: &[String], entries: &[HostsEntry], aliases: &[HostAlias]) -> String {
    let mut out = String::from(
        "# Kept by the node's agent; changes made here are lost.\n\
         127.0.0.1\tlocalhost\n\
         ::1\tlocalhost ip6-localhost ip6-loopback\n\
         fe00::0\tip6-localnet\n\
         ff00::0\tip6-mcastprefix\n\
         ff02::1\tip6-allnodes\n\
         ff02::2\tip6-allrouters\n",
    );
    let mut line = |ip: &str, names: &[String]| {
        // White space in a name or address would create other lines in the file.
        let clean = |text: &str| {
            !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c == '#')
        };
        let names: Vec<&str> = names
            .iter()
            .map(String::as_str)
            .filter(|n| clean(n))
            .collect();
        if clean(ip) && !names.is_empty() {
            out.push_str(&format!("{ip}\t{}\n", names.join(" ")));
        }
    };
    line(ip, names);
    for entry in entries {
        line(&entry.ip, &entry.names);
    }
    for alias in aliases {
        line(&alias.ip, alias.hostnames.as_deref().unwrap_or_default());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_on_its_own_line_and_nothing_can_add_one() {
        let entries = [HostsEntry {
            ip: "10.0.0.2".to_owned(),
            names: vec![
                "master".to_owned(),
                "master.ns".to_owned(),
                "evil\n1.2.3.4 x".to_owned(),
            ],
        }];
        let aliases = [HostAlias {
            ip: "10.1.1.1".to_owned(),
            hostnames: Some(vec!["db".to_owned()]),
        }];
        let text = text(
            "10.0.0.1",
            &["p".to_owned(), "node".to_owned()],
            &entries,
            &aliases,
        );
        let last: Vec<&str> = text.lines().skip(7).collect();
        assert_eq!(
            last,
            [
                "10.0.0.1\tp node",
                "10.0.0.2\tmaster master.ns",
                "10.1.1.1\tdb"
            ]
        );
    }
}
