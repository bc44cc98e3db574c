//! The users and tokens: Secrets in `muster-system`, mirrored in memory.
//!
//! The mirror is this process's own: the server is the only writer of these Secrets. A
//! write goes to the resource API first and to the mirror when it was acknowledged.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams};
use parking_lot::RwLock;
use resources::access::{Caller, Role};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use crate::IdentityError;
use crate::passwords;
use crate::tokens::{self, TokenInfo, TokenPurpose};

const NAMESPACE: &str = "muster-system";
const USER_TYPE: &str = "muster.io/user";
const TOKEN_TYPE: &str = "muster.io/token";
const RECORD: &str = "record";
const HASH: &str = "hash";

/// A user as asked for.
#[derive(Clone, Debug)]
pub struct NewUser {
    /// The name to sign in with.
    pub name: String,
    /// The first password.
    pub password: String,
    /// What the user may do.
    pub role: Role,
    /// Where: all namespaces when none are listed.
    pub namespaces: Option<Vec<String>>,
}

/// A user as known.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct User {
    /// The name to sign in with.
    pub name: String,
    /// What the user may do.
    pub role: Role,
    /// Where: all namespaces when none are listed.
    pub namespaces: Option<Vec<String>>,
}

impl User {
    /// This user as the caller of a request.
    pub fn caller(&self) -> Caller {
        Caller {
            user: self.name.clone(),
            groups: vec!["system:authenticated".to_string()],
            role: self.role,
            namespaces: self.namespaces.clone(),
        }
    }
}

/// Refuses names and passwords that can't be used.
pub(crate) fn check_new(user: &NewUser) -> Result<(), IdentityError> {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let name = &user.name;
    let good = (1..=40).contains(&name.len())
        && name.chars().all(|c| inner(c) || c == '-')
        && name.starts_with(inner)
        && name.ends_with(inner);
    if !good {
        return Err(IdentityError::BadName { name: name.clone() });
    }
    passwords::check_strength(&user.password)
}

#[derive(Default)]
struct Mirror {
    users: BTreeMap<String, (User, String)>,
    tokens: BTreeMap<String, (TokenInfo, String)>,
}

pub(crate) struct Directory {
    secrets: Api<Secret>,
    mirror: RwLock<Mirror>,
}

fn user_secret(name: &str) -> String {
    format!("user-{name}")
}

fn token_secret(id: &str) -> String {
    format!("token-{id}")
}

fn secret_of<T: Serialize>(name: String, kind: &str, record: &T, hash: &str) -> Secret {
    let record = serde_json::to_vec(record).expect("a plain record is always JSON");
    Secret {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(NAMESPACE.to_string()),
            ..ObjectMeta::default()
        },
        type_: Some(kind.to_string()),
        data: Some(BTreeMap::from([
            (RECORD.to_string(), ByteString(record)),
            (HASH.to_string(), ByteString(hash.as_bytes().to_vec())),
        ])),
        ..Secret::default()
    }
}

fn read_secret<T: for<'a> Deserialize<'a>>(secret: &Secret) -> Result<(T, String), IdentityError> {
    let damaged = |reason: String| IdentityError::Damaged {
        secret: secret.metadata.name.clone().unwrap_or_default(),
        reason,
    };
    let data = secret
        .data
        .as_ref()
        .ok_or_else(|| damaged("it has no data".into()))?;
    let part = |key: &str| {
        data.get(key)
            .ok_or_else(|| damaged(format!("data.{key} is missing")))
    };
    let record = serde_json::from_slice(&part(RECORD)?.0).map_err(|e| damaged(e.to_string()))?;
    let hash = String::from_utf8(part(HASH)?.0.clone()).map_err(|e| damaged(e.to_string()))?;
    Ok((record, hash))
}

impl Directory {
    pub(crate) async fn load(client: kube::Client) -> Result<Self, IdentityError> {
        let secrets: Api<Secret> = Api::namespaced(client, NAMESPACE);
        let mut mirror = Mirror::default();
        for secret in secrets.list(&ListParams::default()).await? {
            match secret.type_.as_deref() {
                Some(USER_TYPE) => {
                    let (user, hash) = read_secret::<User>(&secret)?;
                    mirror.users.insert(user.name.clone(), (user, hash));
                }
                Some(TOKEN_TYPE) => {
                    let (info, hash) = read_secret::<TokenInfo>(&secret)?;
                    mirror.tokens.insert(info.id.clone(), (info, hash));
                }
                _ => {}
            }
        }
        Ok(Directory {
            secrets,
            mirror: RwLock::new(mirror),
        })
    }

    pub(crate) fn users(&self) -> Vec<User> {
        self.mirror
            .read()
            .users
            .values()
            .map(|(user, _)| user.clone())
            .collect()
    }

    pub(crate) fn tokens(&self) -> Vec<TokenInfo> {
        self.mirror
            .read()
            .tokens
            .values()
            .map(|(info, _)| info.clone())
            .collect()
    }

    pub(crate) fn password_hash(&self, user: &str) -> Option<String> {
        self.mirror
            .read()
            .users
            .get(user)
            .map(|(_, hash)| hash.clone())
    }

    pub(crate) async fn insert_user(
        &self,
        new: NewUser,
        hash: String,
    ) -> Result<User, IdentityError> {
        let user = User {
            name: new.name,
            role: new.role,
            namespaces: new.namespaces,
        };
        let secret = secret_of(user_secret(&user.name), USER_TYPE, &user, &hash);
        match self.secrets.create(&PostParams::default(), &secret).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                return Err(IdentityError::UserExists { name: user.name });
            }
            Err(error) => return Err(error.into()),
        }
        self.mirror
            .write()
            .users
            .insert(user.name.clone(), (user.clone(), hash));
        Ok(user)
    }

    pub(crate) async fn set_password(&self, name: &str, hash: String) -> Result<(), IdentityError> {
        let user = self
            .mirror
            .read()
            .users
            .get(name)
            .map(|(user, _)| user.clone());
        let user = user.ok_or_else(|| IdentityError::NoSuchUser {
            name: name.to_string(),
        })?;
        let secret = secret_of(user_secret(name), USER_TYPE, &user, &hash);
        self.secrets
            .replace(&user_secret(name), &PostParams::default(), &secret)
            .await?;
        self.mirror
            .write()
            .users
            .insert(name.to_string(), (user, hash));
        Ok(())
    }

    pub(crate) async fn insert_token(
        &self,
        info: TokenInfo,
        digest: String,
    ) -> Result<(), IdentityError> {
        if !self.mirror.read().users.contains_key(&info.user) {
            return Err(IdentityError::NoSuchUser { name: info.user });
        }
        let secret = secret_of(token_secret(&info.id), TOKEN_TYPE, &info, &digest);
        self.secrets.create(&PostParams::default(), &secret).await?;
        self.mirror
            .write()
            .tokens
            .insert(info.id.clone(), (info, digest));
        Ok(())
    }

    pub(crate) async fn remove_token(&self, id: &str) -> Result<(), IdentityError> {
        if !self.mirror.read().tokens.contains_key(id) {
            return Err(IdentityError::NoSuchToken { id: id.to_string() });
        }
        match self
            .secrets
            .delete(&token_secret(id), &DeleteParams::default())
            .await
        {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
        self.mirror.write().tokens.remove(id);
        Ok(())
    }

    pub(crate) async fn end_sessions(&self, user: &str) -> Result<(), IdentityError> {
        for token in self.tokens() {
            if token.user == user && token.purpose == TokenPurpose::Session {
                self.remove_token(&token.id).await?;
            }
        }
        Ok(())
    }

    pub(crate) fn find_token(&self, secret: &str, now: Timestamp) -> Option<(TokenInfo, User)> {
        let offered = tokens::digest(secret);
        let mirror = self.mirror.read();
        let (info, stored) = mirror.tokens.get(tokens::id_of(secret)?)?;
        let same: bool = offered.as_bytes().ct_eq(stored.as_bytes()).into();
        let (user, _) = mirror.users.get(&info.user)?;
        (same && info.expires > now).then(|| (info.clone(), user.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> NewUser {
        NewUser {
            name: name.to_string(),
            password: "long enough".to_string(),
            role: Role::Member,
            namespaces: None,
        }
    }

    #[test]
    fn user_names_are_dns_labels_of_at_most_40_characters() {
        for good in ["a", "ann", "ann-2", "0x"] {
            assert!(check_new(&named(good)).is_ok(), "{good}");
        }
        for bad in ["", "Ann", "-ann", "ann-", "a b", "ä", &"x".repeat(41)] {
            assert!(check_new(&named(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_user_survives_being_stored_and_a_damaged_one_is_named() {
        let user = User {
            name: "ann".to_string(),
            role: Role::Lead,
            namespaces: Some(vec!["vision".to_string()]),
        };
        let mut secret = secret_of(user_secret("ann"), USER_TYPE, &user, "hash");
        let (read, hash) = read_secret::<User>(&secret).unwrap();
        assert_eq!((read.name.as_str(), hash.as_str()), ("ann", "hash"));
        assert_eq!(read.namespaces, user.namespaces);
        secret.data = None;
        let error = read_secret::<User>(&secret).unwrap_err().to_string();
        assert!(error.contains("\"user-ann\""), "{error}");
    }
}
