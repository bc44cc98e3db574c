"""Uses the kubeflow-training SDK: creates a PyTorchJob, waits for it, reads its logs."""
from kubeflow.training import (
    KubeflowOrgV1PyTorchJob, KubeflowOrgV1PyTorchJobSpec, KubeflowOrgV1ReplicaSpec,
    KubeflowOrgV1RunPolicy, TrainingClient, constants,
)
from kubernetes.client import (
    V1Container, V1ObjectMeta, V1PodSpec, V1PodTemplateSpec, V1ResourceRequirements,
)

NAME = "sdk-job"


def replica(count):
    container = V1Container(
        name="pytorch", image="ghcr.io/example/none:latest",
        command=["/bin/sh", "-c", "echo rank $RANK of $WORLD_SIZE at $MASTER_ADDR; sleep 1"],
        resources=V1ResourceRequirements(requests={"cpu": "50m", "memory": "32Mi"}),
    )
    template = V1PodTemplateSpec(
        metadata=V1ObjectMeta(annotations={"sidecar.istio.io/inject": "false"}),
        spec=V1PodSpec(containers=[container]))
    return KubeflowOrgV1ReplicaSpec(replicas=count, restart_policy="Never", template=template)


training = TrainingClient(namespace="default")
training.create_job(KubeflowOrgV1PyTorchJob(
    api_version="kubeflow.org/v1", kind="PyTorchJob", metadata=V1ObjectMeta(name=NAME, namespace="default"),
    spec=KubeflowOrgV1PyTorchJobSpec(
        run_policy=KubeflowOrgV1RunPolicy(clean_pod_policy="None"),
        pytorch_replica_specs={"Master": replica(1), "Worker": replica(2)}),
))
kind = constants.PYTORCHJOB_KIND
job = training.wait_for_job_conditions(name=NAME, job_kind=kind, polling_interval=1, wait_timeout=120)
assert training.is_job_succeeded(NAME, job_kind=kind), job.status
assert not training.is_job_running(NAME, job_kind=kind)
assert sorted(training.get_job_pod_names(NAME)) == [NAME + "-master-0", NAME + "-worker-0", NAME + "-worker-1"]
logs, _ = training.get_job_logs(NAME, job_kind=kind, is_master=False)
text = "".join(logs.values())
for rank in range(3):
    assert f"rank {rank} of 3 at {NAME}-master-0" in text, logs
print(NAME, [condition.type for condition in job.status.conditions if condition.status == "True"])
training.delete_job(NAME, job_kind=kind)
print("training SDK done")
