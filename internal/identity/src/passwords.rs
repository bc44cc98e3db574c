//! Passwords: argon2id hashes in the PHC string format, and the requirements for passwords.

use std::sync::Arc;
use std::time::Duration;

use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};

use tokio::sync::Semaphore;

use crate::error::IdentityError;

/// The maximum number of passwords hashed at once: each takes 19 MiB and a core for tens of
/// milliseconds.
pub(crate) const HASHES_MAX: usize = 4;

/// The maximum number of waiting requests; further ones are refused with a retry delay.
pub(crate) const WAITING_MAX: usize = 64;

/// The retry delay of a refused request, in seconds: by then the queue is empty.
const COME_BACK_SECONDS: u64 = 3;

/// The least number of characters in a password (NIST SP 800-63B).
const SHORTEST: usize = 8;

/// The maximum number of bytes that are hashed, so that a huge body cannot occupy a core.
const LONGEST: usize = 1024;

/// A hash without a user, verified if the user does not exist, so that both responses take the same
/// time.
pub(crate) const DECOY: &str = "$argon2id$v=19$m=19456,t=2,p=1$bXVzdGVyLWRlY295LXNhbHQ$Vgd0dY0gQ0tZbnA6f3xHkM0eZ0s1Y9w0nQm6mJ2q1xI";

/// Refuses passwords that are too short or too long.
pub(crate) fn check_strength(password: &str) -> Result<(), IdentityError> {
    let characters = password.chars().count();
    if characters < SHORTEST {
        return Err(IdentityError::WeakPassword {
            reason: format!("it has {characters} characters; use at least {SHORTEST}"),
        });
    }
    if password.len() > LONGEST {
        return Err(IdentityError::WeakPassword {
            reason: format!("it is over {LONGEST} bytes long; use a shorter one"),
        });
    }
    Ok(())
}

/// Hashes a bounded number of passwords at once, off the async threads.
pub(crate) struct Hashing {
    /// One permit for each request that is hashed or waits.
    queue: Arc<Semaphore>,
    /// One permit for each request that is hashed.
    slots: Arc<Semaphore>,
}

impl Default for Hashing {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        Hashing::of(cores.min(HASHES_MAX), WAITING_MAX)
    }
}

impl Hashing {
    fn of(at_once: usize, waiting: usize) -> Self {
        Hashing {
            queue: Arc::new(Semaphore::new(at_once + waiting)),
            slots: Arc::new(Semaphore::new(at_once)),
        }
    }

    /// Runs `work` when its turn comes; [`IdentityError::Busy`] if too many wait already.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, IdentityError> {
        let queued = self.queue.clone().try_acquire_owned();
        let queued = queued.map_err(|_| IdentityError::Busy {
            wait: Duration::from_secs(COME_BACK_SECONDS),
        })?;
        let slot = self.slots.clone().acquire_owned().await;
        let slot = slot.expect("the semaphore is never closed");
        // The permits move with the work: if the caller gives up, the hash is still computed.
        let hashed = tokio::task::spawn_blocking(move || {
            let _permits = (queued, slot);
            work()
        });
        hashed.await.map_err(|_| IdentityError::Interrupted)
    }
}

/// OWASP's first recommendation for argon2id: 19 MiB, 2 passes, 1 lane.
fn hasher() -> Argon2<'static> {
    let params = Params::new(19 * 1024, 2, 1, None).expect("19 MiB, 2 passes, 1 lane are in range");
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
}

/// Hashes with a fresh salt. Takes tens of milliseconds: do not call it on an async thread.
pub(crate) fn hash(password: &str) -> Result<String, IdentityError> {
    let mut salt = [0u8; 16];
    getrandom::fill(&mut salt).map_err(|e| IdentityError::Entropy(e.to_string()))?;
    let salt = SaltString::encode_b64(&salt).map_err(|e| IdentityError::Hashing(e.to_string()))?;
    hasher()
        .hash_password(password.as_bytes(), &salt)
        .map(|hash| hash.to_string())
        .map_err(|e| IdentityError::Hashing(e.to_string()))
}

/// True if the password matches the hash; an unreadable hash matches none.
pub(crate) fn verify(password: &str, stored: &str) -> bool {
    if password.len() > LONGEST {
        return false;
    }
    PasswordHash::new(stored)
        .is_ok_and(|hash| hasher().verify_password(password.as_bytes(), &hash).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn hashing_and_waiting_are_bounded_and_further_requests_are_refused() {
        let hashing = Arc::new(Hashing::of(2, 3));
        let (open, gate) = std::sync::mpsc::channel::<()>();
        let gate = Arc::new(std::sync::Mutex::new(gate));
        let mut running = Vec::new();
        for n in 0..5 {
            let (hashing, gate) = (hashing.clone(), gate.clone());
            running.push(tokio::spawn(async move {
                let wait = move || {
                    let _ = gate.lock().unwrap().recv();
                    n
                };
                hashing.run(wait).await
            }));
        }
        while hashing.queue.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let refused = hashing.run(|| 5).await;
        assert!(matches!(refused, Err(IdentityError::Busy { .. })));
        drop(open);
        for (n, task) in running.into_iter().enumerate() {
            assert_eq!(task.await.unwrap().unwrap(), n);
        }
        assert_eq!(hashing.run(|| 6).await.unwrap(), 6);
    }

    #[test]
    fn a_password_verifies_against_its_own_hash_only() {
        let stored = hash("correct horse").unwrap();
        assert!(stored.starts_with("$argon2id$"));
        assert!(verify("correct horse", &stored));
        assert!(!verify("correct horsf", &stored));
        assert!(!verify("correct horse", "not a hash"));
    }

    #[test]
    fn two_hashes_of_one_password_differ_by_their_salt() {
        assert_ne!(
            hash("correct horse").unwrap(),
            hash("correct horse").unwrap()
        );
    }

    #[test]
    fn the_decoy_is_a_readable_hash_that_costs_as_much_as_a_real_one() {
        let decoy = PasswordHash::new(DECOY).unwrap();
        let real = hash("correct horse").unwrap();
        let real = PasswordHash::new(&real).unwrap();
        assert_eq!(decoy.params, real.params);
        assert_eq!(decoy.algorithm, real.algorithm);
        assert!(decoy.hash.is_some());
    }

    #[test]
    fn short_and_huge_passwords_are_refused_with_what_would_be_right() {
        let short = check_strength("1234567").unwrap_err().to_string();
        assert!(short.contains("7 characters; use at least 8"), "{short}");
        assert!(check_strength(&"x".repeat(LONGEST + 1)).is_err());
        assert!(check_strength("12345678").is_ok());
    }
}
