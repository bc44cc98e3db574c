//! Owns GET of a collection: selection, pages that are consistent with the first page's revision,
//! and the list's bytes, which are the concatenated stored bytes.

use std::sync::Arc;

use axum::body::Body;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::{BufMut, Bytes, BytesMut};
use http::Response;
use serde_json::{Map, Value, json};
use store::{Entry, ListPage, Revision};

use crate::call::Call;
use crate::negotiate::ObjectView;
use crate::select::ObjectSelection;
use crate::status::Failure;
use crate::{object, respond, stored, table};

/// How many stored objects are read at a time while filling a page with selected ones.
const SCAN: usize = 2_000;
/// Larger lists (in bytes) are sent in pieces of this size instead of being assembled first.
const PIECE: usize = 64 * 1024;

/// The result of a list.
struct ListResult {
    entries: Vec<Arc<Entry>>,
    revision: Revision,
    /// The key to continue after, if there is more.
    next: Option<String>,
    /// The number of remaining objects, if it is known.
    remaining: Option<usize>,
}

pub(crate) fn list(call: &Call) -> Result<Response<Body>, Failure> {
    let selection = ObjectSelection::of(call)?;
    let found = find(call, &selection)?;
    match call.form.view {
        ObjectView::Object if !call.form.yaml => Ok(respond::json_stream(objects(call, found))),
        ObjectView::Object => {
            let mut list = head(call.kind.list_kind, &call.kind.api_version(), &found);
            list["items"] = Value::Array(parsed(&found)?);
            respond::value(call, &list)
        }
        ObjectView::Table(version) => {
            let mut list = head("Table", &format!("meta.k8s.io/{version}"), &found);
            table::fill(call, version, &mut list, &parsed(&found)?)?;
            respond::value(call, &list)
        }
        ObjectView::Metadata(version) => {
            let api_version = format!("meta.k8s.io/{version}");
            let mut list = head("PartialObjectMetadataList", &api_version, &found);
            let mut items = parsed(&found)?;
            if call.without_managers {
                for item in &mut items {
                    object::meta_mut(item).remove("managedFields");
                }
            }
            list["items"] = items
                .iter()
                .map(|item| table::metadata_of(version, item))
                .collect();
            respond::value(call, &list)
        }
    }
}

/// All selected objects as they are now, without pages.
pub(crate) fn all(call: &Call, selection: &ObjectSelection) -> Vec<Arc<Entry>> {
    let page = call
        .server
        .0
        .store
        .list(&selection.prefix, None, usize::MAX);
    let entries = page.entries.into_iter();
    entries
        .filter(|entry| selection.takes(&entry.meta))
        .collect()
}

fn parsed(found: &ListResult) -> Result<Vec<Value>, Failure> {
    found
        .entries
        .iter()
        .map(|entry| object::parse(entry))
        .collect()
}

/// A list without its items.
fn head(kind: &str, api_version: &str, found: &ListResult) -> Value {
    json!({"kind": kind, "apiVersion": api_version, "metadata": list_meta(found)})
}

fn list_meta(found: &ListResult) -> Value {
    let mut meta = Map::new();
    meta.insert("resourceVersion".into(), found.revision.to_string().into());
    if let Some(next) = &found.next {
        meta.insert(
            "continue".into(),
            ContinueToken::new(found.revision, next).encode().into(),
        );
        if let Some(remaining) = found.remaining {
            meta.insert("remainingItemCount".into(), remaining.into());
        }
    }
    Value::Object(meta)
}

/// The list's bytes.
fn objects(call: &Call, found: ListResult) -> Body {
    let kind = call.kind;
    let start = format!(
        "{{\"kind\":\"{}\",\"apiVersion\":\"{}\",\"metadata\":{},\"items\":[",
        kind.list_kind,
        kind.api_version(),
        list_meta(&found)
    );
    let size: usize = found
        .entries
        .iter()
        .map(|entry| entry.value.len() + 1)
        .sum();
    let pieces = ListPieces {
        head: Some(start),
        entries: found.entries.into_iter(),
        first: true,
        done: false,
        without_managers: call.without_managers,
    };
    if size <= PIECE {
        let mut whole = BytesMut::with_capacity(size + 256);
        pieces.for_each(|piece| whole.extend_from_slice(&piece));
        return Body::from(whole.freeze());
    }
    Body::from_stream(futures::stream::iter(
        pieces.map(Ok::<_, std::convert::Infallible>),
    ))
}

/// A list's bytes, produced piece by piece.
struct ListPieces {
    head: Option<String>,
    entries: std::vec::IntoIter<Arc<Entry>>,
    first: bool,
    done: bool,
    without_managers: bool,
}

impl Iterator for ListPieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.done {
            return None;
        }
        let mut piece = BytesMut::with_capacity(PIECE + PIECE / 4);
        if let Some(head) = self.head.take() {
            piece.put_slice(head.as_bytes());
        }
        while piece.len() < PIECE {
            let Some(entry) = self.entries.next() else {
                piece.put_slice(b"]}");
                self.done = true;
                break;
            };
            if !self.first {
                piece.put_u8(b',');
            }
            self.first = false;
            if self.without_managers {
                for part in stored::without_managers(&entry.value) {
                    piece.put_slice(part);
                }
            } else {
                piece.put_slice(&entry.value);
            }
        }
        Some(piece.freeze())
    }
}

fn find(call: &Call, selection: &ObjectSelection) -> Result<ListResult, Failure> {
    let params = &call.params;
    let limit = params.number::<usize>("limit")?.filter(|limit| *limit > 0);
    let token = params
        .get("continue")
        .map(ContinueToken::decode)
        .transpose()?;
    let at = revision_asked(call, token.is_some())?;
    let begun = token.as_ref().and_then(|token| token.revision).or(at);
    let mut after = match token {
        Some(token) => Some(token.after(&selection.prefix)?),
        None => None,
    };
    let Some(limit) = limit else {
        let mut page = page(call, begun, selection, after.as_deref(), usize::MAX)?;
        if !selection.is_everything() {
            page.entries.retain(|entry| selection.takes(&entry.meta));
        }
        return Ok(ListResult {
            entries: page.entries,
            revision: page.revision,
            next: None,
            remaining: None,
        });
    };

    let mut entries: Vec<Arc<Entry>> = Vec::new();
    let mut revision = begun;
    let scan = if selection.is_everything() {
        limit
    } else {
        SCAN
    };
    loop {
        let page = page(call, revision, selection, after.as_deref(), scan)?;
        revision = Some(page.revision);
        let last = page.entries.last().map(|entry| entry.key.to_string());
        let more = page.remaining > 0;
        let mut chosen = page
            .entries
            .into_iter()
            .filter(|entry| selection.takes(&entry.meta));
        entries.extend(chosen.by_ref().take(limit - entries.len()));
        let spare = chosen.next().is_some();
        let full = entries.len() >= limit;
        if !more && !spare || full {
            let next = (more || spare)
                .then(|| entries.last().map(|entry| entry.key.to_string()))
                .flatten();
            // Counting the objects that match selectors would require reading all of them.
            let remaining = selection.is_everything().then_some(page.remaining);
            return Ok(ListResult {
                entries,
                revision: page.revision,
                next,
                remaining,
            });
        }
        after = last;
    }
}

fn page(
    call: &Call,
    at: Option<Revision>,
    selection: &ObjectSelection,
    after: Option<&str>,
    limit: usize,
) -> Result<ListPage, Failure> {
    let store = &call.server.0.store;
    let Some(revision) = at else {
        return Ok(store.list(&selection.prefix, after, limit));
    };
    store
        .list_at(revision, &selection.prefix, after, limit)
        .map_err(|_| {
            let Some(after) = after else {
                let current = store.revision();
                return Failure::expired(format!(
                    "too old resource version: {revision} ({current})"
                ));
            };
            Failure::expired_continue(
                &ContinueToken {
                    revision: None,
                    start: after.to_string(),
                }
                .encode(),
            )
        })
}

/// The revision that a list must show exactly, if any; refuses a future one.
fn revision_asked(call: &Call, continues: bool) -> Result<Option<Revision>, Failure> {
    let params = &call.params;
    let version = params.get("resourceVersion");
    let rule = params.get("resourceVersionMatch");
    let forbidden = |why: &str| {
        Err(Failure::bad_request(format!(
            "resourceVersionMatch: Forbidden: {why}"
        )))
    };
    if params.switch("sendInitialEvents").is_some() {
        return Err(Failure::bad_request(
            "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list",
        ));
    }
    match (version, rule) {
        (_, Some(_)) if continues => {
            return forbidden("resourceVersionMatch is forbidden when continue is provided");
        }
        (None, Some(_)) => {
            return forbidden(
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            );
        }
        (Some("0"), Some("Exact")) => {
            return forbidden(
                "resourceVersionMatch \"Exact\" is forbidden for resourceVersion \"0\"",
            );
        }
        (_, Some(other)) if !matches!(other, "Exact" | "NotOlderThan") => {
            return Err(Failure::bad_request(format!(
                "resourceVersionMatch: Unsupported value: \"{other}\": supported values: \"Exact\", \"NotOlderThan\""
            )));
        }
        (Some(version), _) if continues && version != "0" => {
            return Err(Failure::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        _ => {}
    }
    let Some(version) = version.filter(|version| *version != "0") else {
        return Ok(None);
    };
    let asked = parse_revision(version)?;
    let current = call.server.0.store.revision();
    if asked > current {
        return Err(Failure::too_large_resource_version(
            asked.get(),
            current.get(),
        ));
    }
    Ok((rule == Some("Exact")).then_some(asked))
}

/// Reads a resourceVersion.
pub(crate) fn parse_revision(text: &str) -> Result<Revision, Failure> {
    let number: u64 = text.parse().map_err(|_| {
        Failure::bad_request(format!("resourceVersion: Invalid value: \"{text}\": strconv.ParseUint: parsing \"{text}\": invalid syntax"))
    })?;
    Ok(Revision::from(number))
}

/// The continuation of a list. It is opaque to clients, and cannot leave their prefix.
struct ContinueToken {
    /// None: continue from the current state.
    revision: Option<Revision>,
    /// The key to continue after.
    start: String,
}

impl ContinueToken {
    fn new(revision: Revision, after: &str) -> Self {
        ContinueToken {
            revision: Some(revision),
            start: after.to_string(),
        }
    }

    fn encode(&self) -> String {
        let revision = self.revision.map_or(0, Revision::get);
        let text = json!({"v": "meta.k8s.io/v1", "rv": revision, "start": self.start}).to_string();
        URL_SAFE_NO_PAD.encode(text)
    }

    fn decode(text: &str) -> Result<Self, Failure> {
        let read = || {
            let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
            let value: Value = serde_json::from_slice(&bytes).ok()?;
            let revision = value["rv"]
                .as_u64()
                .filter(|revision| *revision > 0)
                .map(Revision::from);
            Some(ContinueToken {
                revision,
                start: value["start"].as_str()?.to_string(),
            })
        };
        read().ok_or_else(|| {
            Failure::bad_request(
                "continue key is not valid: another server issued it, or it was changed",
            )
        })
    }

    fn after(self, prefix: &str) -> Result<String, Failure> {
        if self.start.starts_with(prefix) {
            return Ok(self.start);
        }
        Err(Failure::bad_request(
            "continue key is not valid: it belongs to another list",
        ))
    }
}
