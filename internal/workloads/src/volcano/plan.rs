//! A Volcano Job as read: defaults are filled in, and templates are in the form of the later pods.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::kinds::{DependsOn, LifecyclePolicy, TaskSpec, VolcanoJob, VolcanoJobSpec};
use resources::names;
use serde_json::{Value, json};

use super::plugins::Plugins;

/// The restarts after which a job fails, and a task is said to have failed.
const MAX_RETRY: u32 = 3;

/// A job as read.
pub(crate) struct ParsedVolcanoJob<'a> {
    pub(crate) meta: &'a ObjectMeta,
    pub(crate) spec: &'a VolcanoJobSpec,
    pub(crate) tasks: Vec<Task<'a>>,
    pub(crate) plugins: Plugins,
}

/// One task as read.
pub(crate) struct Task<'a> {
    pub(crate) name: String,
    pub(crate) replicas: u32,
    /// How many of its pods must start together, and must succeed for the job to.
    pub(crate) min_available: u32,
    pub(crate) max_retry: u32,
    pub(crate) template: PodTemplateSpec,
    pub(crate) policies: &'a [LifecyclePolicy],
    pub(crate) depends_on: Option<&'a DependsOn>,
}

impl<'a> ParsedVolcanoJob<'a> {
    /// Reads a job.
    ///
    /// # Errors
    /// Why the job cannot be run, in one sentence.
    pub(crate) fn of(job: &'a VolcanoJob) -> Result<ParsedVolcanoJob<'a>, Unrunnable> {
        let tasks = job.spec.tasks.iter().enumerate();
        let tasks = tasks.map(|(number, task)| Task::of(number, task));
        let plan = ParsedVolcanoJob {
            meta: &job.metadata,
            spec: &job.spec,
            tasks: tasks.collect::<Result<_, _>>()?,
            plugins: Plugins::of(job.spec.plugins.as_ref())?,
        };
        plan.plugins.check(&plan)?;
        Ok(plan)
    }

    pub(crate) fn name(&self) -> &str {
        self.meta.name.as_deref().unwrap_or_default()
    }

    /// The number of its pods.
    pub(crate) fn total(&self) -> u32 {
        let replicas = self.tasks.iter().map(|task| task.replicas);
        replicas.fold(0, u32::saturating_add)
    }

    /// How many pods must start together.
    pub(crate) fn min_available(&self) -> u32 {
        count(self.spec.min_available).unwrap_or_else(|| self.total())
    }

    /// The runs after which the job fails.
    pub(crate) fn max_retry(&self) -> u32 {
        count(self.spec.max_retry).unwrap_or(MAX_RETRY)
    }

    /// The pod of a task's replica.
    pub(crate) fn pod_name(&self, task: &Task<'_>, index: u32) -> String {
        format!("{}-{}-{index}", self.name(), task.name)
    }

    /// The number of a replica among all pods of the job, in the order of the tasks.
    pub(crate) fn ordinal(&self, task: &Task<'_>, index: u32) -> u32 {
        let before = self.tasks.iter().take_while(|one| one.name != task.name);
        let before = before.map(|one| one.replicas).fold(0, u32::saturating_add);
        before.saturating_add(index)
    }

    pub(crate) fn task(&self, name: &str) -> Option<&Task<'a>> {
        self.tasks.iter().find(|task| task.name == name)
    }

    pub(crate) fn queue(&self) -> String {
        let named = self.spec.queue.clone().filter(|queue| !queue.is_empty());
        let named = named.or_else(|| crate::terms::queue(self.meta));
        named.unwrap_or_else(|| names::DEFAULT_QUEUE.to_owned())
    }
}

/// Why a job is not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unrunnable {
    /// A template that is no pod template.
    #[error("spec.tasks[{task}].template is no pod template: {detail}; correct it")]
    Template {
        /// The task's number.
        task: usize,
        /// What is wrong.
        detail: String,
    },
    /// A plugin that Muster does not have.
    #[error(
        "spec.plugins: Muster does not run the plugin {plugin:?}; remove it, or use env, svc, ssh, pytorch, tensorflow or mpi"
    )]
    Plugin {
        /// The plugin.
        plugin: String,
    },
    /// Volcano's plugin for Ray.
    #[error(
        "spec.plugins[ray]: Muster does not run Ray in Volcano Jobs; use a RayJob or RayCluster of ray.io/v1, whose pods also start together and wait in a queue"
    )]
    Ray,
    /// A plugin needs a task that the job does not have.
    #[error(
        "spec.plugins[mpi]: the job has no task {task:?}; name the task {does} by --{role}=TASK"
    )]
    NoTask {
        /// The task's name.
        task: String,
        /// What the task does.
        does: &'static str,
        /// The argument that names it.
        role: &'static str,
    },
    /// One key of a pair without the other.
    #[error(
        "spec.plugins[ssh]: --ssh-private-key and --ssh-public-key are a pair; give both, or neither to get new keys"
    )]
    HalfPair,
    /// The job has too many pods for a plugin.
    #[error(
        "spec.plugins[{plugin}]: {what} would have {bytes} bytes, and may have {most}; give the job fewer pods or a shorter name"
    )]
    TooLong {
        /// The plugin.
        plugin: &'static str,
        /// What would be too long.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The most that it may have.
        most: usize,
    },
    /// An argument that cannot be read.
    #[error("spec.plugins[{plugin}]: {argument:?} is not one of {known}")]
    Argument {
        /// The plugin.
        plugin: &'static str,
        /// The argument as written.
        argument: String,
        /// The valid forms.
        known: &'static str,
    },
}

impl<'a> Task<'a> {
    fn of(number: usize, task: &'a TaskSpec) -> Result<Task<'a>, Unrunnable> {
        let mut template = task.template.clone();
        for list in ["initContainers", "containers"] {
            let containers = template.pointer_mut(&format!("/spec/{list}"));
            let containers = containers.and_then(Value::as_array_mut);
            containers.into_iter().flatten().for_each(words_as_lists);
        }
        let template = serde_json::from_value(template).map_err(|error| Unrunnable::Template {
            task: number,
            detail: error.to_string(),
        })?;
        let replicas = count(task.replicas).unwrap_or(1);
        Ok(Task {
            name: (task.name.clone().filter(|name| !name.is_empty()))
                .unwrap_or_else(|| format!("default{number}")),
            replicas,
            min_available: count(task.min_available).unwrap_or(replicas),
            max_retry: count(task.max_retry).unwrap_or(MAX_RETRY),
            template,
            policies: task.policies.as_deref().unwrap_or_default(),
            depends_on: task.depends_on.as_ref(),
        })
    }
}

fn count(number: Option<i32>) -> Option<u32> {
    number.and_then(|number| u32::try_from(number).ok())
}

/// A command of one word counts as a list of one, as admission reads it.
fn words_as_lists(container: &mut Value) {
    for key in ["command", "args"] {
        if let Some(word) = container.get_mut(key)
            && word.is_string()
        {
            *word = json!([word.take()]);
        }
    }
}
