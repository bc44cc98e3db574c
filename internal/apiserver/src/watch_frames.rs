//! Owns the encoding of a watch's frames: the object as it is stored, or as a table's row, or its
//! metadata.

use jiff::Timestamp;
use resources::registry::Kind;
use serde_json::{Value, json};
use store::Revision;

use crate::call::Call;
use crate::negotiate::ObjectView;
use crate::status::Failure;
use crate::stored;
use crate::table::{self, Inclusion};

/// The annotation of the bookmark that ends the initial additions.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Writes frames for one watcher.
pub(crate) struct WatchFrames {
    kind: &'static Kind,
    view: ObjectView,
    inclusion: Inclusion,
    now: fn() -> Timestamp,
    without_managers: bool,
    /// A table's column definitions are sent once.
    columns_sent: bool,
}

impl WatchFrames {
    pub(crate) fn new(call: &Call) -> Result<Self, Failure> {
        Ok(WatchFrames {
            kind: call.kind,
            view: call.form.view,
            inclusion: Inclusion::of(call)?,
            now: call.server.0.config.now,
            without_managers: call.without_managers,
            columns_sent: false,
        })
    }

    /// Appends a change of a stored object.
    pub(crate) fn change(&mut self, out: &mut Vec<u8>, what: &str, stored: &[u8]) {
        match self.view {
            ObjectView::Object if self.without_managers => {
                frame(out, what, &stored::without_managers(stored));
            }
            ObjectView::Object => frame(out, what, &[stored]),
            ObjectView::Metadata(version) => {
                let metadata = stored::metadata(stored).unwrap_or(b"null");
                let [before, behind] = match self.without_managers {
                    true => stored::metadata_without_managers(metadata),
                    false => [metadata, &[]],
                };
                let head = format!(
                    "{{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/{version}\",\"metadata\":"
                );
                frame(out, what, &[head.as_bytes(), before, behind, b"}"]);
            }
            ObjectView::Table(version) => {
                let (kind, inclusion, now) = (self.kind, self.inclusion, (self.now)());
                let headed = !std::mem::replace(&mut self.columns_sent, true);
                self.transformed(out, what, stored, |value| {
                    table::table(kind, version, inclusion, now, &[value], headed)
                });
            }
        }
    }

    fn transformed(
        &self,
        out: &mut Vec<u8>,
        what: &str,
        stored: &[u8],
        view: impl FnOnce(Value) -> Value,
    ) {
        match serde_json::from_slice(stored) {
            Ok(value) => frame(out, what, &[view(value).to_string().as_bytes()]),
            Err(error) => {
                tracing::error!(%error, kind = self.kind.kind, "a stored object is damaged")
            }
        }
    }

    /// Appends a bookmark.
    pub(crate) fn bookmark(&mut self, out: &mut Vec<u8>, revision: Revision, initial_end: bool) {
        let mut meta = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if initial_end {
            meta["annotations"] = json!({INITIAL_EVENTS_END: "true"});
        }
        let object = match self.view {
            ObjectView::Object => {
                json!({"kind": self.kind.kind, "apiVersion": self.kind.api_version(), "metadata": meta})
            }
            ObjectView::Metadata(version) => json!({
                "kind": "PartialObjectMetadata", "apiVersion": format!("meta.k8s.io/{version}"), "metadata": meta,
            }),
            ObjectView::Table(version) => table::bookmark(self.kind, version, &meta),
        };
        frame(out, "BOOKMARK", &[object.to_string().as_bytes()]);
    }

    /// The frame with the error that ends a watch.
    pub(crate) fn error(&self, failure: &Failure) -> Vec<u8> {
        let mut out = Vec::new();
        frame(
            &mut out,
            "ERROR",
            &[failure.to_value().to_string().as_bytes()],
        );
        out
    }
}

/// Appends a frame about an object that is given in parts.
fn frame(out: &mut Vec<u8>, what: &str, object: &[&[u8]]) {
    let size: usize = object.iter().map(|part| part.len()).sum();
    out.reserve(size + what.len() + 24);
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(what.as_bytes());
    out.extend_from_slice(b"\",\"object\":");
    for part in object {
        out.extend_from_slice(part);
    }
    out.extend_from_slice(b"}\n");
}
