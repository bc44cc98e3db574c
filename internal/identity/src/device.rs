//! Signing in of programs without a browser, such as `muster login`, by the device authorization grant (RFC 8628): draws
//! the codes, and issues the token after a user approved.

use std::time::Duration;

use jiff::Timestamp;

use crate::device_logins::{DeviceLogin, DevicePoll, DeviceRequest};
use crate::error::IdentityError;
use crate::identities::Identity;
use crate::limits::{
    DEVICE_CLIENT_MAX, DEVICE_CODE_TTL, DEVICE_POLL_INTERVAL, LOGIN_TOKEN_TTL_MAX,
};
use crate::tokens::{self, IssuedToken};
use crate::user_code::UserCode;

/// The shortest lifetime of a token of `muster login`.
const LOGIN_TOKEN_TTL_MIN: Duration = Duration::from_secs(3600);

/// A sign-in that has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartedDeviceLogin {
    /// The secret by which the program fetches its token.
    pub device_code: String,
    /// The code that the program shows to a person.
    pub user_code: String,
    /// How long both are valid.
    pub expires_in: Duration,
    /// How long the program waits between two questions.
    pub interval: Duration,
}

/// The answer to a program that asks whether a person has approved.
#[derive(Debug)]
pub enum DeviceAnswer {
    /// No person has decided yet.
    Pending,
    /// The same, and the program asks too often.
    SlowDown,
    /// A person refused, or the user can get no token any more.
    Denied,
    /// The code has expired.
    Expired,
    /// There is no such code, or its token was fetched already.
    Unknown,
    /// The token, and what was asked for.
    Issued(Box<IssuedToken>, DeviceRequest),
}

/// The label of the token of a program with this name.
fn label(client: &str) -> String {
    format!("muster login: {client}")
}

fn check(request: &DeviceRequest) -> Result<(), IdentityError> {
    let printable = |c: char| c == ' ' || c.is_ascii_graphic();
    let name = &request.client;
    let named = !name.trim().is_empty() && name.chars().all(printable);
    if !named || name.len() > DEVICE_CLIENT_MAX {
        return Err(IdentityError::ClientName);
    }
    if !(LOGIN_TOKEN_TTL_MIN..=LOGIN_TOKEN_TTL_MAX).contains(&request.token_ttl) {
        let asked = request.token_ttl;
        return Err(IdentityError::LoginLifetime { asked });
    }
    Ok(())
}

/// True if a later attempt to issue the token can succeed.
fn may_pass(error: &IdentityError) -> bool {
    !matches!(
        error,
        IdentityError::NoSuchUser { .. }
            | IdentityError::Disabled { .. }
            | IdentityError::TooManyTokens { .. }
            | IdentityError::TokenLabel { .. }
    )
}

impl Identity {
    /// Begins the sign-in of a program.
    ///
    /// # Errors
    /// The request is out of bounds, or too many programs at its address wait.
    pub fn start_device_login(
        &self,
        request: DeviceRequest,
    ) -> Result<StartedDeviceLogin, IdentityError> {
        check(&request)?;
        let device_code = tokens::draw_secret()?;
        let digest = tokens::digest(&device_code);
        let mut logins = self.0.device_logins.lock();
        let code = loop {
            let drawn = UserCode::of_random(&tokens::random::<32>()?);
            if let Some(code) = drawn.filter(|code| !logins.has(code)) {
                break code;
            }
        };
        let user_code = code.to_string();
        logins.begin(digest, code, request, Timestamp::now())?;
        Ok(StartedDeviceLogin {
            device_code,
            user_code,
            expires_in: DEVICE_CODE_TTL,
            interval: DEVICE_POLL_INTERVAL,
        })
    }

    /// The sign-in that waits with a code which a user typed.
    ///
    /// # Errors
    /// There is none that the user may approve, or the user typed too many codes that are none.
    pub fn device_login(&self, code: &str, user: &str) -> Result<DeviceLogin, IdentityError> {
        let mut logins = self.0.device_logins.lock();
        logins.find(code, user, Timestamp::now())
    }

    /// A user approves or refuses the sign-in with this code.
    ///
    /// # Errors
    /// As of [`Identity::device_login`]; or the user has as many access tokens as it may.
    pub fn decide_device_login(
        &self,
        code: &str,
        user: &str,
        approve: bool,
    ) -> Result<DeviceLogin, IdentityError> {
        let mut logins = self.0.device_logins.lock();
        let now = Timestamp::now();
        if approve {
            let login = logins.find(code, user, now)?;
            self.require_active(user)?;
            let held = self.access_tokens(user).len();
            tokens::check_new(&label(&login.request.client), held)?;
        }
        logins.decide(code, user, approve, now)
    }

    fn require_active(&self, name: &str) -> Result<(), IdentityError> {
        let name = name.to_owned();
        match self.user(&name) {
            Some(user) if user.disabled => Err(IdentityError::Disabled { name }),
            Some(_) => Ok(()),
            None => Err(IdentityError::NoSuchUser { name }),
        }
    }

    /// Answers a program, and issues its token if a user approved. A token is issued once.
    ///
    /// # Errors
    /// The token cannot be stored now; the program asks again.
    pub async fn poll_device_login(
        &self,
        device_code: &str,
    ) -> Result<DeviceAnswer, IdentityError> {
        let digest = tokens::digest(device_code);
        let polled = (self.0.device_logins.lock()).poll(&digest, Timestamp::now());
        let approved = match polled {
            DevicePoll::Pending => return Ok(DeviceAnswer::Pending),
            DevicePoll::SlowDown => return Ok(DeviceAnswer::SlowDown),
            DevicePoll::Refused => return Ok(DeviceAnswer::Denied),
            DevicePoll::Expired => return Ok(DeviceAnswer::Expired),
            DevicePoll::Unknown => return Ok(DeviceAnswer::Unknown),
            DevicePoll::Approved(approved) => approved,
        };
        let request = approved.request().clone();
        let issued = match self.require_active(&approved.user) {
            Ok(()) => {
                let label = label(&request.client);
                self.create_token(&approved.user, &label, request.token_ttl, Vec::new())
                    .await
            }
            Err(error) => Err(error),
        };
        match issued {
            Ok(token) => Ok(DeviceAnswer::Issued(Box::new(token), request)),
            Err(error) if may_pass(&error) => {
                self.0.device_logins.lock().put_back(*approved);
                Err(error)
            }
            Err(error) => {
                tracing::warn!(user = approved.user, %error, "the token of an approved sign-in was not issued");
                Ok(DeviceAnswer::Denied)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(client: &str, seconds: u64) -> Result<(), IdentityError> {
        check(&DeviceRequest {
            client: client.to_owned(),
            from: None,
            user: None,
            token_ttl: Duration::from_secs(seconds),
        })
    }

    #[test]
    fn names_and_lifetimes_are_taken_to_their_bounds() {
        let longest = LOGIN_TOKEN_TTL_MAX.as_secs();
        let name = "x".repeat(DEVICE_CLIENT_MAX);
        for (client, seconds) in [("ann@laptop", 3600), (&*name, longest)] {
            assert!(asked(client, seconds).is_ok(), "{client} {seconds}");
            assert!(tokens::check_new(&label(client), 0).is_ok());
        }
        for (client, seconds) in [
            ("", 3600),
            ("  ", 3600),
            ("a\nb", 3600),
            ("a\u{202e}b", 3600),
            ("ännchen", 3600),
            (&*format!("{name}x"), 3600),
            ("ann", 3599),
            ("ann", longest + 1),
        ] {
            assert!(asked(client, seconds).is_err(), "{client} {seconds}");
        }
    }
}
