//! The server's alerts: which conditions hold for how long, who is notified of them, and what was delivered. It has no
//! clock and does no I/O: a shell feeds it with the cluster's state and the time, sends what is due, and stores the
//! saved state.
//!
//! A condition ([`conditions`]) becomes an alert once it has held for its rule's time, and the alert ends once the
//! condition has been absent for [`ENDS_AFTER`]. The beginning and the end of an alert are each delivered to every
//! receiver that wants it, and are repeated until the receiver takes them or [`GIVE_UP`] has passed. A [`Silence`] keeps
//! matching alerts from being delivered; an alert that outlasts its silence is delivered then.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod alerts;
mod body;
mod book;
mod conditions;
mod outbox;
mod receivers;
mod rule;
mod silence;

pub use alerts::{Alerts, AlertsState, DueDelivery, ReceiverReport, UnknownReceiver};
pub use body::body;
pub use book::{ALERTS_MAX, ENDS_AFTER, FiringAlert};
pub use conditions::{
    BackupFacts, Condition, DiskFacts, ServerFacts, Subject, SubjectKind, conditions,
};
pub use outbox::{
    DeliveryRecord, FIRST_PAUSE, GIVE_UP, HISTORY_MAX, LONGEST_PAUSE, Notice, NoticeStatus,
    QUEUE_MAX,
};
pub use receivers::{
    RECEIVERS_MAX, Receiver, ReceiverKind, ReceiversError, Secret, read as read_receivers,
};
pub use rule::{Rule, Severity, UnknownRule};
pub use silence::{SILENCE_DAYS_MAX, SILENCES_MAX, Silence, SilenceError, SilenceRequest};
