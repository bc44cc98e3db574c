//! A user: its record, the changes to it, and the checks of their fields.

use std::collections::BTreeSet;

use resources::access::{Caller, UserRole};
use serde::{Deserialize, Serialize};

use crate::error::IdentityError;
use crate::limits::{DISPLAY_NAME_MAX, EMAIL_MAX, USER_NAMESPACES_MAX};

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
