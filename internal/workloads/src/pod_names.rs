//! Pods' names: a prefix and a suffix that looks random as Kubernetes' does, but is fixed for a number, so that creating
//! a pod twice makes one pod.

/// The longest pod name that is still a host name.
pub(crate) const NAME_MAX: usize = 63;
/// The letters of Kubernetes' random suffixes.
const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LENGTH: usize = 5;
/// 27 to the fifth: the number of suffixes.
const SUFFIXES: u64 = 14_348_907;
/// Shares no factor with the number of suffixes, so that no two numbers share a suffix.
const SPREAD: u64 = 5_323_619;

/// `<name><infix>-<suffix>`; a long name is cut.
pub(crate) fn numbered(name: &str, infix: &str, uid: &str, number: u32) -> String {
    let room = NAME_MAX - SUFFIX_LENGTH - 1 - infix.len();
    let mut end = name.len().min(room);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{infix}-{}", &name[..end], suffix(uid, number))
}

fn suffix(uid: &str, number: u32) -> String {
    let seed = uid
        .bytes()
        .fold(7_u64, |sum, byte| (sum * 31 + u64::from(byte)) % SUFFIXES);
    let mut number = (u64::from(number) * SPREAD + seed) % SUFFIXES;
    let mut text = String::with_capacity(SUFFIX_LENGTH);
    for _ in 0..SUFFIX_LENGTH {
        let letter = usize::try_from(number % 27).unwrap_or_default();
        text.push(char::from(LETTERS[letter]));
        number /= 27;
    }
    text
}

/// A number's digits in the letters of names, as Kubernetes writes hashes.
pub(crate) fn encode(digits: &str) -> String {
    let letter = |byte: u8| char::from(LETTERS[usize::from(byte) % LETTERS.len()]);
    digits.bytes().map(letter).collect()
}
