//! The host's name and addresses.

use std::net::{IpAddr, SocketAddr, UdpSocket};

/// The host's name.
pub fn name() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let name = text.trim().to_ascii_lowercase();
    (!name.is_empty()).then_some(name)
}

/// The address of this machine for other machines, in messages: its name, or its first address that is not loopback.
pub fn own_name() -> Option<String> {
    let named = name().filter(|name| name != "localhost");
    named.or_else(|| {
        let other = addresses()
            .into_iter()
            .filter(|address| address.is_ipv4() && !address.is_loopback());
        other.map(|address| address.to_string()).next()
    })
}

/// Every address of this host.
pub fn addresses() -> Vec<IpAddr> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else {
        return Vec::new();
    };
    let address = |interface: nix::ifaddrs::InterfaceAddress| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))
    };
    interfaces.filter_map(address).collect()
}

/// This host's address on the route to another host: the kernel's source address. Nothing is sent
/// to find it.
pub fn address_towards(other: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = match other {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(other).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}
