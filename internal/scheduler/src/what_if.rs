//! Questions about the state: where pods would be placed, which gangs could be evicted, what
//! defragmentation would do. Each is answered on a copy of the state that is dropped with the
//! answer, so it cannot change a later plan.
//!
//! Cost: one copy of the state for each question, and the search itself. `make bench-scheduler`
//! prints the cost of a copy. The caller may release its lock on the scheduler before it asks the
//! copy.

use crate::state::Scheduler;

/// A copy of a scheduler's state, for one question.
#[derive(Debug)]
pub struct WhatIf(pub(crate) Scheduler);

impl Scheduler {
    /// Copies the state for one question.
    #[must_use]
    pub fn what_if(&self) -> WhatIf {
        WhatIf(self.clone())
    }
}
