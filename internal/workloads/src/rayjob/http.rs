//! HTTPMode: the server submits the program by Ray's REST API, and follows it by asking Ray for its name.
//!
//! The server asks for the name before it submits, and submits only until Ray has known the name once: a program that
//! Ray no longer knows was lost with its head. Ray itself refuses a second program of the same name.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use resources::kinds::RayCluster;
use resources::numbers::later;
use resources::times::whole;
use serde_json::Value;

use super::phase::RayJobPhase;
use super::{
    Decision, LOOK_AGAIN, ProgramEnd, failed_with, head_run, name, objects, why_not_ready,
};
use crate::pod_facts;

/// Seconds between two questions about a program.
const ASK_AGAIN: i64 = 2;
/// Seconds without an answer after which the attempt fails. KubeRay's.
const SILENCE_MAX: i64 = 300;
/// The longest part of a text of Ray's in a sentence, in characters.
const CLAUSE_MAX: usize = 300;
/// The states of a program that it does not leave.
const ENDS: [&str; 3] = ["SUCCEEDED", "FAILED", STOPPED];
/// The state of a program that was stopped from outside.
const STOPPED: &str = "STOPPED";

/// What Ray says of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RayProgram {
    /// PENDING, RUNNING, STOPPED, SUCCEEDED or FAILED.
    pub status: String,
    /// The exit code of its process, if that has ended.
    pub exit_code: Option<i64>,
    /// Why it is in this state, as a part of a sentence.
    pub message: String,
}

impl RayProgram {
    /// Reads an answer to `GET /api/jobs/NAME`; none if it has no state of a program.
    #[must_use]
    pub fn of(answer: &Value) -> Option<RayProgram> {
        let status = answer["status"].as_str()?;
        if !["PENDING", "RUNNING"].contains(&status) && !ENDS.contains(&status) {
            return None;
        }
        let message = answer["message"].as_str().unwrap_or_default();
        // The message repeats the output.
        let message = message.split(", last available logs").next();
        Some(RayProgram {
            status: status.to_owned(),
            exit_code: answer["driver_exit_code"].as_i64(),
            message: pod_facts::clause(message.unwrap_or_default(), CLAUSE_MAX),
        })
    }

    /// Whether it has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        ENDS.contains(&self.status.as_str())
    }

    fn end(&self) -> Option<ProgramEnd> {
        let failed = |message: String| ProgramEnd::Failed {
            reason: "AppFailed",
            message,
        };
        let code = self.exit_code.filter(|code| *code != 0);
        match (self.status.as_str(), code) {
            ("SUCCEEDED", _) => Some(ProgramEnd::Succeeded),
            (STOPPED, _) => Some(failed("The program was stopped in Ray.".to_owned())),
            ("FAILED", Some(code)) => Some(failed_with(code)),
            ("FAILED", None) if self.message.is_empty() => {
                Some(failed("The program failed.".to_owned()))
            }
            ("FAILED", None) => Some(failed(format!("The program failed: {}.", self.message))),
            _ => None,
        }
    }
}

/// An answer about a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramAnswer {
    /// Ray knows the program.
    Known(RayProgram),
    /// Ray does not know it.
    Unknown,
    /// Ray does not take it; another try would not change that.
    Refused(String),
    /// There is no answer.
    Silent(String),
}

/// What Ray answered about a program when it was asked last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramObservation {
    /// The run of the head that was asked.
    pub head_run: String,
    /// The program's name in Ray.
    pub id: String,
    /// The answer.
    pub answer: ProgramAnswer,
    /// Whether this run of the head has taken the program at any time.
    pub submitted: bool,
}

/// What is to be done before Ray is asked.
#[derive(Clone, Debug, PartialEq)]
pub enum ProgramErrand {
    /// Nothing.
    Follow,
    /// Submit the program by this request, if Ray does not know it.
    Submit(Value),
    /// Stop the program, if it runs.
    Stop,
}

/// What Ray is to be asked next.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramRequest {
    /// The pod of the head.
    pub head_pod: String,
    /// The run of the head.
    pub head_run: String,
    /// The dashboard's port at the head.
    pub dashboard: u16,
    /// The program's name in Ray.
    pub id: String,
    /// What is to be done before.
    pub errand: ProgramErrand,
    /// True if the cluster outlives the job: a program whose job is deleted must be stopped.
    pub outlives: bool,
}

impl Decision<'_> {
    /// Follows the program by what Ray answered last.
    pub(super) fn follow_by_http(&mut self) {
        let answer = self.observation().map(|known| known.answer.clone());
        if let Some(ProgramAnswer::Known(program)) = &answer
            && let Some(end) = program.end()
        {
            return self.conclude(end);
        }
        let Some(cluster) = self.kept_cluster() else {
            return;
        };
        let submitted = self.was_submitted();
        match answer {
            Some(ProgramAnswer::Known(program)) => {
                let text = match program.status.as_str() {
                    "RUNNING" => "The program runs.",
                    _ => "The program is submitted.",
                };
                let status = &mut self.outcome.status;
                status.job_status_check_failure_start_time = None;
                status.job_status = Some(program.status);
                self.enter(RayJobPhase::Running, text);
            }
            Some(ProgramAnswer::Unknown) if submitted => {
                let text = format!(
                    "Ray on RayCluster {} no longer knows the program: its head started anew.",
                    name(cluster)
                );
                return self.fail("HeadLost", &text);
            }
            Some(ProgramAnswer::Refused(text)) => {
                let text = format!("Ray refused the program: {}.", last_line(&text));
                return self.fail("SubmissionFailed", &text);
            }
            Some(ProgramAnswer::Silent(text)) => {
                let text = format!(
                    "Ray on RayCluster {} does not answer about the program: {}.",
                    name(cluster),
                    last_line(&text)
                );
                if self.is_silent_for_too_long(&text) {
                    return;
                }
            }
            Some(ProgramAnswer::Unknown) | None => {}
        }
        let id = self.outcome.status.job_id.clone().unwrap_or_default();
        let errand = match self.was_submitted() {
            true => ProgramErrand::Follow,
            false => ProgramErrand::Submit(objects::request(&self.plan, &id)),
        };
        self.request = self.ask(cluster, errand);
        if self.request.is_none() && self.is_silent_for_too_long(&why_not_ready(cluster)) {
            return;
        }
        self.outcome.requeue(later(self.now, ASK_AGAIN));
    }

    /// Stops the program of a job that ended before it, on a cluster that stays.
    pub(super) fn stop_by_http(&mut self) {
        let run = self.outcome.status.head_run.clone();
        if run.is_none() || self.outcome.status.job_status.as_deref() == Some(STOPPED) {
            return;
        }
        let over = match self.observation().map(|known| &known.answer) {
            Some(ProgramAnswer::Known(program)) => program.has_ended(),
            Some(ProgramAnswer::Unknown) => true,
            _ => false,
        };
        let cluster = self.usable().filter(|_| !over);
        match cluster.filter(|cluster| head_run(cluster) == run.as_deref()) {
            Some(cluster) => {
                self.request = self.ask(cluster, ProgramErrand::Stop);
                self.outcome.requeue(later(self.now, LOOK_AGAIN));
            }
            None => self.outcome.status.job_status = Some(STOPPED.to_owned()),
        }
    }

    /// What is known of this attempt's program.
    fn observation(&self) -> Option<&ProgramObservation> {
        let status = &self.outcome.status;
        self.program.filter(|known| {
            status.job_id.as_deref() == Some(known.id.as_str())
                && status.head_run.as_deref() == Some(known.head_run.as_str())
        })
    }

    fn was_submitted(&self) -> bool {
        let observed = self.observation().is_some_and(|known| known.submitted);
        observed || self.outcome.status.job_status.is_some()
    }

    fn ask(&self, cluster: &RayCluster, errand: ProgramErrand) -> Option<ProgramRequest> {
        let status = cluster.status.as_ref()?;
        let head = status.head.as_ref()?;
        Some(ProgramRequest {
            head_pod: head.pod_name.clone()?,
            head_run: head.run.clone()?,
            dashboard: status.endpoints.as_ref()?.get("dashboard")?.parse().ok()?,
            id: self.outcome.status.job_id.clone()?,
            errand,
            outlives: self.plan.selected.is_some(),
        })
    }

    /// Notes that there is no answer. If there has been none for too long, the attempt fails.
    fn is_silent_for_too_long(&mut self, text: &str) -> bool {
        let now = Time(whole(self.now));
        let since = &mut self.outcome.status.job_status_check_failure_start_time;
        let limit = later(since.get_or_insert(now).0, SILENCE_MAX);
        if limit > self.now {
            self.enter(RayJobPhase::Running, text);
            return false;
        }
        let text = format!("{text} There has been no answer for {SILENCE_MAX} s.");
        self.fail("JobStatusCheckTimeoutExceeded", &text);
        true
    }
}

/// The last line of a traceback says what went wrong.
fn last_line(text: &str) -> String {
    let mut lines = text.lines().map(str::trim);
    let line = lines.rfind(|line| !line.is_empty());
    pod_facts::clause(line.unwrap_or_default(), CLAUSE_MAX)
}
