//! A preview of defragmentation: data and its sentence.

use serde::{Deserialize, Serialize};

/// A pod that would be moved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DefragmentationMove {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub pod: String,
    /// Its gang: a PodGroup's name, or the pod's own.
    pub group: String,
    /// The node that it would leave.
    pub from: String,
    /// The node that it would move to.
    pub to: String,
}

/// The moves that defragmentation would make now, and their gain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DefragmentationReport {
    /// True if plans carry them out: the scheduler's actions include `defragment`.
    pub enabled: bool,
    /// The most members that may be moved in any hour.
    pub moves_an_hour: usize,
    /// The pods that would be moved.
    pub moves: Vec<DefragmentationMove>,
    /// Nodes that would become whole: all their GPUs free.
    pub nodes: Vec<String>,
    /// The number of whole nodes now.
    pub whole_before: usize,
    /// The number of whole nodes afterwards.
    pub whole_after: usize,
    /// GPUs of the nodes that would become whole.
    pub gpus_gained: i64,
    /// GPU-hours of work since the last checkpoint that would be lost, as far as known.
    pub gpu_hours_lost: f64,
}

impl DefragmentationReport {
    /// The preview as text, as the CLI and the API show it.
    #[must_use]
    pub fn sentence(&self) -> String {
        if self.moves.is_empty() {
            return "Defragmentation would move nothing: no move of permitted pods makes all GPUs of a node free."
                .to_owned();
        }
        let plural = |count: usize, one: &str, many: &str| match count {
            1 => format!("1 {one}"),
            _ => format!("{count} {many}"),
        };
        let will = if self.enabled {
            "plans do this when they have nothing else to do"
        } else {
            "the scheduler's actions do not contain defragment, so no plan does this"
        };
        format!(
            "Moving {} would make {} whole ({} GPUs; {} whole now, {} then) and lose {:.1} GPU-hours of work; {will}.",
            plural(self.moves.len(), "pod", "pods"),
            plural(self.nodes.len(), "node", "nodes"),
            self.gpus_gained,
            self.whole_before,
            self.whole_after,
            self.gpu_hours_lost,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_states_gain_and_loss_and_whether_defragmentation_is_enabled() {
        let mut report = DefragmentationReport::default();
        assert!(
            report
                .sentence()
                .contains("Defragmentation would move nothing")
        );
        report.moves = vec![DefragmentationMove::default(); 2];
        report.nodes = vec!["n1".to_owned()];
        (report.gpus_gained, report.whole_before, report.whole_after) = (8, 3, 4);
        report.gpu_hours_lost = 1.25;
        assert_eq!(
            report.sentence(),
            "Moving 2 pods would make 1 node whole (8 GPUs; 3 whole now, 4 then) and lose 1.2 GPU-hours of work; the scheduler's actions do not contain defragment, so no plan does this."
        );
        report.enabled = true;
        assert!(report.sentence().ends_with("nothing else to do."));
    }
}
