//! `resolv.conf`: what the host's says, and the text of a pod's. Pure.

use std::net::{IpAddr, Ipv4Addr};

use resources::services::CLUSTER_DOMAIN;

/// The file of the host.
pub const HOST_FILE: &str = "/etc/resolv.conf";
/// Kubernetes' `ndots` of pods that use the cluster's DNS.
const NDOTS: &str = "ndots:5";
/// The most resolvers that the C library reads.
const RESOLVERS_MAX: usize = 3;
/// The most search domains of a pod, and their characters, as Kubernetes bounds them.
const SEARCH_MAX: usize = 32;
const SEARCH_CHARACTERS_MAX: usize = 2048;

/// A `resolv.conf`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvConf {
    /// The resolvers, as addresses.
    pub nameservers: Vec<String>,
    /// The domains in which a name is looked up.
    pub search: Vec<String>,
    /// The options.
    pub options: Vec<String>,
}

impl ResolvConf {
    /// Reads a text; what is not known is left out. Of several `search` lines the last one counts.
    #[must_use]
    pub fn parse(text: &str) -> ResolvConf {
        let mut read = ResolvConf::default();
        for line in text.lines() {
            let line = line.split(['#', ';']).next().unwrap_or_default();
            let mut words = line.split_whitespace().map(str::to_owned);
            match words.next().as_deref() {
                Some("nameserver") => read.nameservers.extend(words.next()),
                Some("search" | "domain") => read.search = words.collect(),
                Some("options") => read.options.extend(words),
                _ => {}
            }
        }
        read
    }

    /// The resolvers to ask, without the cluster's own one.
    #[must_use]
    pub fn resolvers(&self, own: Ipv4Addr) -> Vec<IpAddr> {
        let all = self.nameservers.iter().filter_map(|text| text.parse().ok());
        all.filter(|address| *address != IpAddr::from(own))
            .take(RESOLVERS_MAX)
            .collect()
    }

    /// That of pods that use the cluster's DNS (`dnsPolicy: ClusterFirst`): the cluster's domains before the host's.
    #[must_use]
    pub fn of_cluster(dns: Ipv4Addr, namespace: &str, host: &ResolvConf) -> ResolvConf {
        let mut search = vec![
            format!("{namespace}.svc.{CLUSTER_DOMAIN}"),
            format!("svc.{CLUSTER_DOMAIN}"),
            CLUSTER_DOMAIN.to_owned(),
        ];
        search.extend(host.search.iter().cloned());
        ResolvConf {
            nameservers: vec![dns.to_string()],
            search,
            options: vec![NDOTS.to_owned()],
        }
    }

    /// Adds a pod's `dnsConfig`: options of the same name are replaced, as the kubelet does.
    pub fn add(&mut self, more: ResolvConf) {
        self.nameservers.extend(more.nameservers);
        self.search.extend(more.search);
        let name = |option: &str| option.split(':').next().unwrap_or_default().to_owned();
        for option in more.options {
            self.options.retain(|other| name(other) != name(&option));
            self.options.push(option);
        }
    }

    /// The text. Words with white space, which could make other lines, are left out, as are resolvers and domains
    /// beyond what the C library and Kubernetes take.
    #[must_use]
    pub fn text(&self) -> String {
        let clean = |words: &[String]| -> Vec<String> {
            let mut all: Vec<String> = Vec::new();
            for word in words {
                let fine = !word.is_empty() && !word.contains(|c: char| c.is_whitespace());
                if fine && !all.contains(word) {
                    all.push(word.clone());
                }
            }
            all
        };
        let mut out = String::new();
        for server in clean(&self.nameservers).iter().take(RESOLVERS_MAX) {
            out.push_str(&format!("nameserver {server}\n"));
        }
        let mut search = clean(&self.search);
        search.truncate(SEARCH_MAX);
        while search.join(" ").len() > SEARCH_CHARACTERS_MAX {
            search.pop();
        }
        for (word, values) in [("search", search), ("options", clean(&self.options))] {
            if !values.is_empty() {
                out.push_str(&format!("{word} {}\n", values.join(" ")));
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DNS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);

    fn host() -> ResolvConf {
        ResolvConf::parse(
            "# written by a test\nnameserver 192.0.2.53 # first\nnameserver 10.96.0.10\nnameserver fe80::1\n\
             domain old.example\nsearch example.org lab.example\noptions edns0 ndots:2\n",
        )
    }

    #[test]
    fn the_hosts_resolvers_are_asked_but_not_oneself() {
        let expected: [IpAddr; 2] = ["192.0.2.53".parse().unwrap(), "fe80::1".parse().unwrap()];
        assert_eq!(host().resolvers(DNS), expected);
        assert_eq!(host().search, ["example.org", "lab.example"]);
    }

    #[test]
    fn a_pods_file_has_the_clusters_domains_first() {
        let mut conf = ResolvConf::of_cluster(DNS, "team", &host());
        assert_eq!(
            conf.text(),
            "nameserver 10.96.0.10\n\
             search team.svc.cluster.local svc.cluster.local cluster.local example.org lab.example\n\
             options ndots:5\n"
        );
        conf.add(ResolvConf {
            nameservers: vec![
                "192.0.2.1".to_owned(),
                "192.0.2.1\nnameserver 6.6.6.6".to_owned(),
            ],
            search: vec!["cluster.local".to_owned(), "more.example".to_owned()],
            options: vec!["ndots:1".to_owned(), "rotate".to_owned()],
        });
        assert_eq!(
            conf.text(),
            "nameserver 10.96.0.10\nnameserver 192.0.2.1\n\
             search team.svc.cluster.local svc.cluster.local cluster.local example.org lab.example more.example\n\
             options ndots:1 rotate\n"
        );
    }

    #[test]
    fn the_search_list_is_bounded() {
        let long = format!("{}.example", "x".repeat(60));
        let search = (0..40).map(|number| format!("n{number}.{long}")).collect();
        let conf = ResolvConf {
            search,
            ..ResolvConf::default()
        };
        let text = conf.text();
        assert!(
            text.split(' ').count() <= SEARCH_MAX + 1 && text.len() < 2100,
            "{text}"
        );
    }
}
