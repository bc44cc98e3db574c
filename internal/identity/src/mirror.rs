//! The users and tokens in memory. Pure: the directory feeds it with its own writes and with a
//! watch of the Secrets, and carries out the returned deletions.
//!
//! Both come from the same store, but a watch may deliver the state from before the directory's own
//! write. Revisions tell which is newer. A token that was ended here stays ended whatever a watch
//! still delivers, because ids of tokens are never reused.
//!
//! Differs from the controllers' mirrors, which only follow a watch, and from the admissions in
//! `fleet`, which have one kind of entry: here users own tokens, the removal of a user ends them,
//! and sessions may exist without a Secret.

use std::collections::{BTreeMap, BTreeSet};

use crate::second_factor::SecondFactor;
use crate::tokens::{TokenInfo, TokenPurpose};
use crate::user::User;

/// The maximum number of sessions that exist only in memory, while the store accepts no writes. A
/// further session ends the oldest one.
pub(crate) const MEMORY_SESSIONS_MAX: usize = 256;

/// A user with the data for sign-in.
pub(crate) struct KnownUser {
    pub(crate) user: User,
    pub(crate) hash: String,
    pub(crate) factor: Option<SecondFactor>,
    /// The Secret's uid: another uid means another user of the same name.
    pub(crate) uid: Option<String>,
    pub(crate) revision: u64,
}

/// A token with the digest of its secret.
pub(crate) struct KnownToken {
    pub(crate) info: TokenInfo,
    pub(crate) digest: String,
    /// True if the token has a Secret; a session may exist only in memory.
    pub(crate) stored: bool,
    pub(crate) revision: u64,
}

/// Which sessions of a user outlive a change of its stored hash that this server makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeptSessions {
    /// All: the password is the same, hashed again.
    All,
    /// The one with this id: its user changed the password.
    One(String),
}

/// Users and tokens.
#[derive(Default)]
pub(crate) struct UserMirror {
    /// Changes of hashes that this server is writing, by user: the new hash, and the sessions that outlive it. A watch
    /// may deliver the change before the write is acknowledged.
    announced: BTreeMap<String, (String, KeptSessions)>,
    users: BTreeMap<String, KnownUser>,
    tokens: BTreeMap<String, KnownToken>,
    /// Tokens that were ended here; their Secrets may still exist, longer if the store refused to
    /// delete them.
    ended: BTreeSet<String>,
}

/// The state when a list began.
#[derive(Default)]
pub(crate) struct ListStart {
    users: BTreeSet<String>,
    tokens: BTreeSet<String>,
}

/// The content of a list.
#[derive(Default)]
pub(crate) struct ListContent {
    pub(crate) users: BTreeSet<String>,
    pub(crate) tokens: BTreeSet<String>,
}

impl UserMirror {
    pub(crate) fn users(&self) -> impl Iterator<Item = &User> {
        self.users.values().map(|known| &known.user)
    }

    pub(crate) fn user(&self, name: &str) -> Option<&KnownUser> {
        self.users.get(name)
    }

    pub(crate) fn tokens(&self) -> impl Iterator<Item = &TokenInfo> {
        self.tokens.values().map(|known| &known.info)
    }

    pub(crate) fn token(&self, id: &str) -> Option<&KnownToken> {
        self.tokens.get(id)
    }

    /// Stores a user. Returns the tokens that this ends: all of them if it is another user of the
    /// same name, the sessions and links to set a password if the password changed or the user was
    /// disabled.
    pub(crate) fn put_user(&mut self, new: KnownUser) -> Vec<String> {
        let name = new.user.name.clone();
        let (another, password) = match self.users.get(&name) {
            Some(known) if known.revision > new.revision => return Vec::new(),
            Some(known) => (known.uid != new.uid, known.hash != new.hash),
            None => (false, false),
        };
        let kept = match self.announced.get(&name) {
            Some((hash, kept)) if *hash == new.hash => Some(kept.clone()),
            _ => None,
        };
        let disabled = new.user.disabled;
        self.users.insert(name.clone(), new);
        let stays = |info: &TokenInfo| match &kept {
            Some(KeptSessions::All) => true,
            Some(KeptSessions::One(id)) => info.id == *id,
            None => false,
        };
        self.end_where(|info| {
            info.user == name
                && (another
                    || (info.purpose != TokenPurpose::Access
                        && (disabled || (password && !stays(info)))))
        })
    }

    /// Says which sessions outlive a change of a user's hash that is about to be written.
    pub(crate) fn announce(&mut self, name: &str, hash: &str, kept: KeptSessions) {
        let change = (hash.to_owned(), kept);
        self.announced.insert(name.to_owned(), change);
    }

    /// Removes a user as of `revision`, with all its tokens, which are returned.
    pub(crate) fn remove_user(&mut self, name: &str, revision: u64) -> Vec<String> {
        if !self.forget_user(name, revision) {
            return Vec::new();
        }
        self.end_where(|info| info.user == name)
    }

    /// Marks a user as unreadable as of `revision`: the user and its tokens are invalid until it is
    /// readable again.
    pub(crate) fn forget_user(&mut self, name: &str, revision: u64) -> bool {
        let newer = |known: &KnownUser| known.revision > revision;
        if self.users.get(name).is_some_and(newer) {
            return false;
        }
        self.users.remove(name);
        self.announced.remove(name);
        true
    }

    /// Stores a token, unless it was ended here or a newer state of it is known.
    pub(crate) fn put_token(&mut self, token: KnownToken) {
        let newer = |known: &KnownToken| known.revision > token.revision;
        if self.tokens.get(&token.info.id).is_some_and(newer) {
            return;
        }
        if !self.ended.contains(&token.info.id) {
            self.tokens.insert(token.info.id.clone(), token);
        }
    }

    /// Stores a change of a token. Unlike [`UserMirror::put_token`] it brings no token back that was deleted before the
    /// change was acknowledged: a watch delivers the deletion only once.
    pub(crate) fn change_token(&mut self, token: KnownToken) {
        if self.tokens.contains_key(&token.info.id) {
            self.put_token(token);
        }
    }

    /// Stores a session that the store did not accept; ends the oldest such session if there are
    /// too many.
    pub(crate) fn keep_in_memory(&mut self, info: TokenInfo, digest: String) {
        let in_memory = || self.tokens.values().filter(|token| !token.stored);
        if in_memory().count() >= MEMORY_SESSIONS_MAX {
            let oldest = in_memory()
                .min_by_key(|token| token.info.created)
                .map(|token| token.info.id.clone());
            if let Some(oldest) = oldest {
                self.tokens.remove(&oldest);
            }
        }
        self.put_token(KnownToken {
            info,
            digest,
            stored: false,
            revision: 0,
        });
    }

    /// Ends a token; returns true if it has a Secret to delete. None if the token does not exist.
    pub(crate) fn end_token(&mut self, id: &str) -> Option<bool> {
        let token = self.tokens.remove(id)?;
        if token.stored {
            self.ended.insert(id.to_string());
        }
        Some(token.stored)
    }

    /// Removes a token whose Secret is gone or unreadable.
    pub(crate) fn token_gone(&mut self, id: &str) {
        self.ended.remove(id);
        if self.tokens.get(id).is_some_and(|token| token.stored) {
            self.tokens.remove(id);
        }
    }

    /// The state when a list begins.
    pub(crate) fn known(&self) -> ListStart {
        let stored = self.tokens.iter().filter(|(_, token)| token.stored);
        ListStart {
            users: self.users.keys().cloned().collect(),
            tokens: stored.map(|(id, _)| id.clone()).collect(),
        }
    }

    /// After a list: an entry that was known before the list and is not in it is removed. An entry
    /// created while the list was read is not in it either, and stays. Returns the tokens that this
    /// ends.
    pub(crate) fn listed(&mut self, known: &ListStart, listed: &ListContent) -> Vec<String> {
        for id in known.tokens.difference(&listed.tokens) {
            self.token_gone(id);
        }
        (self.ended).retain(|id| listed.tokens.contains(id) || !known.tokens.contains(id));
        let gone: Vec<&String> = known.users.difference(&listed.users).collect();
        let mut ended = Vec::new();
        for name in gone {
            ended.extend(self.remove_user(name, u64::MAX));
        }
        ended
    }

    /// Ends the tokens that satisfy the predicate; returns those with a Secret.
    fn end_where(&mut self, ends: impl Fn(&TokenInfo) -> bool) -> Vec<String> {
        let ids: Vec<String> = self
            .tokens
            .values()
            .filter(|token| ends(&token.info))
            .map(|token| token.info.id.clone())
            .collect();
        let mut stored = Vec::new();
        for id in ids {
            if self.end_token(&id) == Some(true) {
                stored.push(id);
            }
        }
        stored
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use resources::access::UserRole;

    use super::*;

    fn user(name: &str, hash: &str, uid: &str, revision: u64) -> KnownUser {
        KnownUser {
            user: User {
                name: name.to_string(),
                role: UserRole::Member,
                namespaces: None,
                display_name: None,
                email: None,
                disabled: false,
                oidc: None,
                views: Vec::new(),
            },
            hash: hash.to_string(),
            factor: None,
            uid: Some(uid.to_string()),
            revision,
        }
    }

    fn token(id: &str, purpose: TokenPurpose, created: i64) -> TokenInfo {
        TokenInfo {
            id: id.to_string(),
            user: "ann".to_string(),
            label: String::new(),
            purpose,
            created: Timestamp::from_second(created).unwrap(),
            expires: Timestamp::MAX,
            from: Vec::new(),
            replaced_by: None,
            last_used: None,
        }
    }

    fn stored(id: &str, purpose: TokenPurpose) -> KnownToken {
        KnownToken {
            info: token(id, purpose, 0),
            digest: String::new(),
            stored: true,
            revision: 0,
        }
    }

    fn changed(id: &str, label: &str, revision: u64) -> KnownToken {
        let mut token = stored(id, TokenPurpose::Access);
        token.info.label = label.to_string();
        token.revision = revision;
        token
    }

    /// Ann, with an access token and a session.
    fn mirror() -> UserMirror {
        let mut mirror = UserMirror::default();
        mirror.put_user(user("ann", "old", "1", 5));
        mirror.put_token(stored("access", TokenPurpose::Access));
        mirror.put_token(stored("session", TokenPurpose::Session));
        mirror
    }

    fn ids(mirror: &UserMirror) -> Vec<&str> {
        mirror.tokens().map(|info| info.id.as_str()).collect()
    }

    #[test]
    fn a_new_password_ends_sessions_and_another_user_of_the_name_ends_all() {
        let cases = [
            // hash, uid, revision, remaining tokens
            ("old", "1", 6, vec!["access", "session"]),
            ("new", "1", 6, vec!["access"]),
            ("old", "2", 6, vec![]),
            // A watch that delivers the earlier state.
            ("new", "2", 4, vec!["access", "session"]),
        ];
        for (hash, uid, revision, left) in cases {
            let mut mirror = mirror();
            let ended = mirror.put_user(user("ann", hash, uid, revision));
            assert_eq!(ids(&mirror), left, "{hash} {uid} {revision}");
            assert_eq!(ended.len(), 2 - left.len());
            let newest = if revision > 5 { hash } else { "old" };
            assert_eq!(mirror.user("ann").unwrap().hash, newest);
        }
    }

    #[test]
    fn a_deleted_user_takes_its_tokens_along_and_an_unreadable_one_leaves_them() {
        let mut one = mirror();
        assert!(one.remove_user("ann", 4).is_empty(), "from before");
        assert_eq!(ids(&one).len(), 2);
        assert_eq!(one.remove_user("ann", 6), ["access", "session"]);
        assert!(one.user("ann").is_none() && ids(&one).is_empty());
        let mut other = mirror();
        assert!(other.forget_user("ann", 6));
        assert!(other.user("ann").is_none());
        assert_eq!(ids(&other).len(), 2);
    }

    #[test]
    fn sessions_that_were_announced_outlive_a_change_and_a_disabled_user_has_none() {
        for (kept, rest) in [
            (KeptSessions::All, vec!["access", "reset", "session"]),
            (
                KeptSessions::One("session".into()),
                vec!["access", "session"],
            ),
            (KeptSessions::One("other".into()), vec!["access"]),
        ] {
            let mut mirror = mirror();
            mirror.put_token(stored("reset", TokenPurpose::Reset));
            mirror.announce("ann", "new", kept);
            mirror.put_user(user("ann", "new", "1", 6));
            assert_eq!(ids(&mirror), rest);
            // The watch delivers the same change, and later another one.
            mirror.put_user(user("ann", "new", "1", 6));
            assert_eq!(ids(&mirror), rest);
            mirror.put_user(user("ann", "newer", "1", 7));
            assert_eq!(ids(&mirror), ["access"]);
        }
        let mut mirror = mirror();
        let mut disabled = user("ann", "old", "1", 6);
        disabled.user.disabled = true;
        assert_eq!(mirror.put_user(disabled), ["session"]);
        assert_eq!(ids(&mirror), ["access"]);
    }

    #[test]
    fn a_token_that_was_ended_here_is_not_brought_back_by_a_watch() {
        let mut mirror = mirror();
        assert_eq!(mirror.end_token("access"), Some(true));
        assert_eq!(mirror.end_token("access"), None);
        mirror.put_token(stored("access", TokenPurpose::Access));
        assert_eq!(ids(&mirror), ["session"]);
        mirror.token_gone("access");
        mirror.token_gone("session");
        assert!(ids(&mirror).is_empty());
    }

    #[test]
    fn an_older_state_of_a_token_is_ignored_and_a_change_brings_no_deleted_one_back() {
        let mut mirror = mirror();
        let label = |mirror: &UserMirror| mirror.token("access").map(|t| t.info.label.clone());
        for (what, revision, expected) in
            [("new", 7, "new"), ("old", 6, "new"), ("newer", 8, "newer")]
        {
            mirror.put_token(changed("access", what, revision));
            assert_eq!(label(&mirror).as_deref(), Some(expected), "{what}");
        }
        mirror.change_token(changed("access", "changed", 9));
        assert_eq!(label(&mirror).as_deref(), Some("changed"));
        // The watch delivered the deletion before the change's answer came.
        mirror.token_gone("access");
        mirror.change_token(changed("access", "late", 10));
        assert_eq!(label(&mirror), None);
    }

    #[test]
    fn a_list_ends_what_it_lacks_but_nothing_that_came_while_it_was_read() {
        let mut mirror = mirror();
        mirror.keep_in_memory(token("memory", TokenPurpose::Session, 0), String::new());
        let known = mirror.known();
        mirror.put_user(user("bob", "h", "3", 9));
        mirror.put_token(stored("new", TokenPurpose::Access));
        let listed = ListContent {
            users: ["ann".to_string()].into(),
            tokens: ["session".to_string()].into(),
        };
        assert!(mirror.listed(&known, &listed).is_empty());
        assert_eq!(ids(&mirror), ["memory", "new", "session"]);
        assert!(mirror.user("bob").is_some());
        let known = mirror.known();
        assert_eq!(mirror.listed(&known, &ListContent::default()).len(), 0);
        assert!(mirror.user("ann").is_none());
        assert!(ids(&mirror).is_empty(), "all are ann's");
    }

    #[test]
    fn sessions_in_memory_are_bounded_and_the_oldest_goes() {
        let mut mirror = mirror();
        for n in 0..=MEMORY_SESSIONS_MAX {
            let created = i64::try_from(n).unwrap();
            let info = token(&format!("m{n}"), TokenPurpose::Session, created);
            mirror.keep_in_memory(info, String::new());
        }
        assert_eq!(mirror.tokens().count(), 2 + MEMORY_SESSIONS_MAX);
        assert!(mirror.token("m0").is_none());
        assert!(mirror.token("m1").is_some());
        assert_eq!(mirror.end_token("m1"), Some(false));
    }
}
