//! A user's second factor as it is stored beside the password's hash, and its recovery codes. Pure.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::tokens::digest;
use crate::totp::TotpSecret;

/// The number of recovery codes that a user gets.
pub(crate) const RECOVERY_CODES: usize = 10;

/// The letters and digits of a recovery code: 32 of them, 80 bits.
const RECOVERY_LENGTH: usize = 16;

/// Without characters that look alike.
const RECOVERY_ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";

/// The stored second factor of a user.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SecondFactor {
    /// The secret in base32.
    secret: String,
    /// When the user confirmed it.
    pub(crate) since: Timestamp,
    /// The step of the last code that was used.
    step: i64,
    /// The digests of the recovery codes that are not used yet.
    recovery: BTreeSet<String>,
}

/// The random bytes of a user's recovery codes.
pub(crate) type RecoveryBytes = [[u8; RECOVERY_LENGTH]; RECOVERY_CODES];

/// Recovery codes as the user keeps them: four groups of four.
pub(crate) fn recovery_codes(random: &RecoveryBytes) -> Vec<String> {
    let letter = |byte: &u8| char::from(RECOVERY_ALPHABET[usize::from(*byte % 32)]);
    let group = |bytes: &[u8]| bytes.iter().map(letter).collect::<String>();
    let one = |bytes: &[u8; RECOVERY_LENGTH]| bytes.chunks(4).map(group).collect::<Vec<_>>();
    random.iter().map(|bytes| one(bytes).join("-")).collect()
}

/// The digest of a recovery code as a user types it: in any case, with or without dashes and spaces.
fn recovery_digest(typed: &str) -> Option<String> {
    let code = typed.chars().filter(|c| *c != '-' && *c != ' ');
    let code: String = code.take(RECOVERY_LENGTH + 1).collect();
    let code = code.to_ascii_lowercase();
    let whole =
        code.len() == RECOVERY_LENGTH && code.bytes().all(|byte| RECOVERY_ALPHABET.contains(&byte));
    whole.then(|| digest(&code))
}

impl SecondFactor {
    /// A factor that a user confirmed by the code of a step, with these recovery codes.
    pub(crate) fn new(
        secret: &TotpSecret,
        step: i64,
        recovery: &[String],
        now: Timestamp,
    ) -> SecondFactor {
        SecondFactor {
            secret: secret.base32(),
            since: now,
            step,
            recovery: digests(recovery),
        }
    }

    /// The secret; none if the record is damaged.
    pub(crate) fn secret(&self) -> Option<TotpSecret> {
        TotpSecret::of_base32(&self.secret)
    }

    /// The factor after the code of a step; none if that code, or a later one, was used before.
    pub(crate) fn after_step(&self, step: i64) -> Option<SecondFactor> {
        let mut next = self.clone();
        next.step = step;
        (step > self.step).then_some(next)
    }

    /// The number of recovery codes that are left.
    pub(crate) fn recovery_left(&self) -> usize {
        self.recovery.len()
    }

    /// The factor with other recovery codes.
    pub(crate) fn with_recovery(&self, codes: &[String]) -> SecondFactor {
        SecondFactor {
            recovery: digests(codes),
            ..self.clone()
        }
    }

    /// The factor without the recovery code that a user typed; none if it has no such code.
    pub(crate) fn without_recovery(&self, typed: &str) -> Option<SecondFactor> {
        let mut next = self.clone();
        next.recovery
            .remove(&recovery_digest(typed)?)
            .then_some(next)
    }
}

fn digests(codes: &[String]) -> BTreeSet<String> {
    codes
        .iter()
        .filter_map(|code| recovery_digest(code))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes() -> Vec<String> {
        let mut random = [[0; RECOVERY_LENGTH]; RECOVERY_CODES];
        for (number, bytes) in (0_u8..).zip(&mut random) {
            bytes[15] = number;
        }
        recovery_codes(&random)
    }

    fn factor() -> SecondFactor {
        let secret = TotpSecret::new([7; 20]);
        SecondFactor::new(&secret, 100, &codes(), Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_recovery_code_works_once_as_people_type_it() {
        let codes = codes();
        assert_eq!(codes[1], "aaaa-aaaa-aaaa-aaab");
        let mut factor = factor();
        for (left, typed) in [
            (9, codes[1].clone()),
            (8, codes[2].to_uppercase()),
            (7, codes[3].replace('-', " ")),
        ] {
            factor = factor.without_recovery(&typed).unwrap();
            assert_eq!(factor.recovery_left(), left);
            assert!(factor.without_recovery(&typed).is_none(), "{typed}");
        }
        for wrong in [
            "",
            "aaaa",
            "zzzz-zzzz-zzzz-zzzz",
            "aaaa-aaaa-aaaa-aaaaa",
            "aaaa-aaaa-aaaa-aaa1",
        ] {
            assert!(factor.without_recovery(wrong).is_none(), "{wrong}");
        }
        assert_eq!(factor.with_recovery(&codes).recovery_left(), RECOVERY_CODES);
    }

    #[test]
    fn only_a_later_step_than_the_last_one_is_used() {
        for (step, used) in [(99, false), (100, false), (101, true)] {
            assert_eq!(factor().after_step(step).is_some(), used, "{step}");
        }
        let next = factor().after_step(101).unwrap();
        assert!(next.after_step(101).is_none() && next.recovery_left() == RECOVERY_CODES);
    }

    #[test]
    fn the_stored_record_has_no_recovery_code_and_is_read_back() {
        let text = serde_json::to_string(&factor()).unwrap();
        assert!(!text.contains("aaaa-aaaa"), "{text}");
        let read: SecondFactor = serde_json::from_str(&text).unwrap();
        assert!(read == factor() && read.secret() == Some(TotpSecret::new([7; 20])));
        let damaged = text.replace(&factor().secret, "x");
        let read: SecondFactor = serde_json::from_str(&damaged).unwrap();
        assert!(read.secret().is_none());
    }
}
