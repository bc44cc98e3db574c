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

/// The least number of characters in a password.
const SHORTEST: usize = 12;

/// The stored value of a user that has no password yet: no password matches it.
pub(crate) const NO_PASSWORD: &str = "none";

/// Frequent passwords that are long enough, in lower case. Lists of leaked passwords begin with such; this one is only
/// the part of them that the least length leaves.
const COMMON: [&str; 40] = [
    "123456789012",
    "1234567890123",
    "123456123456",
    "123123123123",
    "1q2w3e4r5t6y",
    "q1w2e3r4t5y6",
    "1qaz2wsx3edc",
    "qwertyuiop12",
    "qwertyuiop123",
    "qwertyqwerty",
    "qwerty123456",
    "qwertyuiopas",
    "asdfghjkl123",
    "abcdefghijkl",
    "abc123abc123",
    "abcd12345678",
    "password1234",
    "password12345",
    "password123456",
    "passwordpassword",
    "p@ssw0rd1234",
    "passw0rd1234",
    "mypassword123",
    "administrator",
    "administrator1",
    "admin1234567",
    "admin12345678",
    "adminadminadmin",
    "letmeinletmein",
    "letmein12345",
    "welcome12345",
    "welcome123456",
    "changeme1234",
    "changemechangeme",
    "iloveyou1234",
    "sunshine1234",
    "trustno1trustno1",
    "correcthorsebatterystaple",
    "correct horse battery staple",
    "mustermuster",
];

/// The maximum number of bytes that are hashed, so that a huge body cannot occupy a core.
const LONGEST: usize = 1024;

/// The most memory in KiB that checking a stored hash may take: a hash names its own cost, and a
/// damaged one must not take the server's memory.
pub(crate) const HASH_MEMORY_MAX: u32 = 64 * 1024;

/// The most passes over that memory.
pub(crate) const HASH_PASSES_MAX: u32 = 16;

/// The most lanes of that memory.
pub(crate) const HASH_LANES_MAX: u32 = 16;

/// A hash without a user, verified if the user does not exist, so that both responses take the same
/// time.
pub(crate) const DECOY: &str = "$argon2id$v=19$m=19456,t=2,p=1$bXVzdGVyLWRlY295LXNhbHQ$Vgd0dY0gQ0tZbnA6f3xHkM0eZ0s1Y9w0nQm6mJ2q1xI";

/// Refuses passwords of a user that are too short, too long, or easy to guess.
pub(crate) fn check_strength(user: &str, password: &str) -> Result<(), IdentityError> {
    let weak = |reason: String| Err(IdentityError::WeakPassword { reason });
    let characters = password.chars().count();
    if characters < SHORTEST {
        return weak(format!(
            "it has {characters} characters; use at least {SHORTEST}"
        ));
    }
    if password.len() > LONGEST {
        return weak(format!(
            "it is over {LONGEST} bytes long; use a shorter one"
        ));
    }
    let lower = password.to_lowercase();
    if !user.is_empty() && lower.replace(user, "").chars().count() < SHORTEST / 2 {
        return weak(
            "it is the user's name; use another one, such as four random words".to_owned(),
        );
    }
    let mut kinds = lower.chars().collect::<Vec<char>>();
    kinds.sort_unstable();
    kinds.dedup();
    if kinds.len() < 4 || COMMON.contains(&lower.as_str()) {
        return weak(
            "it is among the most common ones; use another one, such as four random words"
                .to_owned(),
        );
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

/// The memory of a hash, in KiB, and its passes and lanes: OWASP's first recommendation for argon2id.
const MEMORY_KIB: u32 = 19 * 1024;
const PASSES: u32 = 2;
const LANES: u32 = 1;

fn hasher() -> Argon2<'static> {
    let params = Params::new(MEMORY_KIB, PASSES, LANES, None)
        .expect("19 MiB, 2 passes, 1 lane are in range");
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
}

/// True if a stored hash costs an attacker less than a new one would: another algorithm, less memory or fewer passes.
pub(crate) fn is_outdated(stored: &str) -> bool {
    let Ok(hash) = PasswordHash::new(stored) else {
        return false;
    };
    let params = Params::try_from(&hash);
    hash.algorithm != Algorithm::Argon2id.ident()
        || hash.version != Some(Version::V0x13.into())
        || params.is_ok_and(|held| held.m_cost() < MEMORY_KIB || held.t_cost() < PASSES)
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

/// True if the password matches the hash. No password matches an unreadable hash, such as [`NO_PASSWORD`], which takes
/// as long to find out as with a readable one.
pub(crate) fn verify(password: &str, stored: &str) -> bool {
    if password.len() > LONGEST {
        return false;
    }
    let matches = |text: &str| {
        readable(text).map(|hash| hasher().verify_password(password.as_bytes(), &hash).is_ok())
    };
    matches(stored).unwrap_or_else(|| {
        let _ = matches(DECOY);
        false
    })
}

/// A stored hash, if it can be read and its cost is within the bounds.
fn readable(stored: &str) -> Option<PasswordHash<'_>> {
    let hash = PasswordHash::new(stored).ok()?;
    let cost = Params::try_from(&hash).ok()?;
    let within = cost.m_cost() <= HASH_MEMORY_MAX
        && cost.t_cost() <= HASH_PASSES_MAX
        && cost.p_cost() <= HASH_LANES_MAX;
    within.then_some(hash)
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
        let refused = |text: &str| check_strength("ann", text).unwrap_err().to_string();
        let short = refused("walnut-tray");
        assert!(short.contains("11 characters; use at least 12"), "{short}");
        assert!(check_strength("ann", "walnut-tray1").is_ok());
        let long = "walnut-tray1".repeat(LONGEST / 12);
        assert!(check_strength("ann", &format!("{long}1234")).is_ok());
        assert!(refused(&format!("{long}12345")).contains("over 1024 bytes"));
    }

    #[test]
    fn names_and_common_passwords_are_refused() {
        for common in [
            "Password1234",
            "aaaaaaaaaaaaaaaa",
            "121212121212",
            "123456789012",
        ] {
            let refused = check_strength("ann", common).unwrap_err().to_string();
            assert!(refused.contains("most common"), "{common}: {refused}");
        }
        for (user, password) in [
            ("christopher-x", "Christopher-X"),
            ("ann", "annannannann1"),
            ("bobby-tables", "bobby-tables1"),
        ] {
            let refused = check_strength(user, password).unwrap_err().to_string();
            assert!(refused.contains("user's name"), "{password}: {refused}");
        }
        assert!(check_strength("ann", "planned cannery").is_ok());
        for common in COMMON {
            assert!(common.chars().count() >= SHORTEST && common == common.to_lowercase());
        }
    }

    #[test]
    fn a_hash_with_less_memory_or_fewer_passes_is_outdated_and_still_verifies() {
        let with = |memory: u32, passes: u32| {
            let params = Params::new(memory, passes, 1, None).unwrap();
            let salt = SaltString::encode_b64(&[7; 16]).unwrap();
            let hasher = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
            hasher
                .hash_password(b"walnut-tray1", &salt)
                .unwrap()
                .to_string()
        };
        for (memory, passes, outdated) in [
            (MEMORY_KIB, PASSES, false),
            (MEMORY_KIB + 1, PASSES, false),
            (MEMORY_KIB - 1, PASSES, true),
            (MEMORY_KIB, PASSES - 1, true),
        ] {
            let stored = with(memory, passes);
            assert_eq!(is_outdated(&stored), outdated, "{memory} {passes}");
            assert!(verify("walnut-tray1", &stored));
        }
        assert!(!is_outdated(NO_PASSWORD) && !verify("none", NO_PASSWORD));
    }

    #[test]
    fn a_hash_is_computed_within_its_bounds_of_cost_only() {
        let [memory, passes, lanes] =
            [HASH_MEMORY_MAX, HASH_PASSES_MAX, HASH_LANES_MAX].map(u64::from);
        let within = |memory, passes, lanes| {
            let parts = format!("m={memory},t={passes},p={lanes}");
            let hash = DECOY.replace("m=19456,t=2,p=1", &parts);
            readable(&hash).is_some()
        };
        assert!(within(memory, passes, lanes));
        for (memory, passes, lanes) in [
            (memory + 1, passes, lanes),
            (memory, passes + 1, lanes),
            (memory, passes, lanes + 1),
            (u64::from(u32::MAX), u64::from(u32::MAX), 1),
        ] {
            assert!(!within(memory, passes, lanes), "{memory} {passes} {lanes}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_stored_hash_panics(text in crate::documents::broken(vec![
            DECOY,
            "$argon2id$v=19$m=8,t=1,p=1,keyid=Hj5+dsK0ZQ,data=sRlHhRmKUGzdOmXn01XmXygd5Kc$c2FsdHNhbHQ$Vgd0dY0gQ0tZbnAF",
            "$argon2i$m=4294967295,t=4294967295,p=255$c2FsdHNhbHQ$Vgd0dY0gQ0tZbnAF",
        ])) {
            if let Some(hash) = readable(&text) {
                let cost = Params::try_from(&hash).unwrap();
                proptest::prop_assert!(cost.m_cost() <= HASH_MEMORY_MAX);
                // Printed and read again, it is the same hash.
                let printed = hash.to_string();
                proptest::prop_assert_eq!(PasswordHash::new(&printed).unwrap(), hash);
            }
        }
    }
}
