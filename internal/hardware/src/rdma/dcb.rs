//! The priorities on which a network interface pauses its sender (PFC), from the kernel's data centre bridging over
//! netlink: the request, the answer, and the socket.

use std::os::fd::AsRawFd;

use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto,
    setsockopt, socket,
};
use nix::sys::time::TimeVal;

/// From the kernel's `linux/rtnetlink.h` and `linux/dcbnl.h`.
const RTM_GETDCB: u16 = 78;
const NLM_F_REQUEST: u16 = 1;
const DCB_CMD_IEEE_GET: u8 = 21;
const DCB_ATTR_IFNAME: u16 = 1;
const DCB_ATTR_IEEE: u16 = 13;
const DCB_ATTR_IEEE_PFC: u16 = 2;

/// The lengths of `nlmsghdr`, `dcbmsg` and `nlattr`.
const HEADER: usize = 16;
const BRIDGING: usize = 4;
const ATTRIBUTE: usize = 4;
/// The bits of an attribute's kind, without flags.
const KIND: u16 = 0x3fff;
/// The longest name of an interface, including the final zero.
const NAME: usize = 16;
/// More than the longest answer of the kernel.
const ANSWER: usize = 16 * 1024;

/// A bit for each priority whose sender is paused; `None` if the driver doesn't report them, or the interface is in
/// another network namespace.
pub fn paused_priorities(interface: &str) -> Option<u8> {
    let request = request(interface)?;
    let asked = || -> nix::Result<Option<u8>> {
        let kernel = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkRoute,
        )?;
        // The kernel answers at once, or there is an error.
        setsockopt(&kernel, ReceiveTimeout, &TimeVal::new(1, 0))?;
        let (to, none) = (NetlinkAddr::new(0, 0), MsgFlags::empty());
        sendto(kernel.as_raw_fd(), &request, &to, none)?;
        let mut answer = vec![0; ANSWER];
        let length = recv(kernel.as_raw_fd(), &mut answer, none)?;
        Ok(paused(&answer[..length]))
    };
    asked().ok().flatten()
}

/// The request for an interface's IEEE 802.1Qaz settings.
fn request(interface: &str) -> Option<Vec<u8>> {
    let name = interface.as_bytes();
    if name.is_empty() || name.len() >= NAME || name.contains(&0) {
        return None;
    }
    let attribute = ATTRIBUTE + name.len() + 1;
    let whole = HEADER + BRIDGING + attribute.next_multiple_of(4);
    let mut words = Vec::with_capacity(whole);
    words.extend(u32::try_from(whole).ok()?.to_ne_bytes());
    words.extend(RTM_GETDCB.to_ne_bytes());
    words.extend(NLM_F_REQUEST.to_ne_bytes());
    // The sequence number and the sender's, which a single request does not need.
    words.extend([0; 8]);
    words.extend([0, DCB_CMD_IEEE_GET, 0, 0]);
    words.extend(u16::try_from(attribute).ok()?.to_ne_bytes());
    words.extend(DCB_ATTR_IFNAME.to_ne_bytes());
    words.extend(name);
    words.resize(whole, 0);
    Some(words)
}

/// The priorities in an answer; none for an error, or a damaged answer.
fn paused(answer: &[u8]) -> Option<u8> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    if kind != RTM_GETDCB {
        return None;
    }
    let settings = attribute(answer.get(HEADER + BRIDGING..)?, DCB_ATTR_IEEE)?;
    // The card's capability comes first, the enabled priorities second.
    attribute(settings, DCB_ATTR_IEEE_PFC)?.get(1).copied()
}

/// The content of the first attribute of a kind.
fn attribute(mut all: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let number = |at: usize| -> Option<u16> {
            Some(u16::from_ne_bytes(all.get(at..at + 2)?.try_into().ok()?))
        };
        let length = usize::from(number(0)?);
        let content = all.get(ATTRIBUTE..length)?;
        if number(2)? & KIND == kind {
            return Some(content);
        }
        all = all.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn attribute_of(kind: u16, content: &[u8]) -> Vec<u8> {
        let length = u16::try_from(ATTRIBUTE + content.len()).unwrap();
        let mut words = length.to_ne_bytes().to_vec();
        words.extend(kind.to_ne_bytes());
        words.extend(content);
        words.resize(words.len().next_multiple_of(4), 0);
        words
    }

    /// An answer of the kernel (`dcbnl_ieee_fill`): the interface, and nested the settings that its driver reports.
    fn answer(nested: u16, pfc: &[u8]) -> Vec<u8> {
        let inside = [attribute_of(1, &[0; 59]), attribute_of(2, pfc)].concat();
        let all = [attribute_of(1, b"ens1\0"), attribute_of(nested, &inside)].concat();
        let mut words = u32::try_from(HEADER + BRIDGING + all.len())
            .unwrap()
            .to_ne_bytes()
            .to_vec();
        words.extend(RTM_GETDCB.to_ne_bytes());
        words.extend([0; 10]);
        words.extend([0, DCB_CMD_IEEE_GET, 0, 0]);
        words.extend(all);
        words
    }

    #[test]
    fn the_priorities_that_pause_are_read_whether_or_not_the_kernel_marks_what_is_nested() {
        let mut pfc = [0; 136];
        pfc[..3].copy_from_slice(&[8, 0b1000, 0]);
        assert_eq!(paused(&answer(DCB_ATTR_IEEE, &pfc)), Some(0b1000));
        assert_eq!(paused(&answer(DCB_ATTR_IEEE | 0x8000, &pfc)), Some(0b1000));
        pfc[1] = 0;
        assert_eq!(paused(&answer(DCB_ATTR_IEEE, &pfc)), Some(0));
        // Another attribute, and an error of the kernel.
        assert_eq!(paused(&answer(14, &pfc)), None);
        let mut refused = answer(DCB_ATTR_IEEE, &pfc);
        refused[4..6].copy_from_slice(&2_u16.to_ne_bytes());
        assert_eq!(paused(&refused), None);
    }

    #[test]
    fn an_interface_that_is_not_there_or_knows_no_priorities_says_nothing() {
        assert_eq!(paused_priorities("nosuch0"), None);
        assert_eq!(paused_priorities("lo"), None);
        assert_eq!(paused_priorities(""), None);
        assert_eq!(paused_priorities("a-name-that-is-too-long"), None);
        let request = request("ens1np0").unwrap();
        assert_eq!(request.len(), HEADER + BRIDGING + 12);
        assert_eq!(request[HEADER + BRIDGING + ATTRIBUTE..], *b"ens1np0\0");
    }

    proptest! {
        #[test]
        fn no_answer_panics(
            bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0..240_usize,
        ) {
            let _ = paused(&bytes);
            let whole = answer(DCB_ATTR_IEEE, &[0; 136]);
            let _ = paused(&whole[..cut.min(whole.len())]);
            let _ = attribute(&bytes, 13);
        }
    }
}
