//! The writes of tokens' Secrets: new tokens, changed records, the times of last uses, deletions.

use std::collections::BTreeMap;
use std::sync::Weak;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use supervisor::LoopEnd;

use super::{
    LAST_USED, RECORD, SecretContent, TOKEN_TYPE, UserDirectory, read, revision_of, secret_of,
    takes_nothing, token_secret,
};
use crate::error::IdentityError;
use crate::limits::LAST_USE_RETRY;
use crate::mirror::KnownToken;
use crate::tokens::{TokenInfo, TokenPurpose};

impl UserDirectory {
    /// Stores a token. While the store accepts no writes, a session exists only in memory, so that
    /// an administrator can sign in and free space.
    pub(crate) async fn insert_token(
        &self,
        info: TokenInfo,
        digest: String,
    ) -> Result<(), IdentityError> {
        if self.mirror.read().user(&info.user).is_none() {
            return Err(IdentityError::NoSuchUser { name: info.user });
        }
        let secret = secret_of(token_secret(&info.id), TOKEN_TYPE, &info, &digest);
        let written = self.secrets.create(&PostParams::default(), &secret).await;
        let mut mirror = self.mirror.write();
        match written.map_err(IdentityError::from) {
            Ok(written) => mirror.put_token(KnownToken {
                info,
                digest,
                stored: true,
                revision: revision_of(&written),
            }),
            Err(error) if info.purpose == TokenPurpose::Session && takes_nothing(&error) => {
                tracing::warn!(user = info.user, %error, "the server keeps a session in memory only");
                mirror.keep_in_memory(info, digest);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Replaces a token's record; its secret and its last use stay.
    pub(crate) async fn replace_token(&self, info: &TokenInfo) -> Result<(), IdentityError> {
        let record = TokenInfo {
            last_used: None,
            ..info.clone()
        };
        let record = serde_json::to_vec(&record).expect("a plain record is always JSON");
        self.patch_token(&info.id, RECORD, record).await
    }

    /// Writes one entry of a token's Secret. A Secret that is gone stays gone.
    async fn patch_token(&self, id: &str, key: &str, value: Vec<u8>) -> Result<(), IdentityError> {
        let data = BTreeMap::from([(key, ByteString(value))]);
        let patch = Patch::Merge(serde_json::json!({ "data": data }));
        let parameters = PatchParams::default();
        let written = self
            .secrets
            .patch(&token_secret(id), &parameters, &patch)
            .await;
        match written {
            Ok(written) => {
                if let SecretContent::Token(token) = read(&written) {
                    self.mirror.write().change_token(token);
                }
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.is_not_found() => {
                Err(IdentityError::NoSuchToken { id: id.to_owned() })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Notes that a request carried this access token, whose stored last use is in `info`. Writes nothing itself.
    pub(crate) fn note_use(&self, info: &TokenInfo, now: Timestamp) {
        if (self.last_uses.lock()).note(&info.id, now, info.last_used) {
            self.use_due.notify_one();
        }
    }

    /// Writes the last uses that are due. False if the store refused one; the rest is then left for later.
    async fn write_due_uses(&self) -> bool {
        let due = self.last_uses.lock().due();
        for (id, at) in due {
            let text = at.to_string().into_bytes();
            match self.patch_token(&id, LAST_USED, text).await {
                Ok(()) => self.last_uses.lock().written(&id, at),
                Err(IdentityError::NoSuchToken { .. }) => self.last_uses.lock().forget(&id),
                Err(error) => {
                    tracing::warn!(token = id, %error, "the time of a token's last use was not stored; the server tries again");
                    return false;
                }
            }
        }
        true
    }

    /// Ends a token at once, and then deletes its Secret. If the store refuses the deletion, the
    /// token stays ended until the server restarts.
    pub(crate) async fn remove_token(&self, id: &str) -> Result<(), IdentityError> {
        let ended = self.mirror.write().end_token(id);
        match ended {
            None => Err(IdentityError::NoSuchToken { id: id.to_string() }),
            Some(true) => self.delete_token(id).await,
            Some(false) => Ok(()),
        }
    }

    async fn delete_token(&self, id: &str) -> Result<(), IdentityError> {
        let deleted = self
            .secrets
            .delete(&token_secret(id), &DeleteParams::default())
            .await;
        match deleted {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes the Secrets of tokens that have ended.
    pub(super) async fn delete_tokens(&self, ids: Vec<String>) {
        for id in ids {
            if let Err(error) = self.delete_token(&id).await {
                tracing::warn!(token = id, %error, "a token was revoked or has expired, but its Secret could not be deleted");
            }
        }
    }
}

/// Writes the last uses of tokens while another owner holds the directory.
pub(crate) async fn write_last_uses(directory: Weak<UserDirectory>) -> LoopEnd {
    let Some(due) = directory.upgrade().map(|held| held.use_due.clone()) else {
        return LoopEnd::Finished;
    };
    loop {
        // Without a use it looks now and then whether the owner is still there.
        let _ = tokio::time::timeout(LAST_USE_RETRY, due.notified()).await;
        let Some(directory) = directory.upgrade() else {
            return LoopEnd::Finished;
        };
        if !directory.write_due_uses().await {
            drop(directory);
            tokio::time::sleep(LAST_USE_RETRY).await;
            due.notify_one();
        }
    }
}
