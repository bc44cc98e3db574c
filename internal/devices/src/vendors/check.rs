//! Runs a vendor's health command on each of its devices, all at once, and abandons commands that
//! take too long. Blocks its thread.

use std::collections::BTreeMap;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::discovery::{VendorDevice, VendorDeviceState};
use super::{HealthCommand, NUMBER};

/// Interval at which a running command is polled.
const LOOK: Duration = Duration::from_millis(20);

/// Why a device is not known to be healthy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum HealthCommandError {
    #[error("its last check was ended and does not go away")]
    Stuck,
    #[error("its check ended with {0}")]
    Failed(ExitStatus),
    /// With the operating system's error.
    #[error("its check cannot be waited for: {0}")]
    NotWaited(String),
    #[error("its check took more than {0} s (health.timeoutSeconds)")]
    Slow(u64),
    #[error("its check has no command")]
    NoCommand,
    /// With the operating system's error.
    #[error("its check cannot be run: {program}: {error}")]
    NotRun { program: String, error: String },
}

/// The known health of each device, by number.
pub(super) struct Checks {
    health: HealthCommand,
    last: Option<Instant>,
    known: BTreeMap<u32, Result<(), HealthCommandError>>,
    /// Killed commands that still exist: a process that waits for a hung device can't be killed.
    stuck: BTreeMap<u32, Child>,
}

impl Checks {
    pub(super) fn new(health: HealthCommand) -> Checks {
        Checks {
            health,
            last: None,
            known: BTreeMap::new(),
            stuck: BTreeMap::new(),
        }
    }

    /// Sets each device's health, by a new check if one is due: for a new device, or when the
    /// interval has passed.
    pub(super) fn assess(&mut self, devices: &mut [VendorDevice], now: Instant) {
        let known = |device: &VendorDevice| self.known.contains_key(&device.number);
        let due = (self.last).is_none_or(|last| now.duration_since(last) >= self.health.every);
        if due || !devices.iter().all(known) {
            self.last = Some(now);
            let found = self.run(devices);
            for (number, result) in &found {
                let before = self.known.get(number);
                if let Err(why) = result
                    && before != Some(result)
                {
                    tracing::warn!(
                        number,
                        "a device is taken as unhealthy until a check succeeds: {why}"
                    );
                }
            }
            self.known = found;
        }
        for device in devices {
            device.state = match self.known.get(&device.number) {
                None => VendorDeviceState::Unchecked,
                Some(Ok(())) => VendorDeviceState::Healthy,
                Some(Err(why)) => VendorDeviceState::Unhealthy(why.to_string()),
            };
        }
    }

    /// One check of each device, in parallel.
    fn run(&mut self, devices: &[VendorDevice]) -> BTreeMap<u32, Result<(), HealthCommandError>> {
        self.stuck
            .retain(|_, child| matches!(child.try_wait(), Ok(None)));
        let mut found = BTreeMap::new();
        let mut running = BTreeMap::new();
        for device in devices {
            let number = device.number;
            if self.stuck.contains_key(&number) {
                found.insert(number, Err(HealthCommandError::Stuck));
                continue;
            }
            match self.start(number) {
                Ok(child) => drop(running.insert(number, child)),
                Err(why) => drop(found.insert(number, Err(why))),
            }
        }
        let until = Instant::now() + self.health.timeout;
        while !running.is_empty() {
            running.retain(|number, child: &mut Child| match child.try_wait() {
                Ok(None) => true,
                Ok(Some(status)) if status.success() => {
                    found.insert(*number, Ok(()));
                    false
                }
                Ok(Some(status)) => {
                    found.insert(*number, Err(HealthCommandError::Failed(status)));
                    false
                }
                Err(error) => {
                    found.insert(
                        *number,
                        Err(HealthCommandError::NotWaited(error.to_string())),
                    );
                    false
                }
            });
            if Instant::now() >= until {
                break;
            }
            std::thread::sleep(LOOK);
        }
        for (number, mut child) in running {
            let seconds = self.health.timeout.as_secs();
            found.insert(number, Err(HealthCommandError::Slow(seconds)));
            // It may have ended already.
            let _ = child.kill();
            self.stuck.insert(number, child);
        }
        found
    }

    fn start(&self, number: u32) -> Result<Child, HealthCommandError> {
        let words: Vec<String> = (self.health.command.iter())
            .map(|word| word.replace(NUMBER, &number.to_string()))
            .collect();
        let (program, arguments) = words.split_first().ok_or(HealthCommandError::NoCommand)?;
        let mut command = Command::new(program);
        for name in runtime::SERVICE_MANAGER_VARIABLES {
            command.env_remove(name);
        }
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| HealthCommandError::NotRun {
                program: program.clone(),
                error: error.to_string(),
            })
    }
}
