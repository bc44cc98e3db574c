//! A job's page: its requests, its pods' nodes, its history. The module reads and formats; it
//! decides nothing.

use std::collections::BTreeMap;

use anyhow::Result;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DynamicObject, ListParams};
use resources::devices::{NodeInventory, chosen, inventory};
use resources::jobset;
use resources::leader_worker_set;
use resources::names;
use resources::registry::Kind;
use resources::training_progress;
use resources::volcano;
use serde_json::Value;

use super::super::connection::ServerConnection;
use super::super::output::{self, Paint, Table};
use super::super::{explain, kinds, ranks};
use super::texts::{dash, exit, policy_words, replica};

/// The data of the page.
pub struct JobDescription {
    kind: &'static Kind,
    job: DynamicObject,
    group: Option<DynamicObject>,
    pods: Vec<Pod>,
    /// Device inventories by node, which give devices their numbers.
    inventories: BTreeMap<String, NodeInventory>,
    /// Why the job waits, if it does.
    waits: Option<String>,
    /// The JobSet that a TrainJob runs as.
    job_set: Option<DynamicObject>,
}

impl JobDescription {
    /// Reads the job's pods, gang and node inventories.
    pub async fn read(
        connection: &ServerConnection,
        kind: &'static Kind,
        job: DynamicObject,
    ) -> Result<JobDescription> {
        let name = job.metadata.name.clone().unwrap_or_default();
        let groups = kinds::kind("podgroups")?;
        let group = connection.api(groups).get_opt(&name).await?;
        let pods = ranks::pods_of(connection, kind, &name).await?;
        let nodes: Api<Node> = Api::all(connection.client.clone());
        // Users who may not list nodes see devices by id.
        let nodes = nodes.list(&ListParams::default()).await;
        let inventories = nodes
            .into_iter()
            .flatten()
            .filter_map(|node| {
                let inventory = inventory(node.metadata.annotations.as_ref())?;
                Some((node.metadata.name?, inventory))
            })
            .collect();
        let waits = match kinds::ended(&job) {
            Some(_) => None,
            None => explain::sentence(connection, kind, &name).await,
        };
        let job_set = match kind.kind == resources::trainer::KIND {
            true => {
                connection
                    .api(kinds::kind("jobsets")?)
                    .get_opt(&name)
                    .await?
            }
            false => None,
        };
        Ok(JobDescription {
            job_set,
            kind,
            job,
            group,
            pods,
            inventories,
            waits,
        })
    }

    /// Kind and name of the job's dependents that have events of their own.
    pub fn related(&self) -> Vec<(String, String)> {
        let group = self.group.iter().map(|group| ("PodGroup", &group.metadata));
        let pods = self.pods.iter().map(|pod| ("Pod", &pod.metadata));
        group
            .chain(pods)
            .map(|(kind, metadata)| (kind.to_string(), metadata.name.clone().unwrap_or_default()))
            .collect()
    }

    /// The page, without its events.
    pub fn render(&self) -> String {
        let mut text = self.head();
        text.push_str(&section("Replicas", &self.replicas()));
        text.push_str(&section("Pods", &self.pods()));
        text.push_str(&section("Conditions", &self.conditions()));
        text
    }

    fn head(&self) -> String {
        let metadata = &self.job.metadata;
        let data = &self.job.data;
        let (state, message) = kinds::state(&self.job);
        let mut lines = vec![
            ("Name", output::name_of(&self.job, self.kind)),
            ("Namespace", metadata.namespace.clone().unwrap_or_default()),
            ("State", format!("{state}  {message}").trim().to_string()),
        ];
        if let Some(waits) = &self.waits {
            lines.push(("Waits", waits.clone()));
        }
        if let Some(progress) = training_progress::sentence(&data["status"]) {
            lines.push(("Progress", progress));
        }
        lines.push(("Queue", self.queue()));
        if let Some(group) = &self.group {
            let (phase, _) = kinds::state(group);
            let gang = format!(
                "{phase}, {} must start together",
                group.data["spec"]["minMember"]
            );
            lines.push(("Gang", gang));
        }
        let policy = match self.kind.training() {
            Some(_) => &data["spec"]["runPolicy"],
            None => &data["spec"],
        };
        lines.push(("Policy", policy_words(policy)));
        let created = metadata.creation_timestamp.as_ref();
        lines.push(("Created", moment(created.map(|time| time.0.to_string()))));
        for (label, field) in [("Started", "startTime"), ("Ended", "completionTime")] {
            if let Some(time) = data["status"][field].as_str() {
                lines.push((label, time.to_string()));
            }
        }
        for (label, map) in [
            ("Labels", &metadata.labels),
            ("Annotations", &metadata.annotations),
        ] {
            let shown: Vec<String> = map
                .iter()
                .flatten()
                .filter(|(name, _)| !name.ends_with("last-applied-configuration"))
                .map(|(name, value)| format!("{name}={value}"))
                .collect();
            if !shown.is_empty() {
                lines.push((label, shown.join(", ")));
            }
        }
        let paint = Paint::stdout();
        lines
            .into_iter()
            .map(|(label, value)| {
                format!(
                    "{} {value}\n",
                    paint.strong(&format!("{:<12}", format!("{label}:")))
                )
            })
            .collect()
    }

    fn queue(&self) -> String {
        let group = self.group.as_ref();
        let queue = group.and_then(|group| group.data["spec"]["queue"].as_str());
        let own = || {
            let metadata = &self.job.metadata;
            let maps = [metadata.labels.as_ref(), metadata.annotations.as_ref()];
            let mut named = maps
                .into_iter()
                .filter_map(|map| map?.get(names::QUEUE_NAME));
            named.next().map(String::as_str)
        };
        // A LeaderWorkerSet has no gang of its name: its groups have one each.
        let own = own().filter(|_| self.kind.is_leader_worker_set());
        queue.or(own).unwrap_or(names::DEFAULT_QUEUE).to_string()
    }

    fn replicas(&self) -> Table {
        let mut table = Table::new([
            "ROLE",
            "WANTED",
            "ACTIVE",
            "SUCCEEDED",
            "FAILED",
            "RESTARTS",
            "EACH ASKS FOR",
            "COMMAND",
        ]);
        let data = &self.job.data;
        if self.kind.is_volcano_job() {
            let tasks = data["spec"]["tasks"].as_array();
            for (number, task) in tasks.into_iter().flatten().enumerate() {
                let name = volcano::task_name(number, task);
                let wanted = task["replicas"].as_i64().unwrap_or(1).to_string();
                let counts = &data["status"]["taskStatusCount"][&name]["phase"];
                let status = serde_json::json!({"active": counts["Running"],
                    "succeeded": counts["Succeeded"], "failed": counts["Failed"]});
                table.row(replica(&name, wanted, &status, &task["template"]["spec"]));
            }
            return table;
        }
        if kinds::is_job_set(self.kind) {
            return self.replicated_jobs(table);
        }
        if (self.kind.group, self.kind.kind) == ("ray.io", "RayService") {
            return self.ray_groups(table);
        }
        if self.kind.is_leader_worker_set() {
            return self.set_roles(table);
        }
        let Some(training) = self.kind.training() else {
            let spec = &data["spec"];
            let wanted = format!(
                "{} of {}",
                spec["parallelism"].as_i64().unwrap_or(1),
                spec["completions"].as_i64().unwrap_or(1)
            );
            table.row(replica(
                "pods",
                wanted,
                &data["status"],
                &spec["template"]["spec"],
            ));
            return table;
        };
        let specs = data["spec"][training.replicas_field].as_object();
        for (role, spec) in specs.into_iter().flatten() {
            let wanted = spec["replicas"].as_i64().unwrap_or(1).to_string();
            let mut template = spec["template"]["spec"].clone();
            // A replica has its own restart policy, which differs from its template's.
            template["restartPolicy"] = spec["restartPolicy"].clone();
            let status = &data["status"]["replicaStatuses"][role];
            table.row(replica(role, wanted, status, &template));
        }
        table
    }

    /// The head and the worker groups of a RayService's clusters, with their running pods.
    fn ray_groups(&self, mut table: Table) -> Table {
        let cluster = &self.job.data["spec"]["rayClusterConfig"];
        let running = |group: &str| {
            let own = self.pods.iter().filter(|pod| {
                let labels = pod.metadata.labels.as_ref();
                let label = labels.and_then(|labels| labels.get(names::RAY_GROUP));
                let phase = pod
                    .status
                    .as_ref()
                    .and_then(|status| status.phase.as_deref());
                label.is_some_and(|label| label == group) && phase == Some("Running")
            });
            serde_json::json!({"active": own.count()})
        };
        let head = &cluster["headGroupSpec"]["template"]["spec"];
        table.row(replica("head", "1".to_owned(), &running("headgroup"), head));
        let groups = cluster["workerGroupSpecs"].as_array();
        for group in groups.into_iter().flatten() {
            let number = |field: &str| group[field].as_i64();
            let least = number("replicas").or_else(|| number("minReplicas"));
            let wanted = least.unwrap_or(0) * number("numOfHosts").unwrap_or(1);
            let name = group["groupName"].as_str().unwrap_or_default();
            let pod = &group["template"]["spec"];
            table.row(replica(name, wanted.to_string(), &running(name), pod));
        }
        table
    }

    /// The leaders and workers of a LeaderWorkerSet, with their running pods.
    fn set_roles(&self, mut table: Table) -> Table {
        let running = |leads: bool| {
            let own = self.pods.iter().filter(|pod| {
                let place = leader_worker_set::place(pod.metadata.labels.as_ref());
                let status = pod.status.as_ref();
                let phase = status.and_then(|status| status.phase.as_deref());
                place.is_some_and(|(_, worker)| (worker == 0) == leads) && phase == Some("Running")
            });
            serde_json::json!({"active": own.count()})
        };
        let shape = leader_worker_set::shape(&self.job.data);
        for role in shape.iter().flat_map(|shape| shape.roles()) {
            let active = running(role.name == leader_worker_set::LEADER);
            let wanted = role.pods.to_string();
            let mut template = role.template["spec"].clone();
            // No other policy is accepted; without one the pods get it.
            template["restartPolicy"] = "Always".into();
            table.row(replica(role.name, wanted, &active, &template));
        }
        table
    }

    /// The jobs of a JobSet, with the counts of their Jobs.
    fn replicated_jobs(&self, mut table: Table) -> Table {
        let set = self.job_set.as_ref().unwrap_or(&self.job);
        let counts = ["replicatedJobsStatus", "jobsStatus"];
        let counts = counts
            .iter()
            .find_map(|name| self.job.data["status"][*name].as_array());
        for job in jobset::replicated_jobs(&set.data) {
            let own = counts
                .into_iter()
                .flatten()
                .find(|counts| counts["name"] == job.name);
            let own = own.unwrap_or(&Value::Null);
            table.row(replica(
                job.name,
                job.pods.to_string(),
                own,
                &job.template["spec"],
            ));
        }
        table
    }

    fn pods(&self) -> Table {
        let mut table = Table::new([
            "NAME", "STATUS", "NODE", "DEVICES", "RESTARTS", "EXIT", "AGE",
        ]);
        for pod in &self.pods {
            let status = pod.status.as_ref();
            let spec = pod.spec.as_ref();
            let node = spec.and_then(|spec| spec.node_name.clone());
            let statuses = status.and_then(|status| status.container_statuses.as_ref());
            let restarts: i32 = statuses
                .into_iter()
                .flatten()
                .map(|c| c.restart_count)
                .sum();
            let exits: Vec<String> = statuses
                .into_iter()
                .flatten()
                .filter_map(|container| exit(container.state.as_ref()?))
                .collect();
            let phase = status.and_then(|status| status.phase.clone());
            let reason = status.and_then(|status| status.reason.clone());
            table.row([
                pod.metadata.name.clone().unwrap_or_default(),
                reason.or(phase).unwrap_or_default(),
                node.clone().unwrap_or_else(|| "-".to_string()),
                self.devices(pod, node.as_deref()),
                restarts.to_string(),
                dash(exits.join(", ")),
                output::age(pod.metadata.creation_timestamp.as_ref()),
            ]);
        }
        table
    }

    /// A pod's devices by number and model, or by id where the node's inventory is unknown.
    fn devices(&self, pod: &Pod, node: Option<&str>) -> String {
        let inventory = node.and_then(|node| self.inventories.get(node));
        let mut words = Vec::new();
        for ids in chosen(pod.metadata.annotations.as_ref())
            .values()
            .flat_map(BTreeMap::values)
        {
            for id in ids {
                let known = inventory.and_then(|all| all.gpus.iter().find(|gpu| gpu.id == *id));
                words.push(known.map_or_else(
                    || id.clone(),
                    |gpu| format!("{} ({})", gpu.index, gpu.model),
                ));
            }
        }
        dash(words.join(", "))
    }

    fn conditions(&self) -> Table {
        let mut table = Table::new(["TYPE", "STATUS", "REASON", "SINCE", "MESSAGE"]);
        let conditions = self.job.data["status"]["conditions"].as_array();
        let mut conditions: Vec<&Value> = conditions.into_iter().flatten().collect();
        // Times in RFC 3339 and UTC sort as text.
        conditions.sort_by_key(|condition| condition["lastTransitionTime"].as_str());
        for condition in conditions {
            let text = |field: &str| condition[field].as_str().unwrap_or("").to_string();
            // Volcano's Job lists the phases that it was in.
            let (name, status) = match condition["type"].as_str() {
                Some(name) => (name.to_owned(), text("status")),
                None => (text("status"), String::new()),
            };
            table.row([
                name,
                status,
                text("reason"),
                text("lastTransitionTime"),
                text("message"),
            ]);
        }
        table
    }
}

fn section(name: &str, table: &Table) -> String {
    let heading = Paint::stdout().strong(&format!("{name}:"));
    if table.is_empty() {
        return format!("{heading} <none>\n");
    }
    let indented: String = table
        .render()
        .lines()
        .map(|line| format!("  {line}\n"))
        .collect();
    format!("{heading}\n{indented}")
}

fn moment(time: Option<String>) -> String {
    dash(time.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn page() -> JobDescription {
        let job = json!({
            "metadata": {"name": "j", "namespace": "d"},
            "spec": {"runPolicy": {"backoffLimit": 2}, "pytorchReplicaSpecs": {"Master": {
                "restartPolicy": "OnFailure",
                "template": {"spec": {"containers": [{"name": "pytorch", "command": ["train"],
                    "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}}}}},
            "status": {"conditions": [{"type": "Running", "status": "True", "message": "it runs"}],
                "replicaStatuses": {"Master": {"active": 1}}},
        });
        let pod = json!({
            "metadata": {"name": "j-master-0", "annotations":
                {"muster.io/devices": json!({"pytorch": {"nvidia.com/gpu": ["GPU-7"]}}).to_string()}},
            "spec": {"nodeName": "n", "containers": []},
            "status": {"phase": "Running", "containerStatuses": [{"name": "pytorch", "image": "",
                "imageID": "", "ready": true, "restartCount": 2,
                "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]},
        });
        let gpus = json!({"gpus": [{"id": "GPU-7", "index": 3, "model": "H100"}]});
        JobDescription {
            kind: kinds::kind("pytorchjobs").unwrap(),
            job: serde_json::from_value(job).unwrap(),
            group: None,
            pods: vec![serde_json::from_value(pod).unwrap()],
            inventories: [("n".to_string(), serde_json::from_value(gpus).unwrap())].into(),
            waits: None,
            job_set: None,
        }
    }

    #[test]
    fn a_jobs_page_names_state_replicas_devices_restarts_and_exits() {
        let text = page().render();
        for expected in [
            "State:       Running  it runs",
            "Policy:      backoff limit: 2",
            "OnFailure",
            "nvidia.com/gpu=1",
            "3 (H100)",
            "OOMKilled (137)",
        ] {
            assert!(text.contains(expected), "{expected:?} in\n{text}");
        }
    }

    #[test]
    fn a_leader_worker_sets_page_has_its_roles_and_its_ready_groups() {
        let pod = |name: &str, number: &str| -> Pod {
            let labels = json!({leader_worker_set::GROUP_INDEX: "0", leader_worker_set::WORKER_INDEX: number});
            serde_json::from_value(json!({"metadata": {"name": name, "labels": labels},
                "spec": {"containers": []}, "status": {"phase": "Running"}}))
            .unwrap()
        };
        let set = json!({
            "metadata": {"name": "m", "namespace": "d", "labels": {names::QUEUE_NAME: "serving"}},
            "spec": {"replicas": 2, "leaderWorkerTemplate": {"size": 3,
                "workerTemplate": {"spec": {"containers": [{"name": "c", "command": ["serve"]}]}}}},
            "status": {"hpaPodSelector": "x", "readyReplicas": 1},
        });
        let page = JobDescription {
            kind: kinds::kind("lws").unwrap(),
            job: serde_json::from_value(set).unwrap(),
            pods: vec![pod("m-0", "0"), pod("m-0-1", "1"), pod("m-0-2", "2")],
            ..page()
        };
        let text = page.render();
        assert!(text.contains("Running  1 of 2 groups are ready."), "{text}");
        assert!(text.contains("serving"), "{text}");
        let row = |role: &str| {
            let line = text.lines().find(|line| line.trim().starts_with(role));
            let mut words = line.unwrap().split_whitespace().skip(1);
            (words.next(), words.next())
        };
        assert_eq!(row("leader"), (Some("2"), Some("1")));
        assert_eq!(row("worker"), (Some("4"), Some("2")));
    }

    #[test]
    fn devices_of_an_unknown_node_are_shown_by_id() {
        let mut page = page();
        page.inventories.clear();
        assert!(page.render().contains("GPU-7"));
        assert_eq!(
            page.related(),
            [("Pod".to_string(), "j-master-0".to_string())]
        );
    }
}
