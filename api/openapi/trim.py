#!/usr/bin/env python3
"""Trims Kubernetes' published OpenAPI v3 documents to what Muster serves.

Usage: python3 trim.py PATH_TO_KUBERNETES_SOURCE

PATH_TO_KUBERNETES_SOURCE is a checkout (or Go module folder) of
k8s.io/kubernetes at v1.34.x; its api/openapi-spec/v3/*.json are read. The
result is kubernetes-v1.34.json beside this script: one object of definition
name to schema, sorted, without white space. To serve another built-in kind,
add it to KINDS, run this again and commit both files.
"""

import json
import pathlib
import sys

CORE = "io.k8s.api.core.v1."
META = "io.k8s.apimachinery.pkg.apis.meta.v1."

# Kinds that are stored: each comes with its list.
KINDS = [
    CORE + kind
    for kind in (
        "ConfigMap",
        "Endpoints",
        "Event",
        "LimitRange",
        "Namespace",
        "Node",
        "PersistentVolume",
        "PersistentVolumeClaim",
        "Pod",
        "PodTemplate",
        "ResourceQuota",
        "Secret",
        "Service",
        "ServiceAccount",
    )
] + [
    "io.k8s.api.apps.v1.ControllerRevision",
    "io.k8s.api.apps.v1.DaemonSet",
    "io.k8s.api.apps.v1.Deployment",
    "io.k8s.api.apps.v1.ReplicaSet",
    "io.k8s.api.apps.v1.StatefulSet",
    "io.k8s.api.autoscaling.v2.HorizontalPodAutoscaler",
    "io.k8s.api.batch.v1.CronJob",
    "io.k8s.api.batch.v1.Job",
    "io.k8s.api.coordination.v1.Lease",
    "io.k8s.api.discovery.v1.EndpointSlice",
    "io.k8s.api.networking.v1.NetworkPolicy",
    "io.k8s.api.node.v1.RuntimeClass",
    "io.k8s.api.policy.v1.PodDisruptionBudget",
    "io.k8s.api.rbac.v1.ClusterRole",
    "io.k8s.api.rbac.v1.ClusterRoleBinding",
    "io.k8s.api.rbac.v1.Role",
    "io.k8s.api.rbac.v1.RoleBinding",
    "io.k8s.api.scheduling.v1.PriorityClass",
]

# Kinds that only travel in requests and answers.
PASSING = [
    CORE + "Binding",
    "io.k8s.api.authentication.v1.SelfSubjectReview",
    "io.k8s.api.authentication.v1.TokenRequest",
    "io.k8s.api.authentication.v1.TokenReview",
    "io.k8s.api.authorization.v1.LocalSubjectAccessReview",
    "io.k8s.api.authorization.v1.SelfSubjectAccessReview",
    "io.k8s.api.authorization.v1.SelfSubjectRulesReview",
    "io.k8s.api.authorization.v1.SubjectAccessReview",
    "io.k8s.api.autoscaling.v1.Scale",
    "io.k8s.api.policy.v1.Eviction",
    META + "APIGroup",
    META + "APIGroupList",
    META + "APIResourceList",
    META + "APIVersions",
    META + "DeleteOptions",
    META + "Patch",
    META + "Status",
    META + "WatchEvent",
    "io.k8s.apimachinery.pkg.version.Info",
]

# Groups whose kinds may stand in x-kubernetes-group-version-kind of the
# definitions that every group shares (DeleteOptions, WatchEvent).
GROUPS = {
    ("", "v1"),
    ("apps", "v1"),
    ("authentication.k8s.io", "v1"),
    ("authorization.k8s.io", "v1"),
    ("autoscaling", "v1"),
    ("autoscaling", "v2"),
    ("batch", "v1"),
    ("coordination.k8s.io", "v1"),
    ("discovery.k8s.io", "v1"),
    ("networking.k8s.io", "v1"),
    ("node.k8s.io", "v1"),
    ("policy", "v1"),
    ("rbac.authorization.k8s.io", "v1"),
    ("scheduling.k8s.io", "v1"),
}


def references(node):
    """Names of the definitions that a schema mentions."""
    if isinstance(node, dict):
        ref = node.get("$ref")
        if isinstance(ref, str):
            yield ref.rsplit("/", 1)[1]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1]) / "api" / "openapi-spec" / "v3"
    published = {}
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        published.update(document.get("components", {}).get("schemas", {}))
    if not published:
        sys.exit(f"{folder} holds no OpenAPI v3 documents; name a Kubernetes source folder")

    kept = {}
    waiting = KINDS + [kind + "List" for kind in KINDS] + PASSING
    while waiting:
        name = waiting.pop()
        if name in kept:
            continue
        schema = published[name]
        shared = schema.get("x-kubernetes-group-version-kind")
        if shared:
            schema["x-kubernetes-group-version-kind"] = [
                entry for entry in shared if (entry["group"], entry["version"]) in GROUPS
            ]
        kept[name] = schema
        waiting.extend(references(schema))

    target = pathlib.Path(__file__).with_name("kubernetes-v1.34.json")
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    target.write_text(text + "\n", encoding="utf-8")
    print(f"{target}: {len(kept)} definitions, {len(text.encode())} bytes")


if __name__ == "__main__":
    main()
