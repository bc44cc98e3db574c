//! The code that a person compares or types when a program signs in (RFC 8628, section 6.1): eight of twenty consonants,
//! 34 bits, without vowels, which would form words, and without digits, which look like letters.

use std::fmt;

/// The letters of a code.
const LETTERS: &[u8; 20] = b"BCDFGHJKLMNPQRSTVWXZ";

/// The number of letters.
const LENGTH: usize = 8;

/// Bytes from here on are not used, so that each letter is equally likely.
const FAIR: u8 = 240;

/// A code.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UserCode(String);

impl UserCode {
    /// The code that random bytes give; none if too few of them can be used.
    pub(crate) fn of_random(bytes: &[u8]) -> Option<UserCode> {
        let usable = bytes.iter().filter(|byte| **byte < FAIR);
        let letters = usable.map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()]));
        let code: String = letters.take(LENGTH).collect();
        (code.len() == LENGTH).then_some(UserCode(code))
    }

    /// The code that a person typed: in any case, with or without the dash and spaces; none if it has another form.
    pub(crate) fn typed(text: &str) -> Option<UserCode> {
        let mut code = String::new();
        for letter in text.chars().filter(|c| *c != '-' && *c != ' ') {
            let letter = letter.to_ascii_uppercase();
            let known = u8::try_from(letter).is_ok_and(|byte| LETTERS.contains(&byte));
            if !known || code.len() == LENGTH {
                return None;
            }
            code.push(letter);
        }
        (code.len() == LENGTH).then_some(UserCode(code))
    }
}

impl fmt::Display for UserCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, second) = self.0.split_at(LENGTH / 2);
        write!(f, "{first}-{second}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_read_as_it_is_shown_and_as_people_type_it() {
        let code = UserCode::of_random(&[0, 1, 2, 3, 239, 238, 237, 236]).unwrap();
        assert_eq!(code.to_string(), "BCDF-ZXWV");
        for typed in ["BCDF-ZXWV", "bcdfzxwv", " b c d f - z x w v "] {
            assert_eq!(UserCode::typed(typed).as_ref(), Some(&code), "{typed}");
        }
        for other in [
            "",
            "BCDF-ZXW",
            "BCDF-ZXWVV",
            "BCDF-ZXWA",
            "BCDF-ZXW1",
            "BCDF_ZXWV",
            "ßCDF-ZXWV",
        ] {
            assert_eq!(UserCode::typed(other), None, "{other}");
        }
    }

    #[test]
    fn bytes_that_would_favour_letters_are_not_used() {
        assert_eq!(UserCode::of_random(&[FAIR; 32]), None);
        let mut bytes = vec![FAIR; 8];
        bytes.extend([0; LENGTH]);
        assert_eq!(
            UserCode::of_random(&bytes).unwrap().to_string(),
            "BBBB-BBBB"
        );
        assert_eq!(usize::from(FAIR) % LETTERS.len(), 0);
    }

    proptest::proptest! {
        #[test]
        fn no_typed_code_panics(text in "\\PC{0,24}", bytes in proptest::prelude::any::<[u8; 32]>()) {
            if let Some(code) = UserCode::typed(&text) {
                proptest::prop_assert_eq!(UserCode::typed(&code.to_string()), Some(code));
            }
            if let Some(code) = UserCode::of_random(&bytes) {
                proptest::prop_assert_eq!(UserCode::typed(&code.to_string()), Some(code));
            }
        }
    }
}
