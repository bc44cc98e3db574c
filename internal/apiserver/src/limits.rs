//! Owns the bounds on requests: bytes, depth, values, operations, parameters, warnings, and the
//! number of large requests in progress. Every other module uses the bounds defined here; this one
//! enforces only the length of a text in a response.

use std::time::Duration;

/// The maximum size of a body in bytes, as in kube-apiserver.
pub const MOST_BODY_BYTES: usize = 3 * 1024 * 1024;

/// The maximum size of a stored object in bytes: etcd's default limit for one request.
pub const MOST_STORED_BYTES: usize = 1_572_864;

/// The maximum size of all objects of a namespace in bytes: every object is in the server's memory,
/// and a namespace's members could fill it otherwise.
pub const MOST_NAMESPACE_BYTES: u64 = 512 * 1024 * 1024;

/// The maximum depth of objects and lists in a body. The JSON reader stops at 127, and a watch's
/// frame, a list and a table add up to four levels around a stored object.
pub const MOST_DEPTH: usize = 120;

/// The maximum depth of an object about to be stored, without its `managedFields`. They repeat the
/// object's levels below five levels of their own, so that an object of this depth stays within
/// [`MOST_DEPTH`] with them.
pub const MOST_OBJECT_DEPTH: usize = 100;

/// The maximum number of keys and values in a body after its aliases are expanded:
/// [`MOST_STORED_BYTES`] divided by three bytes each, the length of `"",` in a list and half of
/// `"":1,` and a comma in an object.
pub const MOST_VALUES: usize = 524_288;

/// The maximum size of a body in bytes after its YAML aliases are expanded: the maximum size of its
/// JSON form.
pub const MOST_EXPANDED_BYTES: usize = MOST_BODY_BYTES;

/// The bounds of a JSON patch. The numbers of operations and of copied bytes are kube-apiserver's;
/// the work is that of 10,000 insertions at the front of a list of 1,500 items.
pub const JSON_PATCH: schema::json_patch::PatchLimits = schema::json_patch::PatchLimits {
    operations: 10_000,
    depth: MOST_DEPTH,
    copied_bytes: 3 * 1024 * 1024,
    work: 64 * 1024 * 1024,
};

/// The maximum size in bytes of the deleted objects that the answer to the deletion of a collection
/// lists.
pub const MOST_DELETED_BYTES: usize = 8 * 1024 * 1024;

/// The maximum size in bytes of a training program's report of its progress, as in Kubeflow
/// Trainer.
pub const MOST_PROGRESS_BYTES: usize = 64 * 1024;

/// The maximum number of lines that begin with `%` in a YAML body. libyaml compares each `%TAG`
/// directive with all previous ones, and each tag with all of them.
pub const MOST_YAML_DIRECTIVES: usize = 64;

/// The maximum cost of runs of white space in a YAML body: the longest run times the number of
/// runs. libyaml clears a buffer of the length of a scalar's longest run once for each of the
/// scalar's runs.
pub const MOST_YAML_FOLDING: u64 = 1 << 33;

/// The maximum number of duplicate keys that are named; further ones are counted.
pub const MOST_DUPLICATES: usize = 32;

/// The maximum size in bytes of a field's path, a parser's message or a value quoted in a response.
pub const MOST_QUOTED_BYTES: usize = 1024;

/// The maximum number of Warning headers in a response. Rust HTTP clients refuse more than 100
/// headers.
pub const MOST_WARNINGS: usize = 32;

/// The maximum size of a response's warnings in bytes, as in kube-apiserver.
pub const MOST_WARNING_BYTES: usize = 4096;

/// The maximum number of causes in an error response.
pub const MOST_CAUSES: usize = 128;

/// The maximum size of a query string in bytes.
pub const MOST_QUERY_BYTES: usize = 64 * 1024;

/// The maximum number of parameters in a query string.
pub const MOST_PARAMETERS: usize = 1024;

/// The maximum number of requirements in a label selector or a field selector: each is compared
/// with every object of a list.
pub const MOST_REQUIREMENTS: usize = 128;

/// A request whose body and stored object together have at most this many bytes is processed on the
/// thread that received it. A larger one moves to a separate thread.
pub const SMALL_REQUEST_BYTES: usize = 16 * 1024;

/// How many bytes of JSON take as long to read as one byte of YAML.
pub const YAML_WEIGHT: usize = 4;

/// The maximum number of large requests in progress.
pub const LARGE_AT_ONCE: usize = 4;

/// How many of them one user may have, so that other users' requests proceed.
pub const LARGE_AT_ONCE_PER_CALLER: usize = 2;

/// The maximum number of waiting large requests; further ones are answered with 429.
pub const LARGE_WAITING: usize = 32;

/// How many of them one user may have.
pub const LARGE_WAITING_PER_CALLER: usize = 16;

/// The retry delay of a response 429.
pub const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The maximum time that a watch continues after its caller's credential or right has ended.
pub const WATCH_RECHECK: Duration = Duration::from_secs(10);

/// A client of a command in a container, of its own input and output or of a forwarded port is
/// ended after this long without input and output, as by a kubelet.
pub const STREAM_IDLE: Duration = Duration::from_secs(14_400);

/// The maximum number of open watches of one user; the service accounts of one namespace count
/// together, and each node by itself. A controller has one watch for each kind that it follows.
pub const WATCHES_PER_USER: usize = 512;

/// The maximum number of open watches of all users; Muster's own components and nodes are not
/// counted.
pub const WATCHES: usize = 4096;

/// How many existing objects a watch reads at once before it sends changes.
pub const INITIAL_PAGE: usize = 500;

/// The text, cut to [`MOST_QUOTED_BYTES`] with a mark at the cut.
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
