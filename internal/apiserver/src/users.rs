//! Owns what the API asks about users, which another crate manages: their tokens and their groups.

use resources::access::Caller;

/// Finds the caller of a bearer token.
type BearerOf = dyn Fn(&str) -> Option<Caller> + Send + Sync;
/// Finds the groups of a user.
type GroupsOf = dyn Fn(&str) -> Vec<String> + Send + Sync;

/// The users that another crate manages.
pub struct Users {
    /// The caller of a bearer token, for TokenReviews.
    pub bearer: Box<BearerOf>,
    /// The groups of a user that can sign in: none for names without a record. Impersonating a user
    /// without groups in the headers uses these groups.
    pub groups: Box<GroupsOf>,
}
