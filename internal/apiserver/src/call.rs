//! Owns a request's attributes once its path, caller and headers have been read. Executes nothing.

use std::borrow::Cow;

use http::{HeaderMap, header};
use hyper::upgrade::OnUpgrade;
use resources::access::{Caller, Credential, RequestAttributes};
use resources::registry::Kind;

use crate::audit::AuditNotes;
use crate::negotiate::{self, ResponseFormat};
use crate::request::Params;
use crate::server::ApiServer;
use crate::status::Failure;

/// The maximum length of a field manager's name, in characters.
const MAX_MANAGER: usize = 128;

/// One request for a resource.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) server: ApiServer,
    pub(crate) caller: Caller,
    /// The caller's credential, if it may end before the request does.
    pub(crate) credential: Option<Credential>,
    pub(crate) kind: &'static Kind,
    pub(crate) namespace: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) params: Params,
    pub(crate) headers: HeaderMap,
    pub(crate) form: ResponseFormat,
    pub(crate) dry_run: bool,
    /// True if lists and watches omit field managers; see [`crate::client::InProcess`].
    pub(crate) without_managers: bool,
    /// The annotations of its audit event.
    pub(crate) audit: AuditNotes,
    /// The connection, if the client asks to continue on it with another protocol.
    pub(crate) upgrade: Option<OnUpgrade>,
}

impl Call {
    /// A call on a stored kind for a request whose path names a resource that is not stored: no dry run, no negotiated
    /// form, and no object yet.
    pub(crate) fn on_stored(
        server: &ApiServer,
        caller: &Caller,
        kind: &'static Kind,
        params: Params,
        headers: &HeaderMap,
    ) -> Call {
        Call {
            server: server.clone(),
            caller: caller.clone(),
            credential: None,
            kind,
            namespace: None,
            name: None,
            dry_run: false,
            params,
            headers: headers.clone(),
            form: negotiate::PLAIN,
            without_managers: false,
            audit: AuditNotes::default(),
            upgrade: None,
        }
    }

    /// The object's name; the dispatcher calls object verbs only if the path has one.
    pub(crate) fn object_name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// The store's key of the object in the path.
    pub(crate) fn key(&self) -> String {
        self.kind.key(self.namespace.as_deref(), self.object_name())
    }

    /// The same call as a dry run or not.
    pub(crate) fn dry(&self, dry: bool) -> Cow<'_, Call> {
        if dry && !self.dry_run {
            Cow::Owned(Call {
                dry_run: true,
                ..self.clone()
            })
        } else {
            Cow::Borrowed(self)
        }
    }

    /// True if the caller may act in this user's name.
    pub(crate) fn impersonates(&self, user: &str) -> bool {
        let wanted = RequestAttributes {
            verb: "impersonate",
            resource: "users",
            name: Some(user),
            ..RequestAttributes::default()
        };
        self.server.permits(&self.caller, &wanted)
    }

    /// The field manager: the `fieldManager` parameter or the program's name.
    pub(crate) fn manager(&self) -> Result<String, Failure> {
        if let Some(name) = self.params.get("fieldManager") {
            if name.chars().count() > MAX_MANAGER {
                let why =
                    format!("fieldManager: Too long: may not be more than {MAX_MANAGER} bytes");
                return Err(Failure::bad_request(why));
            }
            return Ok(name.to_string());
        }
        let agent = self
            .headers
            .get(header::USER_AGENT)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let program = agent.split('/').next().unwrap_or_default();
        let name = if program.is_empty() {
            self.caller.user.as_str()
        } else {
            program
        };
        Ok(name.chars().take(MAX_MANAGER).collect())
    }
}
