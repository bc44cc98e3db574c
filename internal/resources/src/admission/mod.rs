//! Admission checks beyond validation: limit ranges, quotas, priorities, the user that work runs for, the writes of
//! nodes, reserved fields, the use of queues, the team that work counts for, pod security, service accounts. Pure: the caller passes in the objects that
//! apply, and the caller makes "read usage, then write" atomic.

mod critical;
mod limits;
mod node_access;
mod node_restriction;
mod owner;
pub mod pod_security;
mod priority;
mod queue_use;
pub mod quota;
mod reserved;
mod service_account;
mod team;
mod templates;

pub use critical::{Critical, critical, takes_critical_pods};
pub use limits::limit_ranges;
pub use node_access::{AccessCondition, ReferenceKind, ReferencedObject, need, references};
pub use node_restriction::{is_reserved_node_label, node_restriction};
pub use owner::{
    ChangeRefused, OWNED, OwnerRefused, PodEntryRefused, are_fellows, enter_work, keep_work, owner,
};
pub use priority::{HIGHEST_USER_PRIORITY, PriorityError, SYSTEM_CLASSES, priority};
pub use queue_use::{NotAdmitted, admits_namespace, default_queue, name_queue, queues_named};
pub use reserved::{AllowedWriter, ReservedFieldViolation, keep_reserved, reserved};
pub use service_account::{DEFAULT_ACCOUNT, account_name, service_account};
pub use team::{TeamRefused, named_team, remove_team, set_team};
