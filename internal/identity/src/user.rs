//! A user.

use resources::access::{Caller, UserRole};
use serde::{Deserialize, Serialize};

/// An existing user.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct User {
    /// The name for signing in.
    pub name: String,
    /// The user's role.
    pub role: UserRole,
    /// The namespaces of the role: all if the list is empty.
    pub namespaces: Option<Vec<String>>,
}

impl User {
    /// This user as the caller of a request.
    pub fn caller(&self) -> Caller {
        Caller::user(&self.name, self.role.groups(self.namespaces.as_deref()))
    }
}
