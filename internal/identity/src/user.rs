//! A user: its record, the changes to it, and the checks of their fields.

use std::collections::BTreeSet;

use resources::access::{Caller, UserRole};
use serde::{Deserialize, Serialize};

use crate::error::IdentityError;
use crate::limits::{
    DISPLAY_NAME_MAX, EMAIL_MAX, USER_NAMESPACES_MAX, VIEW_NAME_MAX, VIEW_QUERY_MAX,
    VIEWS_PER_USER_MAX,
};

/// Who a user is at its provider, and the teams that the mapping gave it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OidcLink {
    /// The provider's URL.
    pub issuer: String,
    /// The user's name at the provider, which is never given to another user.
    pub subject: String,
    /// The teams that the mapping gave at the last sign-in.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub teams: BTreeSet<String>,
}

/// A list of the web UI with the filters and the order that a user gave a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedView {
    /// The name, which no other view of the user has.
    pub name: String,
    /// The filters and the order, as the query of the list's address.
    pub query: String,
}

/// An existing user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct User {
    /// The name for signing in.
    pub name: String,
    /// The user's role.
    pub role: UserRole,
    /// The namespaces of the role: all if the list is absent, none if it is empty.
    pub namespaces: Option<Vec<String>>,
    /// The name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// The e-mail address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// True if the user's credentials are refused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
    /// Set if the user signs in by OpenID Connect, and has no password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oidc: Option<OidcLink>,
    /// The views of the list of jobs that the user saved, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub views: Vec<SavedView>,
}

/// A change of a user's record: only the present fields change. An empty text removes a field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UserChange {
    /// The role.
    pub role: Option<UserRole>,
    /// The namespaces of the role; with an empty list it holds nowhere.
    pub namespaces: Option<Vec<String>>,
    /// True to let the role hold in every namespace.
    pub all_namespaces: Option<bool>,
    /// The name for people.
    pub display_name: Option<String>,
    /// The e-mail address.
    pub email: Option<String>,
    /// Whether the user's credentials are refused.
    pub disabled: Option<bool>,
}

impl User {
    /// This user as the caller of a request.
    pub fn caller(&self) -> Caller {
        Caller::user(&self.name, self.role.groups(self.namespaces.as_deref()))
    }

    /// True if the user is an administrator that may sign in.
    pub fn is_active_admin(&self) -> bool {
        self.role == UserRole::Admin && !self.disabled
    }

    /// True if the user is an administrator that may sign in also while the identity provider is down, or gives the role
    /// no longer.
    pub(crate) fn is_lasting_admin(&self) -> bool {
        self.is_active_admin() && self.oidc.is_none()
    }

    /// The record with a view saved under its name, in place of an earlier one of that name.
    pub(crate) fn with_view(&self, view: SavedView) -> Result<User, IdentityError> {
        let mut next = self.without_view(&view.name);
        next.views.push(view);
        next.views.sort_by(|a, b| a.name.cmp(&b.name));
        next.check()?;
        Ok(next)
    }

    /// The record without the view of this name.
    pub(crate) fn without_view(&self, name: &str) -> User {
        let mut next = self.clone();
        next.views.retain(|view| view.name != name);
        next
    }

    /// The record after a change; refuses fields that are out of bounds.
    pub(crate) fn changed(&self, change: UserChange) -> Result<User, IdentityError> {
        let mut next = self.clone();
        if let Some(role) = change.role {
            next.role = role;
        }
        if let Some(namespaces) = change.namespaces {
            next.namespaces = Some(namespaces);
        }
        if change.all_namespaces == Some(true) {
            next.namespaces = None;
        }
        if let Some(name) = change.display_name {
            next.display_name = (!name.is_empty()).then_some(name);
        }
        if let Some(email) = change.email {
            next.email = (!email.is_empty()).then_some(email);
        }
        if let Some(disabled) = change.disabled {
            next.disabled = disabled;
        }
        next.check()?;
        Ok(next)
    }

    /// Refuses fields that are out of bounds.
    pub(crate) fn check(&self) -> Result<(), IdentityError> {
        let bad = |field, value: &str, valid| IdentityError::BadField {
            field,
            value: value.chars().take(80).collect(),
            valid,
        };
        if !is_dns_label(&self.name, 40) {
            return Err(IdentityError::BadName {
                name: self.name.clone(),
            });
        }
        if let Some(name) = &self.display_name
            && (name.len() > DISPLAY_NAME_MAX || name.chars().any(char::is_control))
        {
            let valid = "use at most 128 bytes without control characters".to_owned();
            return Err(bad("displayName", name, valid));
        }
        if let Some(email) = &self.email
            && !is_email(email)
        {
            let valid =
                format!("use one address such as ann@example.org, of at most {EMAIL_MAX} bytes");
            return Err(bad("email", email, valid));
        }
        let namespaces = self.namespaces.as_deref().unwrap_or_default();
        if namespaces.len() > USER_NAMESPACES_MAX {
            let valid = format!("use at most {USER_NAMESPACES_MAX} namespaces");
            return Err(bad(
                "namespaces",
                &format!("{} names", namespaces.len()),
                valid,
            ));
        }
        if let Some(wrong) = namespaces.iter().find(|name| !is_dns_label(name, 63)) {
            let valid = "use names of namespaces: lower-case letters, digits and '-'".to_owned();
            return Err(bad("namespaces", wrong, valid));
        }
        self.check_views(bad)
    }

    fn check_views(
        &self,
        bad: impl Fn(&'static str, &str, String) -> IdentityError,
    ) -> Result<(), IdentityError> {
        if self.views.len() > VIEWS_PER_USER_MAX {
            let valid = format!("keep at most {VIEWS_PER_USER_MAX} views; remove one first");
            return Err(bad("views", &format!("{} views", self.views.len()), valid));
        }
        for view in &self.views {
            let length = view.name.chars().count();
            let odd = view.name.chars().any(char::is_control) || view.name.trim() != view.name;
            if !(1..=VIEW_NAME_MAX).contains(&length) || odd {
                let valid = format!("use 1 to {VIEW_NAME_MAX} characters on one line");
                return Err(bad("name", &view.name, valid));
            }
            if view.query.len() > VIEW_QUERY_MAX {
                let valid = format!("use filters of at most {VIEW_QUERY_MAX} bytes");
                return Err(bad("view", &view.query, valid));
            }
        }
        Ok(())
    }
}

/// True for lower-case letters, digits and inner dashes (RFC 1123), at most `longest`.
fn is_dns_label(name: &str, longest: usize) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=longest).contains(&name.len())
        && name.chars().all(|c| inner(c) || c == '-')
        && name.starts_with(inner)
        && name.ends_with(inner)
}

pub(crate) fn is_email(text: &str) -> bool {
    let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '<' | '>' | ',' | '"');
    text.len() <= EMAIL_MAX
        && !text.contains(odd)
        && text
            .split_once('@')
            .is_some_and(|(who, host)| !who.is_empty() && !host.is_empty() && !host.contains('@'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ann() -> User {
        User {
            name: "ann".to_string(),
            role: UserRole::Member,
            namespaces: Some(vec!["team-a".to_string()]),
            display_name: None,
            email: None,
            disabled: false,
            oidc: None,
            views: Vec::new(),
        }
    }

    #[test]
    fn a_change_replaces_the_present_fields_and_empties_remove() {
        let change = UserChange {
            email: Some("ann@example.org".to_string()),
            disabled: Some(true),
            ..UserChange::default()
        };
        let next = ann().changed(change).unwrap();
        assert_eq!(next.email.as_deref(), Some("ann@example.org"));
        assert!(next.disabled && next.namespaces == ann().namespaces);
        let none = UserChange {
            email: Some(String::new()),
            namespaces: Some(Vec::new()),
            ..UserChange::default()
        };
        let next = next.changed(none).unwrap();
        assert_eq!((&next.email, &next.namespaces), (&None, &Some(Vec::new())));
        assert_eq!(
            next.caller().groups,
            ["muster:users", "system:authenticated"]
        );
        let all = UserChange {
            all_namespaces: Some(true),
            ..UserChange::default()
        };
        let next = next.changed(all).unwrap();
        assert_eq!(next.namespaces, None);
        assert!(next.caller().is_in("muster:member"));
    }

    #[test]
    fn fields_are_taken_to_their_bounds_and_refused_by_name() {
        let refused = |change: UserChange| ann().changed(change).map_err(|e| e.to_string());
        let named = |bytes: usize| UserChange {
            display_name: Some("x".repeat(bytes)),
            ..UserChange::default()
        };
        assert!(refused(named(DISPLAY_NAME_MAX)).is_ok());
        assert!(
            refused(named(DISPLAY_NAME_MAX + 1))
                .unwrap_err()
                .starts_with("displayName: ")
        );
        let mail = |text: String| UserChange {
            email: Some(text),
            ..UserChange::default()
        };
        let longest = format!("{}@b", "a".repeat(EMAIL_MAX - 2));
        assert!(refused(mail(longest.clone())).is_ok());
        for wrong in [
            format!("a{longest}"),
            "ann".into(),
            "a@b@c".into(),
            "a b@c".into(),
            "@b".into(),
        ] {
            assert!(refused(mail(wrong)).unwrap_err().starts_with("email: "));
        }
        let within = |count: usize| UserChange {
            namespaces: Some((0..count).map(|n| format!("n{n}")).collect()),
            ..UserChange::default()
        };
        assert!(refused(within(USER_NAMESPACES_MAX)).is_ok());
        assert!(refused(within(USER_NAMESPACES_MAX + 1)).is_err());
        let wrong = UserChange {
            namespaces: Some(vec!["Team A".to_string()]),
            ..UserChange::default()
        };
        assert!(refused(wrong).unwrap_err().contains("\"Team A\""));
    }

    #[test]
    fn views_are_kept_by_name_to_their_bounds() {
        let view = |name: &str, query: &str| SavedView {
            name: name.to_string(),
            query: query.to_string(),
        };
        let one = ann().with_view(view("mine", "whose=mine")).unwrap();
        let two = one.with_view(view("failed", "state=Failed")).unwrap();
        let again = two.with_view(view("mine", "whose=team")).unwrap();
        let queries: Vec<&str> = again.views.iter().map(|view| view.query.as_str()).collect();
        assert_eq!(queries, ["state=Failed", "whose=team"]);
        assert_eq!(again.without_view("failed").without_view("mine"), ann());
        let text = serde_json::to_string(&again).unwrap();
        assert_eq!(serde_json::from_str::<User>(&text).unwrap(), again);

        for wrong in ["", " a", "a\nb", &"x".repeat(VIEW_NAME_MAX + 1)] {
            let error = ann().with_view(view(wrong, "")).unwrap_err().to_string();
            assert!(error.starts_with("name: "), "{wrong:?}: {error}");
        }
        let longest = "q".repeat(VIEW_QUERY_MAX);
        assert!(ann().with_view(view("a", &longest)).is_ok());
        assert!(ann().with_view(view("a", &format!("{longest}q"))).is_err());
        let mut full = ann();
        for number in 0..VIEWS_PER_USER_MAX {
            full = full.with_view(view(&format!("v{number}"), "")).unwrap();
        }
        let error = full
            .with_view(view("one more", ""))
            .unwrap_err()
            .to_string();
        assert!(error.contains("remove one first"), "{error}");
        assert!(full.with_view(view("v0", "q=x")).is_ok());
    }

    #[test]
    fn a_record_from_before_these_fields_is_read_and_written_without_them() {
        let old = r#"{"name":"ann","role":"member","namespaces":["team-a"]}"#;
        let user: User = serde_json::from_str(old).unwrap();
        assert_eq!(user, ann());
        assert_eq!(serde_json::to_string(&user).unwrap(), old);
    }

    #[test]
    fn user_names_are_dns_labels_of_at_most_40_characters() {
        let named = |name: &str| User {
            name: name.to_string(),
            ..ann()
        };
        for good in ["a", "ann", "ann-2", "0x", &"x".repeat(40)] {
            assert!(named(good).check().is_ok(), "{good}");
        }
        for bad in ["", "Ann", "-ann", "ann-", "a b", "ä", &"x".repeat(41)] {
            assert!(named(bad).check().is_err(), "{bad}");
        }
    }
}
