//! The networks of a node's pods: makes and removes them, and keeps on disk which pod has which address.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};

use nix::unistd::{geteuid, gettid};
use parking_lot::Mutex;
use resources::pod_ranges::{DEFAULT_CLUSTER_RANGE, Ipv4Range};

use crate::address_book::AddressBook;
use crate::commands::{self, ROUTE_PROTOCOL, Veth};
use crate::error::{NetworkError, kernel};
use crate::listing::{self, Link, Route};
use crate::namespace;
use crate::tools::Tools;

/// The name of an abstract socket, of which each network has one: the agent that holds it gives out the addresses.
const CLAIM: &[u8] = b"muster-pod-network";
/// In the directory: the addresses.
const BOOK: &str = "addresses.json";
/// In the directory: the namespaces of the pods, by uid.
const NAMESPACES: &str = "pods";
/// In the directory: the namespace in which the agent tries at its start what pods need.
const TRIAL: &str = "trial";
/// The first port that a process without capabilities may listen on; in the pod's network all ports are the pod's.
const LOW_PORTS: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
/// The kernel forwards packets if this file has a 1.
const FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";

/// One pod's network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodNetwork {
    /// The pod's address.
    pub address: Ipv4Addr,
    /// The file to which its namespace is bound.
    pub namespace: PathBuf,
}

/// The networks of a node's pods. Its calls block.
pub struct PodNetworks {
    directory: PathBuf,
    tools: Tools,
    book: Mutex<Option<AddressBook>>,
    /// One pod's network is made or removed at a time.
    work: Mutex<()>,
    _claim: UnixListener,
}

impl PodNetworks {
    /// True if an earlier agent with this directory gave pods addresses.
    #[must_use]
    pub fn left_in(directory: &Path) -> bool {
        directory.join(BOOK).exists()
    }

    /// Opens the networks of this directory; tries first whether the machine has what pods' networks need.
    ///
    /// # Errors
    ///
    /// When it lacks something, another agent gives out addresses, or the file with the addresses cannot be read.
    pub fn open(directory: &Path) -> Result<PodNetworks, NetworkError> {
        if !geteuid().is_root() {
            return Err(NetworkError::NotRoot);
        }
        let tools = Tools::find()?;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory.join(NAMESPACES))
            .map_err(kernel(format!("make {}", directory.display())))?;
        try_out(&directory.join(TRIAL), &tools)
            .map_err(|why| NetworkError::Unfit(Box::new(why)))?;
        let name = SocketAddr::from_abstract_name(CLAIM).map_err(kernel("name a socket"))?;
        let claim = UnixListener::bind_addr(&name).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => NetworkError::OtherAgent,
            _ => kernel("claim the machine's network")(error),
        })?;
        Ok(PodNetworks {
            book: Mutex::new(read_book(&directory.join(BOOK))?),
            directory: directory.to_owned(),
            tools,
            work: Mutex::new(()),
            _claim: claim,
        })
    }

    /// The network of a pod, if it has one of its own.
    #[must_use]
    pub fn of(&self, uid: &str) -> Option<PodNetwork> {
        let address = self.book.lock().as_ref()?.get(uid)?;
        Some(self.network(uid, address))
    }

    /// The addresses of all pods that have one, by uid.
    #[must_use]
    pub fn addresses(&self) -> BTreeMap<String, Ipv4Addr> {
        let book = self.book.lock();
        book.as_ref()
            .map(AddressBook::addresses)
            .unwrap_or_default()
    }

    /// Whether the network of a pod exists.
    #[must_use]
    pub fn is_made(&self, uid: &str) -> bool {
        let network = self.of(uid);
        network.is_some_and(|network| namespace::exists(&network.namespace))
    }

    fn network(&self, uid: &str, address: Ipv4Addr) -> PodNetwork {
        PodNetwork {
            address,
            namespace: self.directory.join(NAMESPACES).join(uid),
        }
    }

    /// Takes the ranges that the server gave, and the routes to other nodes' pods. Returns the routes that the kernel
    /// refused, each with its reason: those nodes are in no common network segment with this one.
    ///
    /// # Errors
    ///
    /// When the machine has an address of the range already, or its rules cannot be set.
    pub fn set(
        &self,
        range: Ipv4Range,
        cluster: Ipv4Range,
        peers: &BTreeMap<Ipv4Range, Ipv4Addr>,
    ) -> Result<Vec<(Ipv4Range, NetworkError)>, NetworkError> {
        let _work = self.work.lock();
        let links: Vec<Link> = self.tools.list(&["-details", "address"])?;
        if let Some(link) = links.iter().find(|link| link.has_address_of(cluster)) {
            return Err(NetworkError::RangeInUse {
                device: link.ifname.clone(),
                range: cluster.to_string(),
            });
        }
        self.change(|book| match book {
            Some(book) => book.set_ranges(range, cluster),
            None => {
                *book = Some(AddressBook::new(range, cluster));
                true
            }
        })?;
        forward()?;
        self.tools.nft(&commands::rules(cluster))?;
        self.set_routes(peers)
    }

    fn set_routes(
        &self,
        wanted: &BTreeMap<Ipv4Range, Ipv4Addr>,
    ) -> Result<Vec<(Ipv4Range, NetworkError)>, NetworkError> {
        let protocol = ROUTE_PROTOCOL.to_string();
        let routes: Vec<Route> = self
            .tools
            .list(&["-4", "route", "show", "proto", &protocol])?;
        let (set, gone) = commands::route_changes(wanted, &listing::peers(&routes));
        let mut refused = Vec::new();
        for range in gone {
            let range = range.to_string();
            self.tools
                .ip(&["route", "del", &range, "proto", &protocol])?;
        }
        for (range, via) in set {
            let (to, by) = (range.to_string(), via.to_string());
            if let Err(why) = self
                .tools
                .ip(&["route", "replace", &to, "via", &by, "proto", &protocol])
            {
                refused.push((range, why));
            }
        }
        Ok(refused)
    }

    /// The network of a pod; made if it does not exist. `process`: one that is in it already, of a pod that an earlier
    /// agent started, whose mounts may be gone.
    ///
    /// # Errors
    ///
    /// When the node has no range yet or no address is free, or the kernel refuses.
    pub fn attach(&self, uid: &str, process: Option<i32>) -> Result<PodNetwork, NetworkError> {
        let _work = self.work.lock();
        let mut taken = Err(NetworkError::NoRange);
        self.change(|book| {
            let Some(book) = book else { return false };
            let had = book.get(uid).is_some();
            taken = book.take(uid).map_err(NetworkError::from);
            !had && taken.is_ok()
        })?;
        let network = self.network(uid, taken?);
        if namespace::exists(&network.namespace) {
            return Ok(network);
        }
        match process {
            Some(pid) => {
                namespace::remove(&network.namespace)?;
                namespace::bind(pid, &network.namespace)?;
            }
            None => self.make(uid, &network)?,
        }
        Ok(network)
    }

    fn make(&self, uid: &str, network: &PodNetwork) -> Result<(), NetworkError> {
        let gateway = self.book.lock().as_ref().map(AddressBook::gateway);
        let links: Vec<Link> = self.tools.list(&["-details", "address"])?;
        let routes: Vec<Route> = self.tools.list(&["-4", "route", "show", "default"])?;
        let veth = Veth {
            uid,
            address: network.address,
            gateway: gateway.ok_or(NetworkError::NoRange)?,
            mtu: listing::mtu(&links, &routes),
        };
        // What is left of a try that failed, or of a pod before the machine's restart.
        let device = commands::device(network.address);
        if links.iter().any(|link| link.ifname == device) {
            self.tools.ip(&["link", "del", &device])?;
        }
        namespace::remove(&network.namespace)?;
        // This thread, which waits, is in the node's network.
        let here = gettid().as_raw();
        namespace::create(&network.namespace, || {
            self.tools.ip_batch(&veth.inside(here))?;
            set(LOW_PORTS, "0")
        })?;
        self.tools.ip_batch(&veth.outside())?;
        set(&format!("/proc/sys/net/ipv4/conf/{device}/rp_filter"), "1")
    }

    /// Removes the network of a pod, if it has one.
    ///
    /// # Errors
    ///
    /// When the kernel or the disk refuses; its address stays taken then.
    pub fn detach(&self, uid: &str) -> Result<(), NetworkError> {
        let _work = self.work.lock();
        let Some(network) = self.of(uid) else {
            return Ok(());
        };
        let device = commands::device(network.address);
        let links: Vec<Link> = self.tools.list(&["-details", "address"])?;
        if links.iter().any(|link| link.pod() == Some(uid)) {
            self.tools.ip(&["link", "del", &device])?;
        }
        namespace::remove(&network.namespace)?;
        self.change(|book| book.as_mut().is_some_and(|book| book.free(uid).is_some()))
    }

    /// Removes the networks of all pods but these, and restores the node's rules for them. Where the node `gives` no
    /// addresses and no pod has one, it also removes the node's routes and rules. Touches only what an agent made.
    ///
    /// # Errors
    ///
    /// When the kernel or the disk refuses.
    pub fn retain(&self, live: &BTreeSet<String>, gives: bool) -> Result<(), NetworkError> {
        let known = self
            .book
            .lock()
            .as_ref()
            .map(AddressBook::pods)
            .unwrap_or_default();
        for uid in known.difference(live) {
            self.detach(uid)?;
        }
        let _work = self.work.lock();
        let links: Vec<Link> = self.tools.list(&["-details", "address"])?;
        for link in &links {
            if link
                .pod()
                .is_some_and(|uid| !known.contains(uid) || !live.contains(uid))
            {
                self.tools.ip(&["link", "del", &link.ifname])?;
            }
        }
        let directory = self.directory.join(NAMESPACES);
        let found =
            fs::read_dir(&directory).map_err(kernel(format!("read {}", directory.display())))?;
        for entry in found {
            let entry = entry.map_err(kernel(format!("read {}", directory.display())))?;
            let kept = entry
                .file_name()
                .to_str()
                .is_some_and(|uid| known.contains(uid) && live.contains(uid));
            if !kept {
                namespace::remove(&entry.path())?;
            }
        }
        let cluster = self.book.lock().as_ref().map(AddressBook::cluster);
        if let Some(cluster) = cluster {
            // The machine may have been restarted.
            forward()?;
            self.tools.nft(&commands::rules(cluster))?;
        }
        let empty = self
            .book
            .lock()
            .as_ref()
            .is_none_or(|book| book.pods().is_empty());
        if !gives && empty {
            self.set_routes(&BTreeMap::new())?;
            self.tools.nft(&commands::no_rules())?;
            crate::services::clear(&self.tools)?;
            crate::policies::clear(&self.tools)?;
            durable::remove(&self.directory.join(BOOK))?;
            *self.book.lock() = None;
        }
        Ok(())
    }

    /// Changes the addresses, on disk first; `change` says whether it did.
    fn change(
        &self,
        change: impl FnOnce(&mut Option<AddressBook>) -> bool,
    ) -> Result<(), NetworkError> {
        let mut book = self.book.lock();
        let mut next = book.clone();
        if change(&mut next) {
            let text = serde_json::to_vec(&next).map_err(|source| self.damaged(source))?;
            durable::replace(&self.directory.join(BOOK), &text)?;
            *book = next;
        }
        Ok(())
    }

    fn damaged(&self, source: serde_json::Error) -> NetworkError {
        NetworkError::Book {
            path: self.directory.join(BOOK),
            source,
        }
    }
}

/// Makes in a namespace of its own what pods need, and removes it.
fn try_out(file: &Path, tools: &Tools) -> Result<(), NetworkError> {
    namespace::remove(file)?;
    let tried = namespace::create(file, || {
        tools.ip_batch("link set lo up\nlink add trial0 type veth peer name trial1\n")?;
        tools.nft(&commands::rules(DEFAULT_CLUSTER_RANGE))
    });
    tried.and(namespace::remove(file))
}

fn set(file: &str, value: &str) -> Result<(), NetworkError> {
    fs::write(file, value).map_err(kernel(format!("write {value} to {file}")))
}

/// Has the kernel forward packets between devices.
fn forward() -> Result<(), NetworkError> {
    let now = fs::read_to_string(FORWARD).map_err(kernel(format!("read {FORWARD}")))?;
    if now.trim() == "1" {
        return Ok(());
    }
    set(FORWARD, "1")
}

fn read_book(path: &Path) -> Result<Option<AddressBook>, NetworkError> {
    let damaged = |source| NetworkError::Book {
        path: path.to_owned(),
        source,
    };
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(damaged),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(kernel(format!("read {}", path.display()))(error)),
    }
}
