//! Owns the bounds on what a caller may send: bytes, depth, values, operations, parameters, warnings, and how much
//! of it is worked on at once. Every other file takes its bound from here; this one enforces none but the length of
//! a text in an answer.

use std::time::Duration;

/// The most bytes of a body, as in kube-apiserver.
pub const MOST_BODY_BYTES: usize = 3 * 1024 * 1024;

/// The most bytes of an object as it is stored: etcd's default limit for one request.
pub const MOST_STORED_BYTES: usize = 1_572_864;

/// The most levels of objects and lists in a body. The JSON reader stops at 127, and a watch's frame, a list and a
/// table put up to four levels around a stored object.
pub const MOST_DEPTH: usize = 120;

/// The most levels in an object about to be stored, its `managedFields` apart. They repeat the object's levels
/// below five of their own, so that an object of this depth stays within [`MOST_DEPTH`] with them.
pub const MOST_OBJECT_DEPTH: usize = 100;

/// The most keys and values in a body after its aliases are expanded: as many as [`MOST_STORED_BYTES`] hold of
/// three bytes each, the length of `"",` in a list and half of `"":1,` and a comma in an object.
pub const MOST_VALUES: usize = 524_288;

/// The most bytes of a body once its YAML aliases are expanded: what its JSON form could have had.
pub const MOST_EXPANDED_BYTES: usize = MOST_BODY_BYTES;

/// What a JSON patch may come to. The numbers of operations and of copied bytes are kube-apiserver's; the work is
/// what 10,000 insertions at the front of a list of 1,500 items take.
pub const JSON_PATCH: schema::json_patch::Bounds = schema::json_patch::Bounds {
    operations: 10_000,
    depth: MOST_DEPTH,
    copied_bytes: 3 * 1024 * 1024,
    work: 64 * 1024 * 1024,
};

/// The most lines that begin with `%` in a YAML body. libyaml compares each `%TAG` directive with all before it,
/// and each tag with all of them.
pub const MOST_YAML_DIRECTIVES: usize = 64;

/// The most work that runs of white space may cost in a YAML body: the longest run times the number of runs.
/// libyaml clears a buffer as long as a scalar's longest run once for each of the scalar's runs.
pub const MOST_YAML_FOLDING: u64 = 1 << 33;

/// The most duplicate keys that are named; the rest are counted.
pub const MOST_DUPLICATES: usize = 32;

/// The most bytes of a field's path, a parser's complaint or a value that an answer repeats.
pub const MOST_QUOTED_BYTES: usize = 1024;

/// The most Warning headers of an answer. HTTP clients written in Rust refuse more than 100 headers.
pub const MOST_WARNINGS: usize = 32;

/// The most bytes of an answer's warnings, as in kube-apiserver.
pub const MOST_WARNING_BYTES: usize = 4096;

/// The most causes that a refusal lists.
pub const MOST_CAUSES: usize = 128;

/// The most bytes of a query string.
pub const MOST_QUERY_BYTES: usize = 64 * 1024;

/// The most parameters of a query string.
pub const MOST_PARAMETERS: usize = 64;

/// The most requirements of a label selector or a field selector: each is compared with every object of a list.
pub const MOST_REQUIREMENTS: usize = 128;

/// A request whose body and stored object together have at most this many bytes is worked on where it arrived. A
/// larger one goes to a thread of its own.
pub const SMALL_REQUEST_BYTES: usize = 16 * 1024;

/// How many bytes of JSON take as long to read as one byte of YAML.
pub const YAML_WEIGHT: usize = 4;

/// How many large requests are worked on at once.
pub const LARGE_AT_ONCE: usize = 4;

/// How many of them may be one user's, so that others' are worked on, too.
pub const LARGE_AT_ONCE_PER_CALLER: usize = 2;

/// How many large requests may wait for their turn; one more is answered 429.
pub const LARGE_WAITING: usize = 32;

/// How many of them may be one user's.
pub const LARGE_WAITING_PER_CALLER: usize = 16;

/// When a client may try again that was answered 429.
pub const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// How long a watch goes on at most after its caller's credential has ended, or its caller's right to it.
pub const WATCH_RECHECK: Duration = Duration::from_secs(10);

/// The text, cut to [`MOST_QUOTED_BYTES`] with a mark where something is missing.
pub(crate) fn quoted(text: &str) -> String {
    if text.len() <= MOST_QUOTED_BYTES {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(MOST_QUOTED_BYTES);
    format!("{}... ({} bytes in all)", &text[..end], text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_only_above_the_bound_and_between_characters() {
        let fits = "x".repeat(MOST_QUOTED_BYTES);
        assert_eq!(quoted(&fits), fits);
        let long = "é".repeat(MOST_QUOTED_BYTES);
        let cut = quoted(&long);
        assert!(cut.len() < MOST_QUOTED_BYTES + 64, "{}", cut.len());
        assert!(cut.ends_with("... (2048 bytes in all)"), "{cut}");
        let odd = format!("x{long}");
        assert!(quoted(&odd).starts_with("xé"));
    }
}
