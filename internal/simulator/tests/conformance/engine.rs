//! An engine of the conformance cases that uses only files and lines: objects become the YAML of
//! `muster simulate`, and decisions are read from its output lines.

use std::collections::BTreeMap;

use jiff::Timestamp;
use resources::report::PlacementReport;
use serde_json::{Value, json};

pub use crate::asked::{Action, Decisions, Evicted, Placed, Placing, Settings};

/// Seconds between two plans of a case, and from an eviction until the pod is gone.
pub const ROUND: i64 = 60;
/// The limit of rounds, above any case's number.
const ROUNDS_MAX: i64 = 100;

/// The simulator under test.
pub struct Engine {
    settings: Settings,
    told: Vec<Value>,
    lines: Vec<Value>,
    /// Plans asked for so far.
    plans: i64,
    nominated: BTreeMap<String, Placed>,
}

impl Engine {
    pub fn new(settings: &Settings) -> Engine {
        Engine {
            settings: settings.clone(),
            told: Vec::new(),
            lines: Vec::new(),
            plans: 0,
            nominated: BTreeMap::new(),
        }
    }

    /// Adds an object in its initial state; the simulator computes its later states.
    pub fn notify(&mut self, object: &Value) {
        if self.plans == 0 {
            self.told.push(object.clone());
        }
    }

    /// The simulator tracks this itself.
    pub fn pod_gone(&mut self, _namespace: &str, _name: &str) {}

    pub fn plan(&mut self, _now: Timestamp) -> Decisions {
        // Most cases ask for one plan only.
        if self.plans < 2 {
            let until = if self.plans == 0 {
                0
            } else {
                ROUNDS_MAX * ROUND
            };
            self.lines = crate::simulate(&self.text(), until);
        }
        let from = self.plans * ROUND;
        self.plans += 1;
        assert!(self.plans < ROUNDS_MAX, "a case has more rounds");
        self.decided(from)
    }

    /// The file.
    fn text(&self) -> String {
        let config = self.config();
        let documents = self.told.iter().chain([&config]).map(|object| {
            serde_norway::to_string(object).expect("an object can be written as YAML")
        });
        documents.collect::<Vec<String>>().join("---\n")
    }

    fn config(&self) -> Value {
        let mut spec = json!({"topology": self.settings.topology, "staleAfter": "0s"});
        let words = self.settings.actions.iter().map(|action| match action {
            Action::Allocate => "allocate",
            Action::Consolidate => "consolidate",
            Action::Reclaim => "reclaim",
            Action::Preempt => "preempt",
        });
        let words: Vec<&str> = words.collect();
        if !words.is_empty() {
            spec["actions"] = json!(words);
        }
        match self.settings.placing {
            Placing::Default => {}
            Placing::Pack => spec["placement"] = json!("pack"),
            Placing::Spread => spec["placement"] = json!("spread"),
        }
        if self.settings.spread_gpus {
            spec["gpus"] = json!("spread");
        }
        json!({"apiVersion": "muster.io/v1alpha1", "kind": "SchedulerConfig", "spec": spec})
    }

    /// The decisions in the round that begins then.
    fn decided(&mut self, from: i64) -> Decisions {
        let mut decisions = Decisions::default();
        let round = self.lines.iter().filter(|line| {
            let second = line["second"].as_i64().expect("a line says when");
            (from..from + ROUND).contains(&second)
        });
        for line in round {
            let word = |field: &str| line[field].as_str().unwrap_or_default().to_owned();
            let placed = || Placed {
                pod: word("pod"),
                node: word("node"),
                devices: match line["devices"].as_object() {
                    Some(map) if !map.is_empty() => line["devices"].to_string(),
                    _ => String::new(),
                },
            };
            match line["decision"].as_str().unwrap_or_default() {
                "bound" => {
                    let placed = placed();
                    self.nominated.remove(&placed.pod);
                    decisions.binds.push(placed);
                }
                "evicted" => decisions.evictions.push(Evicted {
                    pod: word("pod"),
                    why: word("reason"),
                }),
                "nominated" => {
                    self.nominated.insert(word("pod"), placed());
                }
                "released" => {
                    self.nominated.remove(&word("pod"));
                }
                "pending" => {
                    let report: PlacementReport = serde_json::from_value(line["report"].clone())
                        .expect("a report can be read back");
                    decisions.waits.push((word("group"), report.sentence()));
                }
                "violation" => panic!("{}", line["what"]),
                _ => {}
            }
        }
        decisions.nominated = self.nominated.values().cloned().collect();
        decisions
    }
}
