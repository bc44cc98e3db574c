//! The users and tokens: Secrets in `muster-system`, mirrored in memory.
//!
//! The directory's own writes go to the resource API first and to the mirror after they were
//! acknowledged. A watch updates the mirror after other clients' writes (for example `kubectl`).

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Event, Secret};
use kube::Api;
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use parking_lot::{Mutex, RwLock};
use resources::access::UserRole;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use supervisor::{LoopEnd, SetAside, contained};
use tokio::sync::Notify;

use crate::error::IdentityError;
use crate::last_uses::LastUses;
use crate::mirror::{KeptSessions, KnownToken, KnownUser, ListContent, ListStart, UserMirror};
use crate::second_factor::SecondFactor;
use crate::tokens::{self, TokenInfo};
use crate::user::User;

mod token_writes;

pub(crate) use token_writes::write_last_uses;

const NAMESPACE: &str = "muster-system";
const USER_TYPE: &str = "muster.io/user";
const TOKEN_TYPE: &str = "muster.io/token";
const USER_PREFIX: &str = "user-";
const TOKEN_PREFIX: &str = "token-";
const RECORD: &str = "record";
const HASH: &str = "hash";
const FACTOR: &str = "second-factor";
/// The time of a token's last use, apart from its record: a write of one never changes the other.
const LAST_USED: &str = "last-used";

/// A new user.
#[derive(Clone, Debug)]
pub struct NewUser {
    /// The record.
    pub user: User,
    /// The first password; without one the user sets it by a link.
    pub password: Option<String>,
}

impl NewUser {
    /// A user with this role everywhere, without a password.
    pub fn new(name: &str, role: UserRole) -> NewUser {
        NewUser {
            user: User {
                name: name.to_owned(),
                role,
                namespaces: None,
                display_name: None,
                email: None,
                disabled: false,
                oidc: None,
                views: Vec::new(),
            },
            password: None,
        }
    }
}

/// The users and tokens, and the client of their Secrets.
pub(crate) struct UserDirectory {
    secrets: Api<Secret>,
    events: Api<Event>,
    mirror: RwLock<UserMirror>,
    /// The unreadable Secrets, by name, with the revision that was reported.
    damaged: Mutex<BTreeMap<String, u64>>,
    last_uses: Mutex<LastUses>,
    /// Notified when a last use has to be written.
    use_due: Arc<Notify>,
}

/// The meaning of a Secret.
enum SecretContent {
    User(KnownUser),
    Token(KnownToken),
    /// A user or a token that cannot be read.
    Damaged(IdentityError),
    /// A Secret of another type.
    Other,
}

/// What becomes of a user's second factor when its Secret is written.
enum FactorWrite {
    Keep,
    /// It is removed if there is none.
    Replace(Option<SecondFactor>),
}

fn user_secret(name: &str) -> String {
    format!("{USER_PREFIX}{name}")
}

fn token_secret(id: &str) -> String {
    format!("{TOKEN_PREFIX}{id}")
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

/// The Secret of a user.
fn secret_of_user(user: &User, hash: &str, factor: Option<&SecondFactor>) -> Secret {
    let mut secret = secret_of(user_secret(&user.name), USER_TYPE, user, hash);
    if let Some(factor) = factor {
        let factor = serde_json::to_vec(factor).expect("a plain record is always JSON");
        let data = secret.data.get_or_insert_default();
        data.insert(FACTOR.to_string(), ByteString(factor));
    }
    secret
}

/// The second factor in a user's Secret. A damaged one is an error, and not a missing one.
fn read_factor(secret: &Secret) -> Result<Option<SecondFactor>, IdentityError> {
    let Some(bytes) = secret.data.as_ref().and_then(|data| data.get(FACTOR)) else {
        return Ok(None);
    };
    let broken = |reason: String| damaged(secret, format!("data.{FACTOR}: {reason}"));
    let factor: SecondFactor =
        serde_json::from_slice(&bytes.0).map_err(|error| broken(error.to_string()))?;
    match factor.secret() {
        Some(_) => Ok(Some(factor)),
        None => Err(broken("it has no secret in base32".to_owned())),
    }
}

/// The stored time of a token's last use. One that cannot be read does not make the token unreadable.
fn read_last_used(secret: &Secret) -> Option<Timestamp> {
    let bytes = secret.data.as_ref()?.get(LAST_USED)?;
    std::str::from_utf8(&bytes.0).ok()?.parse().ok()
}

fn read_user(secret: &Secret) -> Result<(User, String, Option<SecondFactor>), IdentityError> {
    let (user, hash) = read_secret(secret)?;
    Ok((user, hash, read_factor(secret)?))
}

fn read_secret<T: for<'a> Deserialize<'a>>(secret: &Secret) -> Result<(T, String), IdentityError> {
    let data = secret
        .data
        .as_ref()
        .ok_or_else(|| damaged(secret, "it has no data".into()))?;
    let part = |key: &str| {
        data.get(key)
            .ok_or_else(|| damaged(secret, format!("data.{key} is missing")))
    };
    let record =
        serde_json::from_slice(&part(RECORD)?.0).map_err(|e| damaged(secret, e.to_string()))?;
    let hash =
        String::from_utf8(part(HASH)?.0.clone()).map_err(|e| damaged(secret, e.to_string()))?;
    Ok((record, hash))
}

fn damaged(secret: &Secret, reason: String) -> IdentityError {
    IdentityError::Damaged {
        secret: name_of(secret).to_string(),
        reason,
    }
}

fn name_of(secret: &Secret) -> &str {
    secret.metadata.name.as_deref().unwrap_or_default()
}

/// Muster's own API numbers revisions; 0 if a revision is not a number, so that any other one is
/// newer.
fn revision_of(secret: &Secret) -> u64 {
    let version = secret.metadata.resource_version.as_deref();
    version
        .and_then(|version| version.parse().ok())
        .unwrap_or_default()
}

/// A record is valid only in the Secret that is named after it, so that no other Secret can replace
/// it.
fn read(secret: &Secret) -> SecretContent {
    let misnamed = |name: &str| {
        let other = name != name_of(secret);
        other.then(|| damaged(secret, format!("its record is of {name:?}")))
    };
    match secret.type_.as_deref() {
        Some(USER_TYPE) => match read_user(secret) {
            Ok((user, hash, factor)) => match misnamed(&user_secret(&user.name)) {
                Some(error) => SecretContent::Damaged(error),
                None => SecretContent::User(KnownUser {
                    user,
                    hash,
                    factor,
                    uid: secret.metadata.uid.clone(),
                    revision: revision_of(secret),
                }),
            },
            Err(error) => SecretContent::Damaged(error),
        },
        Some(TOKEN_TYPE) => match read_secret::<TokenInfo>(secret) {
            Ok((mut info, digest)) => match misnamed(&token_secret(&info.id)) {
                Some(error) => SecretContent::Damaged(error),
                None => {
                    info.last_used = read_last_used(secret);
                    SecretContent::Token(KnownToken {
                        info,
                        digest,
                        stored: true,
                        revision: revision_of(secret),
                    })
                }
            },
            Err(error) => SecretContent::Damaged(error),
        },
        _ => SecretContent::Other,
    }
}

/// True if the store accepts no writes now, as on a full disk.
pub(crate) fn takes_nothing(error: &IdentityError) -> bool {
    matches!(error, IdentityError::Store(error)
        if matches!(&**error, kube::Error::Api(status) if matches!(status.code, 503 | 507)))
}

impl UserDirectory {
    /// Reads all users and tokens. An unreadable Secret is skipped and reported in the log and in
    /// an event; it does not affect other users.
    pub(crate) async fn load(client: kube::Client) -> Result<Self, IdentityError> {
        let directory = UserDirectory {
            secrets: Api::namespaced(client.clone(), NAMESPACE),
            events: Api::namespaced(client, NAMESPACE),
            mirror: RwLock::default(),
            damaged: Mutex::default(),
            last_uses: Mutex::default(),
            use_due: Arc::default(),
        };
        for secret in directory.secrets.list(&ListParams::default()).await? {
            directory
                .take_in(&secret, &mut ListContent::default())
                .await;
        }
        Ok(directory)
    }

    /// Applies a Secret's content, and records it as seen.
    async fn take_in(&self, secret: &Secret, listed: &mut ListContent) {
        let name = name_of(secret);
        let ended = match read(secret) {
            SecretContent::User(user) => {
                listed.users.insert(user.user.name.clone());
                self.damaged.lock().remove(name);
                self.mirror.write().put_user(user)
            }
            SecretContent::Token(token) => {
                listed.tokens.insert(token.info.id.clone());
                self.damaged.lock().remove(name);
                self.mirror.write().put_token(token);
                Vec::new()
            }
            SecretContent::Damaged(error) => {
                if let Some(user) = name.strip_prefix(USER_PREFIX) {
                    listed.users.insert(user.to_string());
                    self.mirror.write().forget_user(user, revision_of(secret));
                } else if let Some(id) = name.strip_prefix(TOKEN_PREFIX) {
                    self.mirror.write().token_gone(id);
                }
                self.set_aside(secret, &error).await;
                Vec::new()
            }
            SecretContent::Other => Vec::new(),
        };
        self.delete_tokens(ended).await;
    }

    /// Like `take_in`. A Secret over which that panics counts as unreadable, and is read again later.
    async fn take_in_contained(
        &self,
        secret: Secret,
        listed: &mut ListContent,
        aside: &mut SetAside<String, Secret>,
    ) {
        let name = name_of(&secret).to_owned();
        match contained(self.take_in(&secret, listed)).await {
            Ok(()) => aside.remove(&name),
            Err(panic) => {
                let reason = format!("the server panicked over it: {panic}");
                self.set_aside(&secret, &damaged(&secret, reason)).await;
                aside.put(name, secret);
            }
        }
    }

    /// Applies the deletion of a Secret.
    async fn deleted(&self, secret: &Secret) {
        let name = name_of(secret);
        let ours = matches!(secret.type_.as_deref(), Some(USER_TYPE | TOKEN_TYPE));
        if !ours {
            return;
        }
        self.damaged.lock().remove(name);
        if let Some(user) = name.strip_prefix(USER_PREFIX) {
            let ended = (self.mirror.write()).remove_user(user, revision_of(secret));
            tracing::info!(
                user,
                tokens = ended.len(),
                "a user was deleted, with its tokens"
            );
            self.delete_tokens(ended).await;
        } else if let Some(id) = name.strip_prefix(TOKEN_PREFIX) {
            self.mirror.write().token_gone(id);
        }
    }

    /// Reports an unreadable Secret, once for each of its revisions.
    async fn set_aside(&self, secret: &Secret, error: &IdentityError) {
        let revision = revision_of(secret);
        let before = self
            .damaged
            .lock()
            .insert(name_of(secret).to_string(), revision);
        if before == Some(revision) {
            return;
        }
        tracing::error!(%error, "the server cannot read a user or token and ignores it");
        let now = Timestamp::now();
        let second = Timestamp::from_second(now.as_second()).unwrap_or(now);
        let event = serde_json::from_value::<Event>(serde_json::json!({
            "metadata": {"generateName": format!("{}-", name_of(secret)), "namespace": NAMESPACE},
            "involvedObject": {
                "apiVersion": "v1", "kind": "Secret", "namespace": NAMESPACE,
                "name": name_of(secret), "uid": secret.metadata.uid,
            },
            "type": "Warning", "reason": "IdentityDamaged", "message": error.to_string(),
            "source": {"component": "muster-identity"},
            "firstTimestamp": second, "lastTimestamp": second, "count": 1,
        }));
        let event = event.expect("an event of plain text is always an Event");
        // A failed write loses the event, as in Kubernetes; the log has the message.
        if let Err(error) = self.events.create(&PostParams::default(), &event).await {
            tracing::debug!(%error, "the server could not write an event");
        }
    }

    /// True if this user's Secret exists and is unreadable.
    pub(crate) fn is_damaged(&self, user: &str) -> bool {
        self.damaged.lock().contains_key(&user_secret(user))
    }

    pub(crate) fn users(&self) -> Vec<User> {
        self.mirror.read().users().cloned().collect()
    }

    pub(crate) fn user(&self, name: &str) -> Option<User> {
        let mirror = self.mirror.read();
        mirror.user(name).map(|known| known.user.clone())
    }

    /// Every token and session, with the last uses that are not stored yet.
    pub(crate) fn tokens(&self) -> Vec<TokenInfo> {
        let mut all: Vec<TokenInfo> = self.mirror.read().tokens().cloned().collect();
        let uses = self.last_uses.lock();
        for token in &mut all {
            uses.complete(token);
        }
        all
    }

    pub(crate) fn password_hash(&self, user: &str) -> Option<String> {
        let mirror = self.mirror.read();
        mirror.user(user).map(|known| known.hash.clone())
    }

    pub(crate) fn second_factor(&self, user: &str) -> Option<SecondFactor> {
        let mirror = self.mirror.read();
        mirror.user(user)?.factor.clone()
    }

    /// Stores a user: a new one, or one that replaces an unreadable one.
    pub(crate) async fn insert_user(
        &self,
        user: User,
        hash: String,
    ) -> Result<User, IdentityError> {
        let secret = secret_of_user(&user, &hash, None);
        let parameters = PostParams::default();
        let written = if self.is_damaged(&user.name) {
            let name = user_secret(&user.name);
            self.secrets.replace(&name, &parameters, &secret).await
        } else {
            self.secrets.create(&parameters, &secret).await
        };
        match written {
            Ok(written) => self.take_in(&written, &mut ListContent::default()).await,
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                return Err(IdentityError::UserExists { name: user.name });
            }
            Err(error) => return Err(error.into()),
        }
        Ok(user)
    }

    /// Which sessions outlive a change of a user's hash that is about to be written.
    pub(crate) fn announce(&self, name: &str, hash: &str, kept: KeptSessions) {
        self.mirror.write().announce(name, hash, kept);
    }

    /// Replaces a user's record, and its password's hash if one is given. A new hash ends the sessions that were not
    /// announced to outlive it. Refused if another client has changed the user since the mirror saw it.
    pub(crate) async fn replace_user(
        &self,
        user: &User,
        hash: Option<String>,
    ) -> Result<(), IdentityError> {
        self.write_user(user, hash, FactorWrite::Keep).await
    }

    /// Replaces or removes the second factor of a user. Refused as [`UserDirectory::replace_user`] is.
    pub(crate) async fn replace_factor(
        &self,
        name: &str,
        factor: Option<SecondFactor>,
    ) -> Result<(), IdentityError> {
        let user = self.user(name).ok_or_else(|| IdentityError::NoSuchUser {
            name: name.to_owned(),
        })?;
        let factor = FactorWrite::Replace(factor);
        self.write_user(&user, None, factor).await
    }

    async fn write_user(
        &self,
        user: &User,
        hash: Option<String>,
        factor: FactorWrite,
    ) -> Result<(), IdentityError> {
        let (kept, uid, revision, factor) = {
            let mirror = self.mirror.read();
            let known = mirror.user(&user.name);
            let known = known.ok_or_else(|| IdentityError::NoSuchUser {
                name: user.name.clone(),
            })?;
            let factor = match factor {
                FactorWrite::Keep => known.factor.clone(),
                FactorWrite::Replace(factor) => factor,
            };
            let uid = known.uid.clone();
            (known.hash.clone(), uid, known.revision, factor)
        };
        let hash = hash.unwrap_or(kept);
        let mut secret = secret_of_user(user, &hash, factor.as_ref());
        secret.metadata.uid = uid;
        secret.metadata.resource_version = (revision > 0).then(|| revision.to_string());
        let name = user_secret(&user.name);
        let parameters = PostParams::default();
        match self.secrets.replace(&name, &parameters, &secret).await {
            Ok(written) => self.take_in(&written, &mut ListContent::default()).await,
            Err(kube::Error::Api(status)) if status.is_conflict() => {
                return Err(IdentityError::Changed {
                    name: user.name.clone(),
                });
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Deletes a user, whose sessions and tokens end at once.
    pub(crate) async fn delete_user(&self, name: &str) -> Result<(), IdentityError> {
        let parameters = DeleteParams::default();
        match self.secrets.delete(&user_secret(name), &parameters).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
        let ended = {
            let mut mirror = self.mirror.write();
            let revision = mirror.user(name).map_or(0, |known| known.revision);
            mirror.remove_user(name, revision)
        };
        self.delete_tokens(ended).await;
        Ok(())
    }

    /// The token with this id and its user, if the secret is the token's and has not expired.
    pub(crate) fn find_token(
        &self,
        id: &str,
        secret: &str,
        now: Timestamp,
    ) -> Option<(TokenInfo, User)> {
        let offered = tokens::digest(secret);
        let mirror = self.mirror.read();
        let known = mirror.token(id)?;
        let same: bool = offered.as_bytes().ct_eq(known.digest.as_bytes()).into();
        let user = &mirror.user(&known.info.user)?.user;
        (same && known.info.expires > now).then(|| (known.info.clone(), user.clone()))
    }
}

/// Keeps the mirror current while another owner holds the directory: every change or deletion
/// through the API takes effect at once.
pub(crate) async fn follow(directory: Weak<UserDirectory>) -> LoopEnd {
    let Some(secrets) = directory.upgrade().map(|held| held.secrets.clone()) else {
        return LoopEnd::Finished;
    };
    // The watcher lists again after errors, with exponential backoff.
    let mut changes =
        std::pin::pin!(watcher(secrets, watcher::Config::default()).default_backoff());
    let (mut known, mut listed) = (ListStart::default(), ListContent::default());
    let mut aside = SetAside::default();
    loop {
        let change = tokio::select! {
            change = changes.next() => change,
            (_, secret) = aside.due() => Some(Ok(watcher::Event::Apply(secret))),
        };
        let Some(change) = change else {
            return LoopEnd::Unexpected;
        };
        let Some(directory) = directory.upgrade() else {
            return LoopEnd::Finished;
        };
        match change {
            Ok(watcher::Event::Init) => {
                known = directory.mirror.read().known();
                listed = ListContent::default();
            }
            Ok(watcher::Event::InitApply(secret)) => {
                directory
                    .take_in_contained(secret, &mut listed, &mut aside)
                    .await;
            }
            Ok(watcher::Event::InitDone) => {
                let ended = directory.mirror.write().listed(&known, &listed);
                directory.delete_tokens(ended).await;
            }
            Ok(watcher::Event::Apply(secret)) => {
                directory
                    .take_in_contained(secret, &mut ListContent::default(), &mut aside)
                    .await;
            }
            Ok(watcher::Event::Delete(secret)) => {
                aside.remove(&name_of(&secret).to_owned());
                directory.deleted(&secret).await;
            }
            Err(error) => {
                tracing::warn!(%error, "the watch of users and tokens failed; the server opens it again");
            }
        }
    }
}

#[cfg(test)]
mod tests;
