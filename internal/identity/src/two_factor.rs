//! The second factor of signing in with a password: a one-time code of an app (RFC 6238), or a recovery code. It is asked
//! for after a right password, and its own attempts are slowed down as those of passwords are, so that a person with the
//! password alone cannot try codes freely. A token, such as that of the server's own kubeconfig, needs none.

use std::net::IpAddr;

use jiff::Timestamp;

use crate::directory::{UserDirectory, takes_nothing};
use crate::error::IdentityError;
use crate::identities::Identity;
use crate::limits::SESSION_TTL;
use crate::second_factor::{self, RecoveryBytes, SecondFactor};
use crate::tokens::{self, IssuedToken, TokenPurpose};
use crate::totp::TotpSecret;

/// The answer to a right password.
#[derive(Debug)]
pub enum PasswordAnswer {
    /// The user has no second factor, and is signed in.
    SignedIn(IssuedToken),
    /// The user's code is awaited; the browser sends this secret with it.
    CodeNeeded(String),
}

/// What a user gave as its second factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenFactor {
    /// A code of its app.
    Code,
    /// A recovery code, which is used up.
    RecoveryCode,
}

/// The second factor of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecondFactorState {
    /// When the user confirmed it.
    pub since: Timestamp,
    /// The number of recovery codes that are left.
    pub recovery_left: usize,
}

fn recovery_codes() -> Result<Vec<String>, IdentityError> {
    let mut random = RecoveryBytes::default();
    for bytes in &mut random {
        *bytes = tokens::random()?;
    }
    Ok(second_factor::recovery_codes(&random))
}

impl Identity {
    fn directory(&self) -> &UserDirectory {
        &self.0.directory
    }

    /// The second factor of a user, if it has one.
    pub fn second_factor(&self, user: &str) -> Option<SecondFactorState> {
        let factor = self.directory().second_factor(user)?;
        Some(SecondFactorState {
            since: factor.since,
            recovery_left: factor.recovery_left(),
        })
    }

    /// Checks a password, offered from an address, and opens a session for a browser, or asks for the second factor.
    ///
    /// The response and its timing are the same for a wrong password and an unknown user. Repeated
    /// failures make the address wait; failures from other addresses for the same name delay a
    /// caller by at most a second.
    ///
    /// # Errors
    /// The password is wrong, or there were too many attempts.
    pub async fn sign_in(
        &self,
        user: &str,
        password: &str,
        from: Option<IpAddr>,
    ) -> Result<PasswordAnswer, IdentityError> {
        self.check_password(user, password, from).await?;
        let hash = self.directory().password_hash(user);
        if let (Some(_), Some(hash)) = (self.directory().second_factor(user), hash) {
            let secret = tokens::draw_secret()?;
            let digest = tokens::digest(&secret);
            let mut checks = self.0.factor_checks.lock();
            checks.wait_for_code(digest, user, hash, Timestamp::now());
            return Ok(PasswordAnswer::CodeNeeded(secret));
        }
        self.open_session(user).await.map(PasswordAnswer::SignedIn)
    }

    async fn open_session(&self, user: &str) -> Result<IssuedToken, IdentityError> {
        self.end_oldest_session(user).await;
        self.issue(user, "browser session", TokenPurpose::Session, SESSION_TTL)
            .await
    }

    /// The user whose code is awaited with this secret.
    pub fn awaited_user(&self, secret: &str) -> Option<String> {
        let checks = self.0.factor_checks.lock();
        let wait = checks.waiting(&tokens::digest(secret), Timestamp::now())?;
        Some(wait.user)
    }

    /// Checks the second factor of a user whose password was right, and opens a session for a browser.
    ///
    /// # Errors
    /// The code is wrong or was used, there were too many attempts, or the sign-in has to begin again.
    pub async fn sign_in_code(
        &self,
        secret: &str,
        code: &str,
        from: Option<IpAddr>,
    ) -> Result<(IssuedToken, GivenFactor), IdentityError> {
        let digest = tokens::digest(secret);
        let wait = (self.0.factor_checks.lock()).waiting(&digest, Timestamp::now());
        let wait = wait.ok_or(IdentityError::SignInOver)?;
        let name = &wait.user;
        let same = self.directory().password_hash(name).as_ref() == Some(&wait.hash);
        let enabled = self.user(name).is_some_and(|user| !user.disabled);
        if !same || !enabled {
            self.0.factor_checks.lock().end_wait(&digest);
            return Err(IdentityError::SignInOver);
        }
        let given = match self.check_code(name, code, from).await {
            // An administrator removed the factor meanwhile.
            Err(IdentityError::NoSecondFactor) => return Err(IdentityError::SignInOver),
            given => given?,
        };
        if !self.0.factor_checks.lock().end_wait(&digest) {
            return Err(IdentityError::SignInOver);
        }
        let session = self.open_session(name).await?;
        Ok((session, given))
    }

    /// Checks a code or a recovery code of a user, offered from an address, and uses it up.
    async fn check_code(
        &self,
        user: &str,
        typed: &str,
        from: Option<IpAddr>,
    ) -> Result<GivenFactor, IdentityError> {
        if self.directory().second_factor(user).is_none() {
            return Err(IdentityError::NoSecondFactor);
        }
        let attempt = {
            let mut checks = self.0.factor_checks.lock();
            let now = Timestamp::now();
            if let Some(wait) = checks.locked(user, now) {
                return Err(IdentityError::TooManyCodes { wait });
            }
            let attempt = self.0.code_throttle.begin(user, from, now)?;
            checks.attempt(user, now);
            attempt
        };
        tokio::time::sleep(attempt.delay()).await;
        let given = self.use_up(user, typed).await?;
        attempt.succeeded();
        self.0.factor_checks.lock().was_right(user);
        Ok(given)
    }

    /// Uses up a code of the present steps, or a recovery code.
    async fn use_up(&self, user: &str, typed: &str) -> Result<GivenFactor, IdentityError> {
        let _turn = self.0.writing.lock().await;
        let factor = self.directory().second_factor(user);
        let factor = factor.ok_or(IdentityError::NoSecondFactor)?;
        let secret = factor.secret();
        let step = secret.and_then(|secret| secret.matching(typed, Timestamp::now()));
        let Some(step) = step else {
            let next = factor.without_recovery(typed);
            let next = next.ok_or(IdentityError::WrongCode)?;
            self.directory().replace_factor(user, Some(next)).await?;
            return Ok(GivenFactor::RecoveryCode);
        };
        let next = factor.after_step(step).ok_or(IdentityError::WrongCode)?;
        if !self.0.factor_checks.lock().use_step(user, step) {
            return Err(IdentityError::WrongCode);
        }
        match self.directory().replace_factor(user, Some(next)).await {
            // An administrator signs in to free space; the step is remembered until the server ends.
            Err(error) if takes_nothing(&error) => {
                tracing::warn!(user, %error, "the server could not store that a code was used");
            }
            stored => stored?,
        }
        Ok(GivenFactor::Code)
    }

    /// Begins to set up the second factor of a user in a session, which gives its password again. Returns the secret in
    /// base32, as an app takes it.
    ///
    /// # Errors
    /// The password is wrong, or the user has a second factor or no password.
    pub async fn begin_second_factor(
        &self,
        name: &str,
        password: &str,
        session: &str,
        from: Option<IpAddr>,
    ) -> Result<String, IdentityError> {
        let user = self.existing(name)?;
        if user.oidc.is_some() {
            return Err(IdentityError::NoPassword { name: user.name });
        }
        if self.directory().second_factor(name).is_some() {
            return Err(IdentityError::SecondFactorExists);
        }
        self.check_password(name, password, from).await?;
        let secret = TotpSecret::new(tokens::random()?);
        let shown = secret.base32();
        let mut checks = self.0.factor_checks.lock();
        checks.enrol(name, session, secret, Timestamp::now());
        Ok(shown)
    }

    /// The secret in base32 that a user is about to confirm in this session.
    pub fn unconfirmed_secret(&self, name: &str, session: &str) -> Option<String> {
        let checks = self.0.factor_checks.lock();
        let secret = checks.enrolment(name, session, Timestamp::now())?;
        Some(secret.base32())
    }

    /// Confirms the second factor of a user, in the session in which it began, by a code of its app. Returns the recovery codes, which cannot be read again.
    ///
    /// # Errors
    /// The code is wrong, or the set-up has to begin again.
    pub async fn confirm_second_factor(
        &self,
        name: &str,
        code: &str,
        session: &str,
    ) -> Result<Vec<String>, IdentityError> {
        let now = Timestamp::now();
        let recovery = recovery_codes()?;
        let _turn = self.0.writing.lock().await;
        if self.directory().second_factor(name).is_some() {
            return Err(IdentityError::SecondFactorExists);
        }
        let (secret, step) = {
            let mut checks = self.0.factor_checks.lock();
            let secret = checks.enrolment(name, session, now);
            let secret = secret.ok_or(IdentityError::EnrolmentOver)?;
            let step = secret.matching(code, now);
            let step = step.filter(|step| checks.use_step(name, *step));
            (secret, step.ok_or(IdentityError::WrongCode)?)
        };
        let factor = SecondFactor::new(&secret, step, &recovery, now);
        self.directory().replace_factor(name, Some(factor)).await?;
        self.0.factor_checks.lock().end_enrolment(name);
        Ok(recovery)
    }

    /// Replaces the recovery codes of a user, which gives a code. Returns the new ones, which cannot be read again.
    ///
    /// # Errors
    /// The code is wrong or was used, there were too many attempts, or the user has no second factor.
    pub async fn renew_recovery_codes(
        &self,
        name: &str,
        code: &str,
        from: Option<IpAddr>,
    ) -> Result<Vec<String>, IdentityError> {
        self.check_code(name, code, from).await?;
        let recovery = recovery_codes()?;
        let _turn = self.0.writing.lock().await;
        let factor = self.directory().second_factor(name);
        let factor = factor.ok_or(IdentityError::NoSecondFactor)?;
        let next = factor.with_recovery(&recovery);
        self.directory().replace_factor(name, Some(next)).await?;
        Ok(recovery)
    }

    /// Removes the second factor of a user, which gives a code.
    ///
    /// # Errors
    /// As of [`Identity::renew_recovery_codes`].
    pub async fn remove_second_factor(
        &self,
        name: &str,
        code: &str,
        from: Option<IpAddr>,
    ) -> Result<(), IdentityError> {
        self.check_code(name, code, from).await?;
        let _turn = self.0.writing.lock().await;
        self.directory().replace_factor(name, None).await
    }

    /// Removes the second factor of a user, for an administrator. Nothing happens if it has none.
    ///
    /// # Errors
    /// The user does not exist.
    pub async fn reset_second_factor(&self, name: &str) -> Result<(), IdentityError> {
        let _turn = self.0.writing.lock().await;
        self.existing(name)?;
        {
            let mut checks = self.0.factor_checks.lock();
            checks.end_enrolment(name);
            checks.was_right(name);
        }
        if self.directory().second_factor(name).is_none() {
            return Ok(());
        }
        self.directory().replace_factor(name, None).await
    }
}
