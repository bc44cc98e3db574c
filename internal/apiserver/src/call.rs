//! Owns what is known about a request once its path, caller and headers have been read. Does nothing with it.

use std::borrow::Cow;

use http::{HeaderMap, header};
use resources::access::Caller;
use resources::registry::Kind;

use crate::negotiate::Form;
use crate::request::Params;
use crate::server::ApiServer;
use crate::status::Failure;

/// The longest name of a field manager that is kept, in characters.
const MAX_MANAGER: usize = 128;

/// One request for a resource.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) server: ApiServer,
    pub(crate) caller: Caller,
    pub(crate) kind: &'static Kind,
    pub(crate) namespace: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) params: Params,
    pub(crate) headers: HeaderMap,
    pub(crate) form: Form,
    pub(crate) dry_run: bool,
    /// Whether lists and watches leave field managers out; see [`crate::client::InProcess`].
    pub(crate) without_managers: bool,
}

impl Call {
    /// The object's name; the dispatcher calls verbs on objects only with one.
    pub(crate) fn object_name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// The store's key of the object that the path names.
    pub(crate) fn key(&self) -> String {
        self.kind.key(self.namespace.as_deref(), self.object_name())
    }

    /// The same call, or one that writes nothing.
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

    /// Who writes, as field management knows it: the `fieldManager` parameter or the program's name.
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
