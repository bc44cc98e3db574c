//! Built-in GPU alerts for clusters without Prometheus: the meaning, hold time and text of each, and the annotation
//! [`crate::names::ALERTS`], in which agents write the firing alerts. Pure. `packaging/monitoring` has the same rules
//! for Prometheus, from [`AlertRule::promql`].

mod watch;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use serde::{Deserialize, Serialize};

pub use watch::{AlertWatcher, GpuSample};

/// The utilisation in percent below which an allocated GPU is underused.
pub const UNDERUSED_PERCENT: f64 = 30.0;
/// The temperature in degrees Celsius above which a GPU throttles or soon will.
pub const HOT_CELSIUS: f64 = 85.0;
/// The fraction of a GPU's memory above which it is nearly full.
pub const FULL_MEMORY: f64 = 0.9;
/// The fraction of a GPU's power limit above which it has no reserve.
pub const FULL_POWER: f64 = 0.95;
/// The number of corrected single-bit errors within [`CORRECTED_WITHIN`] above which the alert fires.
pub const CORRECTED: u64 = 10;
/// The window in which they are counted.
pub const CORRECTED_WITHIN: Duration = Duration::from_secs(600);

/// An alert rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum AlertRule {
    /// The GPU is allocated and hardly used.
    GpuUnderused,
    /// The GPU is too hot.
    GpuHot,
    /// The GPU's memory is nearly full.
    GpuMemoryNearlyFull,
    /// The GPU draws nearly its power limit.
    GpuPowerNearLimit,
    /// The GPU's count of corrected memory errors grows.
    GpuCorrectedErrorsGrow,
}

impl AlertRule {
    /// All rules.
    pub const ALL: [AlertRule; 5] = [
        AlertRule::GpuUnderused,
        AlertRule::GpuHot,
        AlertRule::GpuMemoryNearlyFull,
        AlertRule::GpuPowerNearLimit,
        AlertRule::GpuCorrectedErrorsGrow,
    ];

    /// The rule's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            AlertRule::GpuUnderused => "GpuUnderused",
            AlertRule::GpuHot => "GpuHot",
            AlertRule::GpuMemoryNearlyFull => "GpuMemoryNearlyFull",
            AlertRule::GpuPowerNearLimit => "GpuPowerNearLimit",
            AlertRule::GpuCorrectedErrorsGrow => "GpuCorrectedErrorsGrow",
        }
    }

    /// True if the alert is a warning about the machine; otherwise it is a hint about the workload.
    #[must_use]
    pub fn warns(self) -> bool {
        matches!(self, AlertRule::GpuHot | AlertRule::GpuCorrectedErrorsGrow)
    }

    /// The time for which the condition must hold without a break before the alert fires.
    #[must_use]
    pub fn hold(self) -> Duration {
        Duration::from_secs(match self {
            AlertRule::GpuUnderused => 600,
            AlertRule::GpuHot => 60,
            AlertRule::GpuMemoryNearlyFull | AlertRule::GpuPowerNearLimit => 300,
            // This rule has its own window.
            AlertRule::GpuCorrectedErrorsGrow => 0,
        })
    }

    /// True if the condition holds at this value, which is in the rule's own unit (see the thresholds).
    #[must_use]
    pub fn holds(self, value: f64) -> bool {
        match self {
            AlertRule::GpuUnderused => value < UNDERUSED_PERCENT,
            AlertRule::GpuHot => value > HOT_CELSIUS,
            AlertRule::GpuMemoryNearlyFull => value > FULL_MEMORY,
            AlertRule::GpuPowerNearLimit => value > FULL_POWER,
            AlertRule::GpuCorrectedErrorsGrow => value > CORRECTED as f64,
        }
    }

    /// The same condition as a Prometheus expression over the agents' metrics.
    #[must_use]
    pub fn promql(self) -> String {
        match self {
            AlertRule::GpuUnderused => format!(
                "DCGM_FI_DEV_GPU_UTIL < {UNDERUSED_PERCENT} and on (UUID, Hostname) muster_gpu_holders > 0"
            ),
            AlertRule::GpuHot => format!("DCGM_FI_DEV_GPU_TEMP > {HOT_CELSIUS}"),
            AlertRule::GpuMemoryNearlyFull => format!(
                "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) > {FULL_MEMORY}"
            ),
            AlertRule::GpuPowerNearLimit => {
                format!("DCGM_FI_DEV_POWER_USAGE / DCGM_FI_DEV_ENFORCED_POWER_LIMIT > {FULL_POWER}")
            }
            AlertRule::GpuCorrectedErrorsGrow => format!(
                "increase(DCGM_FI_DEV_ECC_SBE_AGG_TOTAL[{}m]) > {CORRECTED}",
                CORRECTED_WITHIN.as_secs() / 60
            ),
        }
    }
}

/// A firing alert.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alert {
    /// The rule.
    pub alert: AlertRule,
    /// The GPU's id.
    pub id: String,
    /// Its index.
    pub gpu: u32,
    /// The time since which the alert fires.
    pub since: Timestamp,
    /// The value measured at that time, in the rule's own unit.
    pub value: f64,
}

impl Alert {
    /// The alert's text: a sentence without a full stop.
    #[must_use]
    pub fn message(&self) -> String {
        let (gpu, value) = (self.gpu, self.value);
        let percent = value * 100.0;
        match self.alert {
            AlertRule::GpuUnderused => format!(
                "GPU {gpu} is allocated and hardly used: under {UNDERUSED_PERCENT}% busy for {} minutes ({value:.0}%)",
                self.alert.hold().as_secs() / 60
            ),
            AlertRule::GpuHot => format!(
                "GPU {gpu} is over {HOT_CELSIUS} °C ({value:.0} °C) and slows down before it is \
                 damaged; look at fans, inlet temperature and dust"
            ),
            AlertRule::GpuMemoryNearlyFull => format!(
                "the memory of GPU {gpu} is over {:.0}% full ({percent:.0}%); more may not fit",
                FULL_MEMORY * 100.0
            ),
            AlertRule::GpuPowerNearLimit => format!(
                "GPU {gpu} draws over {:.0}% of its power limit ({percent:.0}%), and its clocks are \
                 held down to keep it there",
                FULL_POWER * 100.0
            ),
            AlertRule::GpuCorrectedErrorsGrow => format!(
                "the memory of GPU {gpu} has a growing number of single-bit errors ({value:.0} in {} minutes), and \
                 uncorrectable errors may follow; move its work away and reset it",
                CORRECTED_WITHIN.as_secs() / 60
            ),
        }
    }

    /// The text for the end of the alert.
    #[must_use]
    pub fn end(&self) -> String {
        format!("{} of GPU {} has ended", self.alert.name(), self.gpu)
    }

    fn is(&self, other: &Alert) -> bool {
        (self.alert, &self.id) == (other.alert, &other.id)
    }
}

/// An event on a node about an alert that begins or ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// True if the alert begins, false if it ends.
    pub begins: bool,
    /// True if the event is a warning.
    pub warns: bool,
    /// The event's reason.
    pub reason: String,
    /// The event's message.
    pub message: String,
}

/// The events for the change from `before` to `now`: begun alerts first.
#[must_use]
pub fn news(before: &[Alert], now: &[Alert]) -> Vec<News> {
    let (begun, ended) = changes(before, now);
    let begun = begun.into_iter().map(|alert| News {
        begins: true,
        warns: alert.alert.warns(),
        reason: alert.alert.name().to_owned(),
        message: alert.message(),
    });
    let ended = ended.into_iter().map(|alert| News {
        begins: false,
        warns: false,
        reason: format!("{}Ended", alert.alert.name()),
        message: alert.end(),
    });
    begun.chain(ended).collect()
}

/// The alerts that fire only now, and those that fired only before.
fn changes<'a>(before: &'a [Alert], now: &'a [Alert]) -> (Vec<&'a Alert>, Vec<&'a Alert>) {
    let without = |these: &'a [Alert], those: &'a [Alert]| -> Vec<&'a Alert> {
        let is_not = |one: &&Alert| !those.iter().any(|other| other.is(one));
        these.iter().filter(is_not).collect()
    };
    (without(now, before), without(before, now))
}

/// The firing alerts of a node, as its agent wrote them; empty without an annotation.
#[must_use]
pub fn of_node(node: &Node) -> Vec<Alert> {
    let annotations = node.metadata.annotations.as_ref();
    let text = annotations.and_then(|all| all.get(crate::names::ALERTS));
    text.and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default()
}
