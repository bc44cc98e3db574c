//! One-time passwords by time (RFC 6238) with the parameters that every authenticator app knows: HMAC-SHA-1, six digits,
//! steps of 30 seconds. Pure; HMAC is ring's.

use jiff::Timestamp;
use ring::hmac;
use subtle::ConstantTimeEq;

/// The length of a step, in seconds.
const STEP: i64 = 30;

/// The number of digits of a code.
const DIGITS: usize = 6;

/// How many steps a code may be older or newer than the server's clock.
const WINDOW: i64 = 1;

/// The alphabet of base32 (RFC 4648).
const BASE32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// The bytes of a secret: as many as SHA-1 has (RFC 4226, section 4).
pub(crate) const SECRET_BYTES: usize = 20;

/// A secret that a user's app and the server share.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct TotpSecret([u8; SECRET_BYTES]);

/// The step of a time.
fn step_of(now: Timestamp) -> i64 {
    now.as_second().div_euclid(STEP)
}

impl TotpSecret {
    pub(crate) fn new(bytes: [u8; SECRET_BYTES]) -> TotpSecret {
        TotpSecret(bytes)
    }

    /// In base32, as apps take it.
    pub(crate) fn base32(&self) -> String {
        // 20 bytes are 32 digits of 5 bits: no padding.
        let digits = (0..SECRET_BYTES * 8).step_by(5).map(|bit| {
            let byte = |at: usize| u16::from(self.0.get(at).copied().unwrap_or_default());
            let two = byte(bit / 8) << 8 | byte(bit / 8 + 1);
            char::from(BASE32[usize::from(two >> (11 - bit % 8) & 31)])
        });
        digits.collect()
    }

    /// Reads what [`TotpSecret::base32`] wrote.
    pub(crate) fn of_base32(text: &str) -> Option<TotpSecret> {
        let mut bytes = [0; SECRET_BYTES];
        if text.len() != SECRET_BYTES * 8 / 5 {
            return None;
        }
        for (at, digit) in text.bytes().enumerate() {
            let value = BASE32.iter().position(|one| *one == digit)?;
            for place in 0..5 {
                let bit = at * 5 + place;
                let set = u8::from(value >> (4 - place) & 1 == 1);
                bytes[bit / 8] |= set << (7 - bit % 8);
            }
        }
        Some(TotpSecret(bytes))
    }

    /// The code of a step.
    pub(crate) fn code(&self, step: i64) -> String {
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &self.0);
        let tag = hmac::sign(&key, &step.to_be_bytes());
        let tag = tag.as_ref();
        // RFC 4226, section 5.3: the last four bits say where 31 bits are taken from.
        let at = usize::from(tag[tag.len() - 1] & 15);
        let bits = u32::from_be_bytes([tag[at] & 0x7f, tag[at + 1], tag[at + 2], tag[at + 3]]);
        format!("{:0DIGITS$}", bits % 10_u32.pow(6))
    }

    /// The step whose code a user typed, among those that are acceptable now; spaces do not count.
    pub(crate) fn matching(&self, typed: &str, now: Timestamp) -> Option<i64> {
        let typed: String = typed.chars().filter(|c| *c != ' ').collect();
        let here = step_of(now);
        // All are computed, so that the time says nothing.
        let mut found = None;
        for step in here - WINDOW..=here + WINDOW {
            let same: bool = self.code(step).as_bytes().ct_eq(typed.as_bytes()).into();
            if same {
                found = Some(step);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rfc() -> TotpSecret {
        TotpSecret::new(*b"12345678901234567890")
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn codes_are_those_of_the_standard() {
        // RFC 6238, appendix B, the last six of eight digits.
        for (second, code) in [
            (59, "287082"),
            (1_111_111_109, "081804"),
            (1_111_111_111, "050471"),
            (1_234_567_890, "005924"),
            (2_000_000_000, "279037"),
            (20_000_000_000, "353130"),
        ] {
            assert_eq!(rfc().code(step_of(at(second))), code, "{second}");
        }
    }

    #[test]
    fn a_code_is_accepted_one_step_around_now() {
        let code = rfc().code(100);
        for (second, accepted) in [
            (99 * 30 - 1, false),
            (99 * 30, true),
            (100 * 30, true),
            (102 * 30 - 1, true),
            (102 * 30, false),
        ] {
            let step = rfc().matching(&code, at(second));
            assert_eq!(step, accepted.then_some(100), "{second}");
        }
        let spaced = format!("{} {}", &code[..3], &code[3..]);
        assert_eq!(rfc().matching(&spaced, at(3000)), Some(100));
        for wrong in ["", "0", "000000000000", "abcdef", "\u{661}23456"] {
            assert_eq!(rfc().matching(wrong, at(3000)), None, "{wrong}");
        }
    }

    #[test]
    fn a_secret_is_written_in_base32() {
        assert_eq!(rfc().base32(), "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ");
        for wrong in [
            "",
            "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJ1",
            "gezdgnbvgy3tqojqgezdgnbvgy3tqojq",
        ] {
            assert!(TotpSecret::of_base32(wrong).is_none(), "{wrong}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_secret_and_no_typed_code_panics(bytes in proptest::prelude::any::<[u8; SECRET_BYTES]>(), text in "\\PC{0,40}", second in -1_000_000_i64..10_000_000_000) {
            let secret = TotpSecret::new(bytes);
            proptest::prop_assert!(TotpSecret::of_base32(&secret.base32()) == Some(secret.clone()));
            let _ = TotpSecret::of_base32(&text);
            let now = at(second);
            let _ = secret.matching(&text, now);
            let here = step_of(now);
            proptest::prop_assert!(secret.matching(&secret.code(here), now).is_some());
        }
    }
}
