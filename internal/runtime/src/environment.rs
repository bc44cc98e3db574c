//! The environment of the programs that an agent starts.

/// The variables by which systemd tells a service where to report that it is ready and that it still works. They are
/// for the service's own process: a child that used them would report for the agent.
pub const SERVICE_MANAGER_VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"];
