#!/usr/bin/env python3
"""Writes messages.txt: the protobuf layout of the Kubernetes objects that clients send.

    extract.py GOPATH/pkg/mod/k8s.io v0.34.4 > messages.txt

Numbers and types come from each group's generated.proto; what JSON calls a field, whether it
is inlined and whether it is a pointer (so that zero is told from absent) come from types.go.
"""
import re
import sys

ROOTS = {
    "core.v1": "Pod Node Service Endpoints ConfigMap Secret Event PersistentVolumeClaim "
    "ServiceAccount ResourceQuota LimitRange Namespace Binding",
    "apps.v1": "Deployment ReplicaSet StatefulSet DaemonSet ControllerRevision",
    "batch.v1": "Job CronJob",
    "coordination.v1": "Lease",
    "discovery.v1": "EndpointSlice",
    "networking.v1": "NetworkPolicy",
    "scheduling.v1": "PriorityClass",
    "node.v1": "RuntimeClass",
    "policy.v1": "Eviction PodDisruptionBudget",
    "autoscaling.v1": "Scale",
    "autoscaling.v2": "HorizontalPodAutoscaler",
    "authorization.v1": "SelfSubjectAccessReview SelfSubjectRulesReview SubjectAccessReview "
    "LocalSubjectAccessReview",
    "authentication.v1": "SelfSubjectReview TokenRequest TokenReview",
    "rbac.v1": "Role ClusterRole RoleBinding ClusterRoleBinding",
    "meta.v1": "DeleteOptions",
}
SCALARS = {"string": "string", "bytes": "bytes", "bool": "bool", "double": "double",
           "int32": "int", "int64": "int", "uint32": "int", "uint64": "int"}
SPECIAL = {
    "meta.v1.Time": "time",
    "meta.v1.MicroTime": "microtime",
    "meta.v1.FieldsV1": "json",
    "resource.Quantity": "quantity",
    "intstr.IntOrString": "intstr",
    "runtime.RawExtension": "json",
}


def package_of(name):
    """k8s.io.api.core.v1.Pod -> core.v1.Pod"""
    for prefix in ("k8s.io.apimachinery.pkg.apis.", "k8s.io.apimachinery.pkg.api.",
                   "k8s.io.apimachinery.pkg.util.", "k8s.io.apimachinery.pkg.", "k8s.io.api."):
        if name.startswith(prefix):
            return name[len(prefix):]
    return name


def load(directory, package, messages):
    proto = open(directory + "/generated.proto").read()
    go = open(directory + "/types.go").read()
    proto = re.sub(r"//.*", "", proto)
    structs = {}
    for match in re.finditer(r"^type (\w+) struct \{\n(.*?)^\}", go, re.M | re.S):
        fields = {}
        for line in match.group(2).splitlines():
            tag = re.search(r'`json:"([^"]*)" protobuf:"\w+,(\d+),', line)
            if tag:
                words = line.strip().split()
                kind = words[1] if len(words) > 2 and not words[1].startswith("`") else words[0]
                fields[int(tag.group(2))] = (tag.group(1), kind.startswith("*"))
        structs[match.group(1)] = fields
    for match in re.finditer(r"^message (\w+) \{\n(.*?)^\}", proto, re.M | re.S):
        fields = []
        for field in re.finditer(
                r"(optional|repeated)?\s*(map<string, [\w.]+>|[\w.]+)\s+(\w+) = (\d+);", match.group(2)):
            label, kind, name, number = field.groups()
            json, pointer = structs.get(match.group(1), {}).get(int(number), (name, False))
            fields.append((int(number), name, json, pointer, label == "repeated", kind))
        messages[package + "." + match.group(1)] = fields


def resolve(kind, package):
    if kind in SCALARS:
        return SCALARS[kind]
    name = package_of(kind.lstrip("."))
    if kind.startswith(".") is False and "." not in kind:
        name = package + "." + kind
    return SPECIAL.get(name, name)


def main():
    base, version = sys.argv[1:3]
    messages = {}
    for package in ROOTS:
        group, api = package.split(".")
        if group == "meta":
            directory = f"{base}/apimachinery@{version}/pkg/apis/meta/v1"
        else:
            directory = f"{base}/api@{version}/{group}/{api}"
        load(directory, package, messages)
    wanted = [f"{package}.{kind}" for package, kinds in ROOTS.items() for kind in kinds.split()]
    done = {}
    while wanted:
        name = wanted.pop()
        if name in done:
            continue
        package = name.rsplit(".", 1)[0]
        lines = []
        for number, proto_name, json, pointer, repeated, kind in messages[name]:
            inline = json.endswith(",inline") and not json.split(",")[0]
            entry = re.match(r"map<string, ([\w.]+)>", kind)
            target = resolve(entry.group(1) if entry else kind, package)
            if target not in SCALARS.values() and target not in SPECIAL.values():
                wanted.append(target)
            if entry:
                written = "{" + target
            elif repeated:
                written = "[" + target
            elif inline:
                written = "<" + target
            else:
                written = ("*" if pointer else "") + target
            lines.append(f"{number} {json.split(',')[0] or proto_name} {written}")
        done[name] = lines
    for name in sorted(done):
        print(name)
        for line in done[name]:
            print(" " + line)


main()
