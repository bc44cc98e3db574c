//! Asks Ray about the programs of RayJobs in HTTPMode, through the API's subresource `pods/proxy` of the head: submits
//! them, follows them and stops them, by [`BackgroundQuestions`]. It holds no state that must outlive the server: Ray
//! itself refuses a second program of one name.

use std::time::Duration;

use http::{Method, StatusCode};
use kube::Client;
use serde_json::Value;
use workloads::rayjob::{
    ProgramAnswer, ProgramErrand, ProgramObservation, ProgramRequest, RayProgram,
};

use super::ObjectKey;
use super::background_questions::BackgroundQuestions;
use super::pod_call::{ANSWER, PodCallError, call_pod};

/// How many programs are asked about at once. They keep within a user's connections to pods.
const PROGRAMS_AT_ONCE: usize = 16;
/// How long Ray may take to accept a program.
const SUBMIT: Duration = Duration::from_secs(60);
/// How often Ray is asked to stop the program of a deleted job.
const STOPS_MAX: u32 = 5;
/// The wait between two of these requests.
const BETWEEN_STOPS: Duration = Duration::from_secs(2);
/// What Ray's refusal of a second program of one name contains.
const NAME_IS_TAKEN: &str = "Please use a different submission_id";
/// Ray's programs.
const PROGRAMS: &str = "api/jobs/";

/// The answers about all programs. Clones share one state.
#[derive(Clone)]
pub(crate) struct ProgramMonitor {
    client: Client,
    questions: BackgroundQuestions<ProgramObservation>,
}

impl ProgramMonitor {
    pub(crate) fn new(client: Client) -> ProgramMonitor {
        ProgramMonitor {
            client,
            questions: BackgroundQuestions::new(PROGRAMS_AT_ONCE),
        }
    }

    /// What Ray answered last about the program of a job.
    pub(crate) fn last(&self, job: &ObjectKey) -> Option<ProgramObservation> {
        self.questions.last(job)
    }

    /// Asks Ray in the background, unless it is being asked or was asked just now.
    pub(crate) fn ask(&self, job: &ObjectKey, request: ProgramRequest) {
        let (client, namespace) = (self.client.clone(), job.0.clone());
        self.questions.ask(job, |before| {
            let submitted = before.is_some_and(|before| {
                before.submitted && before.id == request.id && before.head_run == request.head_run
            });
            async move {
                let ray = RayHead::of(&client, &namespace, &request);
                ray.round(&request, submitted).await
            }
        });
    }

    /// Stops the program of a deleted job in the background. A submission may be under way, so that a program that Ray
    /// does not know is asked for again.
    pub(crate) fn stop(&self, namespace: &str, request: ProgramRequest) {
        let (monitor, namespace) = (self.clone(), namespace.to_owned());
        tokio::spawn(async move {
            let ray = RayHead::of(&monitor.client, &namespace, &request);
            for _ in 0..STOPS_MAX {
                let place = monitor.questions.place().await;
                let asked = ray.stop_and_look_up(&request.id).await;
                drop(place);
                if matches!(&asked, ProgramAnswer::Known(program) if program.has_ended()) {
                    return;
                }
                tokio::time::sleep(BETWEEN_STOPS).await;
            }
            tracing::warn!(
                namespace,
                pod = request.head_pod,
                program = request.id,
                "Ray did not confirm that it stopped the program of a deleted RayJob; stop it with `ray job stop`"
            );
        });
    }
}

/// The dashboard of one head.
struct RayHead<'a> {
    client: &'a Client,
    namespace: &'a str,
    /// Pod and port.
    place: String,
}

impl<'a> RayHead<'a> {
    fn of(client: &'a Client, namespace: &'a str, request: &ProgramRequest) -> RayHead<'a> {
        RayHead {
            client,
            namespace,
            place: format!("{}:{}", request.head_pod, request.dashboard),
        }
    }

    /// Asks about the program, after the errand.
    async fn round(&self, request: &ProgramRequest, submitted: bool) -> ProgramObservation {
        let (id, mut submitted) = (request.id.as_str(), submitted);
        let mut answer = match &request.errand {
            ProgramErrand::Stop => self.stop_and_look_up(id).await,
            ProgramErrand::Follow | ProgramErrand::Submit(_) => self.look_up(id).await,
        };
        if let ProgramErrand::Submit(body) = &request.errand
            && answer == ProgramAnswer::Unknown
            && !submitted
        {
            answer = match self.submit(body).await {
                Ok(()) => {
                    submitted = true;
                    self.look_up(id).await
                }
                Err(refusal) => refusal,
            };
        }
        ProgramObservation {
            head_run: request.head_run.clone(),
            id: request.id.clone(),
            submitted: submitted || matches!(answer, ProgramAnswer::Known(_)),
            answer,
        }
    }

    async fn look_up(&self, id: &str) -> ProgramAnswer {
        let path = format!("{PROGRAMS}{id}");
        let called = self.call(Method::GET, &path, Vec::new(), ANSWER).await;
        match called {
            Ok(bytes) => read_program(&bytes),
            Err(PodCallError::Refused {
                status: StatusCode::NOT_FOUND,
                of_api: false,
                ..
            }) => ProgramAnswer::Unknown,
            Err(error) => ProgramAnswer::Silent(error.to_string()),
        }
    }

    /// Submits a program. Ray has it if it refuses another one of the name.
    async fn submit(&self, body: &Value) -> Result<(), ProgramAnswer> {
        let body = serde_json::to_vec(body).unwrap_or_default();
        let called = self.call(Method::POST, PROGRAMS, body, SUBMIT).await;
        called.map(drop).or_else(judge_refusal)
    }

    async fn stop_and_look_up(&self, id: &str) -> ProgramAnswer {
        let answer = self.look_up(id).await;
        if !matches!(&answer, ProgramAnswer::Known(program) if !program.has_ended()) {
            return answer;
        }
        let path = format!("{PROGRAMS}{id}/stop");
        let called = self.call(Method::POST, &path, Vec::new(), ANSWER).await;
        match called {
            Ok(_) => self.look_up(id).await,
            Err(error) => ProgramAnswer::Silent(error.to_string()),
        }
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
        patience: Duration,
    ) -> Result<Vec<u8>, PodCallError> {
        let call = (method, self.place.as_str(), path);
        call_pod(self.client, self.namespace, call, body, patience).await
    }
}

fn read_program(bytes: &[u8]) -> ProgramAnswer {
    let parsed: Option<Value> = serde_json::from_slice(bytes).ok();
    match parsed.as_ref().and_then(RayProgram::of) {
        Some(program) => ProgramAnswer::Known(program),
        None => ProgramAnswer::Silent("its answer has no state of a program".to_owned()),
    }
}

/// What a submission that failed means.
fn judge_refusal(error: PodCallError) -> Result<(), ProgramAnswer> {
    match error {
        PodCallError::Refused {
            of_api: false,
            text,
            ..
        } if text.contains(NAME_IS_TAKEN) => Ok(()),
        PodCallError::Refused {
            status: StatusCode::BAD_REQUEST,
            of_api: false,
            text,
        } => Err(ProgramAnswer::Refused(text)),
        error => Err(ProgramAnswer::Silent(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_taken_means_that_ray_has_the_program() {
        let refused = |status: StatusCode, of_api: bool, text: &str| PodCallError::Refused {
            status,
            of_api,
            text: text.to_owned(),
        };
        let taken = "ValueError: Job with submission_id a already exists. Please use a different submission_id.";
        let silent = |text: &str| Err(ProgramAnswer::Silent(text.to_owned()));
        let (bad, broken) = (StatusCode::BAD_REQUEST, StatusCode::INTERNAL_SERVER_ERROR);
        let table = [
            (refused(bad, false, taken), Ok(())),
            (refused(broken, false, taken), Ok(())),
            (
                refused(bad, false, "TypeError: x"),
                Err(ProgramAnswer::Refused("TypeError: x".to_owned())),
            ),
            (refused(broken, false, "No agent"), silent("No agent")),
            (refused(bad, true, "no port"), silent("no port")),
            (refused(broken, true, taken), silent(taken)),
            (
                PodCallError::Late(Duration::from_secs(2)),
                silent("it took more than 2 s"),
            ),
        ];
        for (error, expected) in table {
            assert_eq!(judge_refusal(error), expected);
        }
    }

    #[test]
    fn an_answer_without_a_state_is_none() {
        let good = br#"{"status": "FAILED", "driver_exit_code": 3, "message": "It failed, last available logs: x"}"#;
        let expected = RayProgram {
            status: "FAILED".to_owned(),
            exit_code: Some(3),
            message: "It failed".to_owned(),
        };
        assert_eq!(read_program(good), ProgramAnswer::Known(expected));
        for bad in ["", "{}", "[]", r#"{"status": "LOST"}"#] {
            let answer = read_program(bad.as_bytes());
            assert!(matches!(answer, ProgramAnswer::Silent(_)), "{bad}");
        }
    }
}
