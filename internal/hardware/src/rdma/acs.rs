//! Access control services (ACS) of PCIe bridges, from their configuration space: whether traffic
//! between two devices goes directly, or up to the host bridge and back. Pure.

/// The offset of extended capabilities; a shorter configuration space has none, or hides them.
const EXTENDED: usize = 0x100;
/// The capability's number (PCI Express base specification, 7.7.11).
const ACS: u32 = 0x000d;
/// The offset of its control register.
const CONTROL: usize = 6;
/// Requests to peers and their completions are redirected upwards.
const REDIRECT: u16 = 0x4 | 0x8;
/// The most capabilities that are followed; a damaged list may contain a cycle.
const MOST: usize = 64;
/// The part of the configuration space that unprivileged users can read.
const PUBLIC: usize = 64;

/// The path of traffic between two devices below a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acs {
    /// Directly.
    Straight,
    /// Up to the host bridge.
    Redirects,
    /// The bridge's configuration cannot be read, or not far enough.
    Unknown,
}

/// The setting in a bridge's configuration space, as far as it is readable.
pub fn of(config: &[u8]) -> Acs {
    if config.len() <= PUBLIC {
        return Acs::Unknown;
    }
    let word = |at: usize| {
        let bytes = config.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let mut at = EXTENDED;
    for _ in 0..MOST {
        let Some(header) = word(at).filter(|header| ![0, u32::MAX].contains(header)) else {
            return Acs::Straight;
        };
        if header & 0xffff == ACS {
            let Some(control) = config.get(at + CONTROL..at + CONTROL + 2) else {
                return Acs::Unknown;
            };
            let control = u16::from_le_bytes([control[0], control[1]]);
            return if control & REDIRECT == 0 {
                Acs::Straight
            } else {
                Acs::Redirects
            };
        }
        at = (header >> 20) as usize & 0xffc;
        if at < EXTENDED {
            return Acs::Straight;
        }
    }
    Acs::Unknown
}

/// The bridges between two devices: those above one of them only. Both paths begin at the host
/// bridge.
pub fn between<'a>(one: &'a [String], other: &'a [String]) -> Vec<&'a str> {
    let same = |(a, b): &(&String, &String)| a == b;
    let shared = one.iter().zip(other).take_while(same).count();
    let rest = one[shared..].iter().chain(&other[shared..]);
    rest.map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A configuration space with another capability before this one.
    fn with_control(control: u16) -> Vec<u8> {
        let mut config = vec![0; 4096];
        config[0x100..0x104].copy_from_slice(&(0x0001_u32 | 1 << 16 | 0x140 << 20).to_le_bytes());
        config[0x140..0x144].copy_from_slice(&(ACS | 1 << 16).to_le_bytes());
        config[0x146..0x148].copy_from_slice(&control.to_le_bytes());
        config
    }

    #[test]
    fn only_what_redirects_peers_counts() {
        for (control, wanted) in [
            (0x00, Acs::Straight),
            (0x01, Acs::Straight),
            (0x40, Acs::Straight),
            (0x04, Acs::Redirects),
            (0x08, Acs::Redirects),
            (0x1d, Acs::Redirects),
        ] {
            assert_eq!(of(&with_control(control)), wanted, "{control:#x}");
        }
        assert_eq!(of(&[0; 64]), Acs::Unknown, "only root sees more");
        assert_eq!(of(&[0; 256]), Acs::Straight, "it has no such capabilities");
        let mut circle = with_control(0x04);
        circle[0x140..0x144].copy_from_slice(&(0x0001_u32 | 0x100 << 20).to_le_bytes());
        assert_eq!(of(&circle), Acs::Unknown);
    }

    #[test]
    fn bridges_that_both_hang_under_are_not_between_them() {
        let way = |names: &str| -> Vec<String> { names.split(' ').map(str::to_owned).collect() };
        let (gpu, card) = (way("root up a"), way("root up b"));
        assert_eq!(between(&gpu, &card), ["a", "b"]);
        assert!(between(&gpu, &gpu).is_empty());
        assert_eq!(between(&gpu, &way("else")), ["root", "up", "a", "else"]);
    }

    proptest! {
        #[test]
        fn no_damaged_configuration_panics(config in proptest::collection::vec(any::<u8>(), 0..600)) {
            of(&config);
        }
    }
}
