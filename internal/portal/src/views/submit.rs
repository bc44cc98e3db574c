//! Job submission: a form that writes YAML, and an editor that checks it, shows the placement, and
//! submits it. The server's own admission does all checks.

use askama::Template;
use axum::Form;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Redirect, Response};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use resources::access::Caller;
use resources::leader_worker_set;
use resources::registry::{self, Kind};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{PageCaller, PageFrame, again, page};
use crate::state::{Portal, UnreadableManifests};

const FIELD_MANAGER: &str = "muster-ui";

/// The form's fields.
#[derive(Debug, Deserialize, Clone)]
#[serde(default)]
pub struct SubmitForm {
    name: String,
    namespace: String,
    command: String,
    replicas: u32,
    gpus: u32,
    cpus: String,
    memory: String,
    queue: String,
    image: String,
    workdir: String,
}

impl Default for SubmitForm {
    fn default() -> Self {
        SubmitForm {
            name: String::new(),
            namespace: "default".to_string(),
            command: String::new(),
            replicas: 1,
            gpus: 0,
            cpus: "1".to_string(),
            memory: "1Gi".to_string(),
            queue: "default".to_string(),
            image: String::new(),
            workdir: String::new(),
        }
    }
}

impl SubmitForm {
    fn manifest(&self) -> Value {
        let mut limits = json!({"memory": self.memory});
        if self.gpus > 0 {
            limits["nvidia.com/gpu"] = json!(self.gpus);
        }
        let mut container = json!({
            "name": "pytorch",
            "command": ["/bin/sh", "-c", self.command.replace("\r\n", "\n")],
            "resources": {"requests": {"cpu": self.cpus, "memory": self.memory}, "limits": limits},
        });
        if !self.image.trim().is_empty() {
            container["image"] = json!(self.image.trim());
        }
        if !self.workdir.trim().is_empty() {
            container["workingDir"] = json!(self.workdir.trim());
        }
        let template = json!({"spec": {"containers": [container]}});
        let replica = |count: u32| json!({"replicas": count, "restartPolicy": "OnFailure", "template": template});
        let mut replicas = json!({"Master": replica(1)});
        if self.replicas > 1 {
            replicas["Worker"] = replica(self.replicas - 1);
        }
        json!({
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {
                "runPolicy": {"backoffLimit": 3, "schedulingPolicy": {"queue": self.queue}},
                "pytorchReplicaSpecs": replicas,
            },
        })
    }
}

/// The editor's fields.
#[derive(Deserialize)]
pub struct Editor {
    yaml: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    action: String,
}

#[derive(Template)]
#[template(path = "submit.html")]
struct Submit {
    frame: PageFrame,
    form: SubmitForm,
    queues: Vec<String>,
    yaml: String,
    problems: Vec<String>,
    notes: Vec<String>,
}

fn shown(portal: &Portal, caller: &Caller, form: SubmitForm, yaml: String) -> Submit {
    Submit {
        frame: PageFrame::still(caller, "submit"),
        form,
        queues: portal
            .queues(caller)
            .unwrap_or_default()
            .into_iter()
            .map(|queue| queue.name)
            .collect(),
        yaml,
        problems: Vec::new(),
        notes: Vec::new(),
    }
}

/// Why manifests were not submitted; the page shows the text.
#[derive(Debug, PartialEq, thiserror::Error)]
enum SubmitError {
    /// The text cannot be parsed.
    #[error(transparent)]
    Unreadable(#[from] UnreadableManifests),
    /// A manifest lacks its apiVersion or kind.
    #[error("manifest {number}: {field}: Required value")]
    Incomplete { number: usize, field: &'static str },
    #[error("the editor has no manifest; write at least one")]
    Empty,
    #[error("the editor has {count} manifests; submit at most {MOST_MANIFESTS} at once")]
    TooMany { count: usize },
    #[error("{object}: {api_version} has no such kind")]
    UnknownKind { object: String, api_version: String },
    #[error("{object}: metadata.name: Required value")]
    NoName { object: String },
    /// The API refused the manifest, or did not answer.
    #[error("{object}: {detail}")]
    NotApplied { object: String, detail: String },
    /// The API's answer cannot be parsed.
    #[error("{0}")]
    Answer(String),
}

/// The job that the editor begins with.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct StartingPoint {
    /// As `NAMESPACE/PLURAL/NAME`; none if empty.
    from: String,
}

/// The page.
pub async fn blank(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Query(start): Query<StartingPoint>,
) -> Response {
    let mut blank = shown(&portal, &caller, SubmitForm::default(), String::new());
    if start.from.is_empty() {
        return page(&blank);
    }
    match again::manifest(&portal, &caller, &start.from).await {
        Ok(yaml) => {
            let note = "This is the job's manifest under a new name. Change what you like, check it, and submit it.";
            blank.notes.push(note.to_owned());
            blank.yaml = yaml;
        }
        Err(problem) => blank.problems.push(problem.detail().to_owned()),
    }
    page(&blank)
}

/// Writes the form's job into the editor.
pub async fn from_form(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Form(form): Form<SubmitForm>,
) -> Response {
    let yaml = serde_norway::to_string(&form.manifest()).unwrap_or_default();
    page(&shown(&portal, &caller, form, yaml))
}

/// Checks the editor's manifests, or submits them.
pub async fn submit(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Form(editor): Form<Editor>,
) -> Response {
    let namespace = match editor.namespace.trim() {
        "" => "default",
        namespace => namespace,
    };
    let form = SubmitForm {
        namespace: namespace.to_string(),
        ..SubmitForm::default()
    };
    let mut answer = shown(&portal, &caller, form, editor.yaml.clone());
    let read = (portal.hooks.read_manifests)(caller.clone(), editor.yaml).await;
    let manifests = match read.map_err(SubmitError::from).and_then(complete) {
        Ok(manifests) => manifests,
        Err(problem) => {
            answer.problems.push(problem.to_string());
            return page(&answer);
        }
    };
    // Checks all manifests before writing any.
    for manifest in &manifests {
        match apply(&portal, &caller, manifest, namespace, true).await {
            Ok(checked) => answer.notes.extend(notes_on(&portal, &checked).await),
            Err(problem) => answer.problems.push(problem.to_string()),
        }
    }
    if editor.action != "submit" || !answer.problems.is_empty() {
        return page(&answer);
    }
    answer.notes.clear();
    let mut next = "/ui/jobs".to_owned();
    for manifest in &manifests {
        match apply(&portal, &caller, manifest, namespace, false).await {
            Ok(made) => {
                if let Some(href) = job_page(&made) {
                    next = href;
                }
            }
            Err(problem) => {
                answer.problems.push(problem.to_string());
                return page(&answer);
            }
        }
    }
    Redirect::to(&format!("{next}?flash=submitted")).into_response()
}

/// The maximum number of manifests in one submission: each is checked and then written in a
/// separate request.
const MOST_MANIFESTS: usize = 256;

/// Refuses manifests without apiVersion or kind, and too many or none.
fn complete(manifests: Vec<Value>) -> Result<Vec<Value>, SubmitError> {
    for (at, manifest) in manifests.iter().enumerate() {
        for field in ["apiVersion", "kind"] {
            if !manifest[field].is_string() {
                let number = at + 1;
                return Err(SubmitError::Incomplete { number, field });
            }
        }
    }
    match manifests.len() {
        0 => Err(SubmitError::Empty),
        1..=MOST_MANIFESTS => Ok(manifests),
        count => Err(SubmitError::TooMany { count }),
    }
}

fn kind_of(value: &Value) -> Option<&'static Kind> {
    let api_version = value["apiVersion"].as_str()?;
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    registry::by_kind(group, version, value["kind"].as_str()?)
}

async fn apply(
    portal: &Portal,
    caller: &Caller,
    manifest: &Value,
    namespace: &str,
    dry_run: bool,
) -> Result<Value, SubmitError> {
    let object = format!(
        "{} {}",
        manifest["kind"].as_str().unwrap_or(""),
        manifest["metadata"]["name"].as_str().unwrap_or("")
    );
    let Some(kind) = kind_of(manifest) else {
        let api_version = manifest["apiVersion"].as_str().unwrap_or("").to_owned();
        return Err(SubmitError::UnknownKind {
            object,
            api_version,
        });
    };
    let Some(name) = manifest["metadata"]["name"].as_str() else {
        return Err(SubmitError::NoName { object });
    };
    let namespace = manifest["metadata"]["namespace"]
        .as_str()
        .unwrap_or(namespace);
    let gvk = kube::core::GroupVersionKind::gvk(kind.group, kind.version, kind.kind);
    let resource = ApiResource::from_gvk_with_plural(&gvk, kind.plural);
    let client = portal.client(caller);
    let api: Api<DynamicObject> = match kind.namespaced {
        true => Api::namespaced_with(client, namespace, &resource),
        false => Api::all_with(client, &resource),
    };
    // A field with a wrong name is an error here, because a warning would be overlooked.
    let mut parameters = PatchParams::apply(FIELD_MANAGER).validation_strict();
    parameters.dry_run = dry_run;
    let applied = api.patch(name, &parameters, &Patch::Apply(manifest)).await;
    match applied {
        Ok(applied) => {
            serde_json::to_value(applied).map_err(|error| SubmitError::Answer(error.to_string()))
        }
        Err(kube::Error::Api(status)) => Err(SubmitError::NotApplied {
            object,
            detail: status.message,
        }),
        Err(error) => Err(SubmitError::NotApplied {
            object,
            detail: error.to_string(),
        }),
    }
}

/// The result of a dry run: that the manifest is valid, and its placement.
async fn notes_on(portal: &Portal, checked: &Value) -> Vec<String> {
    let kind = checked["kind"].as_str().unwrap_or("");
    let name = checked["metadata"]["name"].as_str().unwrap_or("");
    let mut notes = vec![format!("{kind} {name}: valid")];
    match (portal.hooks.preview)(checked.clone()).await {
        None => {}
        Some(Ok(places)) => {
            let what = previewed(name, checked);
            let lines: Vec<String> = places
                .iter()
                .map(|(pod, node)| format!("  {pod} on {node}"))
                .collect();
            notes.push(format!("{what} would start now:\n{}", lines.join("\n")));
        }
        Some(Err(report)) => {
            let what = previewed(name, checked);
            let mut note = format!("{what} would wait: {}", report.sentence());
            if !report.would_fit.is_empty() {
                note.push_str(&format!("\nWhat would fit: {}", report.would_fit));
            }
            notes.push(note);
        }
    }
    notes
}

/// What a preview is about: each group of a LeaderWorkerSet starts by itself, and the first one is tried.
fn previewed(name: &str, checked: &Value) -> String {
    match leader_worker_set::shape(checked) {
        Some(shape) if shape.groups > 1 => {
            format!("The first of {} groups of {name}", shape.groups)
        }
        _ => name.to_owned(),
    }
}

fn job_page(made: &Value) -> Option<String> {
    let kind = kind_of(made)?;
    let plural = super::job::page_plural(kind)?;
    let namespace = made["metadata"]["namespace"].as_str()?;
    Some(format!(
        "/ui/jobs/{namespace}/{plural}/{}",
        made["metadata"]["name"].as_str()?
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_writes_a_job_with_a_master_and_workers() {
        let form = SubmitForm {
            name: "j".into(),
            command: "echo hi".into(),
            replicas: 3,
            gpus: 2,
            ..SubmitForm::default()
        };
        let job = form.manifest();
        assert_eq!(job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"], 2);
        let container =
            &job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0];
        assert_eq!(container["resources"]["limits"]["nvidia.com/gpu"], 2);
        assert!(container["image"].is_null());
        assert_eq!(complete(vec![job.clone()]), Ok(vec![job]));
    }

    #[test]
    fn what_is_no_manifest_is_named_with_its_place() {
        assert_eq!(complete(Vec::new()), Err(SubmitError::Empty));
        let pod = json!({"apiVersion": "v1", "kind": "Pod"});
        let wrong = complete(vec![pod, json!({"kind": "Pod"})]).unwrap_err();
        assert_eq!(wrong.to_string(), "manifest 2: apiVersion: Required value");
    }

    #[test]
    fn manifests_are_taken_to_their_bound() {
        let many = |count: usize| complete(vec![json!({"apiVersion": "v1", "kind": "Pod"}); count]);
        assert_eq!(many(MOST_MANIFESTS).unwrap().len(), MOST_MANIFESTS);
        assert!(many(MOST_MANIFESTS + 1).is_err());
    }

    /// A form as a browser sends it.
    fn sent<T: serde::de::DeserializeOwned>(body: &[u8]) -> Option<T> {
        use axum::extract::FromRequest as _;
        let request = axum::http::Request::post("/ui/submit")
            .header("content-type", "application/x-www-form-urlencoded")
            .body(axum::body::Body::from(body.to_vec()))
            .unwrap();
        let form = futures::executor::block_on(Form::<T>::from_request(request, &()));
        form.ok().map(|Form(form)| form)
    }

    proptest::proptest! {
        #[test]
        fn no_form_panics(
            sound in proptest::sample::select(vec![
                "name=j&namespace=default&command=echo+hi&replicas=2&gpus=1&cpus=1&memory=1Gi&queue=q&image=&workdir=%2Fw",
                "yaml=apiVersion%3A+v1%0Akind%3A+Pod&namespace=default&action=submit",
                "user=ann&password=secret&next=%2Fui%2Fjobs",
            ]),
            damage in crate::documents::damage(),
            words in "\\PC{0,30}",
            replicas in proptest::prelude::any::<u32>(),
        ) {
            let body = crate::documents::damaged(sound.as_bytes().to_vec(), &damage);
            let _ = sent::<Editor>(&body);
            let read = sent::<SubmitForm>(&body);
            let written = SubmitForm {
                name: words.clone(), namespace: words.clone(), command: format!("{words}\r\n{words}\t"),
                queue: words.clone(), image: words.clone(), workdir: words.clone(), cpus: words.clone(), memory: words,
                replicas, gpus: replicas,
            };
            for form in read.into_iter().chain([written]) {
                // The editor shows YAML that reads as the job.
                let manifest = form.manifest();
                let yaml = serde_norway::to_string(&manifest).unwrap();
                let again: Value = serde_norway::from_str(&yaml).unwrap();
                proptest::prop_assert_eq!(again, manifest, "{}", yaml);
            }
        }
    }
}
