//! Owns the bounds on commands in containers, attached clients and clients that forward ports: of one user, and of all.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::status::Failure;

/// The maximum number of commands, attached clients and clients that forward ports of one user at the same time.
const PER_USER_MAX: usize = 128;
/// The same, of all users.
const ALL_MAX: usize = 4096;

/// How many commands each user runs.
#[derive(Default)]
pub(crate) struct ExecCounts(Arc<Mutex<BTreeMap<String, usize>>>);

/// One command's place among those of its user.
pub(crate) struct ExecPlace {
    counts: Arc<Mutex<BTreeMap<String, usize>>>,
    user: String,
}

impl ExecCounts {
    /// A place for one more command of this user, or the refusal.
    pub(crate) fn place(&self, user: &str) -> Result<ExecPlace, Failure> {
        let mut counts = self.0.lock();
        if counts.values().sum::<usize>() >= ALL_MAX {
            return Err(Failure::too_many(&format!(
                "all users together run {ALL_MAX} commands in containers already; try again when some have ended"
            )));
        }
        let count = counts.entry(user.to_owned()).or_default();
        if *count >= PER_USER_MAX {
            return Err(Failure::too_many(&format!(
                "user {user:?} runs {PER_USER_MAX} commands in containers, attached clients and port forwards included, already; \
                 end one and try again"
            )));
        }
        *count += 1;
        Ok(ExecPlace {
            counts: self.0.clone(),
            user: user.to_owned(),
        })
    }
}

impl Drop for ExecPlace {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        let count = counts.remove(&self.user).unwrap_or_default();
        if count > 1 {
            counts.insert(self.user.clone(), count - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_and_all_users_have_a_bounded_number_of_commands_and_places_come_back() {
        let counts = ExecCounts::default();
        let of = |user: usize| counts.place(&format!("user-{user}"));
        let mut places: Vec<ExecPlace> = (0..PER_USER_MAX).map(|_| of(0).ok().unwrap()).collect();
        assert!(of(0).is_err());
        places.pop();
        places.push(of(0).ok().unwrap());
        let others = 1..ALL_MAX / PER_USER_MAX;
        places.extend(
            others
                .flat_map(|user| (0..PER_USER_MAX).map(move |_| user))
                .map(|user| of(user).ok().unwrap()),
        );
        assert_eq!(places.len(), ALL_MAX);
        assert!(of(9999).is_err());
        places.pop();
        assert!(of(9999).is_ok());
    }
}
