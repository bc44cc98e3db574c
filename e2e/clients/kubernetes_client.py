"""Uses the Python kubernetes client against the server that KUBECONFIG names."""
import threading
import time

from kubernetes import client, config, watch

config.load_kube_config()
core, batch = client.CoreV1Api(), client.BatchV1Api()
custom = client.CustomObjectsApi()

version = client.VersionApi().get_code()
assert version.git_version.startswith("v1.34"), version

core.create_namespaced_config_map("default", {"metadata": {"name": "py"}, "data": {"a": "1"}})
read = core.read_namespaced_config_map("py", "default")
assert read.data == {"a": "1"} and read.metadata.uid

# A stale write is refused, a fresh one taken.
stale = core.read_namespaced_config_map("py", "default")
core.patch_namespaced_config_map("py", "default", {"data": {"b": "2"}})
stale.data["a"] = "stale"
try:
    core.replace_namespaced_config_map("py", "default", stale)
    raise AssertionError("a stale write was taken")
except client.ApiException as refused:
    assert refused.status == 409, refused

# A watch sees what another thread does, from the list's version on.
listed = core.list_namespaced_config_map("default")


def change():
    time.sleep(0.3)
    core.patch_namespaced_config_map("py", "default", {"metadata": {"labels": {"seen": "yes"}}})
    core.delete_namespaced_config_map("py", "default")


threading.Thread(target=change).start()
kinds = []
for event in watch.Watch().stream(core.list_namespaced_config_map, "default",
                                  resource_version=listed.metadata.resource_version, timeout_seconds=20):
    if event["object"].metadata.name == "py":
        kinds.append(event["type"])
    if kinds[-1:] == ["DELETED"]:
        break
assert kinds == ["MODIFIED", "DELETED"], kinds

batch.create_namespaced_job("default", {
    "metadata": {"name": "py-job"},
    "spec": {"completions": 2, "parallelism": 2, "completionMode": "Indexed",
             "template": {"spec": {"restartPolicy": "Never", "containers": [{
                 "name": "c", "command": ["/bin/sh", "-c", "echo index $JOB_COMPLETION_INDEX"],
                 "resources": {"requests": {"cpu": "50m", "memory": "16Mi"}}}]}}},
})
deadline = time.time() + 90
while time.time() < deadline:
    job = batch.read_namespaced_job_status("py-job", "default")
    if (job.status.succeeded or 0) == 2:
        break
    time.sleep(0.2)
assert job.status.succeeded == 2, job.status
assert any(c.type == "Complete" and c.status == "True" for c in job.status.conditions), job.status
pods = core.list_namespaced_pod("default", label_selector="batch.kubernetes.io/job-name=py-job").items
logs = sorted(core.read_namespaced_pod_log(pod.metadata.name, "default") for pod in pods)
assert logs == ["index 0\n", "index 1\n"], logs

queues = custom.list_cluster_custom_object("scheduling.volcano.sh", "v1beta1", "queues")
assert "default" in [queue["metadata"]["name"] for queue in queues["items"]]
nodes = core.list_node().items
assert nodes and nodes[0].status.allocatable["cpu"]
print("kubernetes client done")
