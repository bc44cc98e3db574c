"""Sends the server that KUBECONFIG names requests made from its own OpenAPI documents, sound ones and broken ones.

No answer may be a fault of the server's own. An answer whose code the document lists must match the schema that it
lists there, and a refusal must be a Status. Prints how much was asked, and every failure once.

Arguments: the most examples of each operation, the seed, and how many operations there are for each that is tried:
the seed says which.
"""
import sys
import time
from collections import Counter

import hypothesis
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from kubernetes import client, config
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error, response_schema_conformance

EXAMPLES, SEED, SHARE = (int(word) for word in sys.argv[1:4])
# Objects are written here, and namespaces' own deletion is left out, so that the server is the same throughout.
NAMESPACE = "fuzzed"
# A watch or a log that is followed has no end.
STREAMS = ("watch", "follow")
TIMEOUT = 30
# 504 is the answer to a revision that has not happened yet, 503 to a log whose node is away.
EXPECTED = {503: "ServiceUnavailable", 504: "Timeout"}
SHOWN = 1000

config.load_kube_config()
target = client.Configuration.get_default_copy()
session = requests.Session()
# The environment of the machine may name other authorities, which requests would take in place of the kubeconfig's.
session.trust_env = False
session.verify = target.ssl_ca_cert or target.verify_ssl
if target.cert_file:
    session.cert = (target.cert_file, target.key_file)
token = target.get_api_key_with_prefix("authorization")
if token:
    session.headers["Authorization"] = token

codes = Counter()
failures = {}


def documents():
    """The document of each group and version."""
    index = session.get(f"{target.host}/openapi/v3", timeout=TIMEOUT)
    index.raise_for_status()
    for _, place in sorted(index.json()["paths"].items()):
        document = session.get(target.host + place["serverRelativeURL"], timeout=TIMEOUT)
        document.raise_for_status()
        yield document.json()


def spared(operation):
    """Whether an operation is left out: to delete namespaces, or all roles or bindings of the cluster, ends what the
    other cases are about, the caller's own rights among them."""
    if operation.method.upper() != "DELETE":
        return False
    if operation.path.startswith("/apis/rbac.authorization.k8s.io/v1/clusterrole"):
        return "{" not in operation.path
    namespaces = operation.path.startswith("/api/v1/namespaces")
    return namespaces and operation.path.count("{") <= 1 and operation.path.count("/") <= 4


def settle(case):
    """Leads a case to objects that may be written, and ends what would have no end."""
    for name in STREAMS:
        if case.query:
            case.query.pop(name, None)
    if case.path_parameters and "namespace" in case.path_parameters:
        case.path_parameters["namespace"] = NAMESPACE


def note(operation, what, response):
    request = response.request
    key = (operation.label, what.split("\n")[0])
    failures.setdefault(key, "\n".join([
        f"{operation.label}: {what[:SHOWN]}",
        f"  asked: {request.method} {request.url}"[:SHOWN],
        f"  with: {request.headers.get('Content-Type')} {request.body!r}"[:SHOWN],
        f"  answered: {response.status_code} {response.text[:SHOWN]}",
    ]))


def try_case(operation, case):
    settle(case)
    try:
        response = case.call(base_url=target.host, session=session, timeout=TIMEOUT, verify=session.verify)
    except requests.exceptions.InvalidHeader:
        return
    codes[response.status_code] += 1
    try:
        body = response.json()
    except ValueError:
        body = None
    reason = body.get("reason") if isinstance(body, dict) else None
    if response.status_code >= 400:
        kind = body.get("kind") if isinstance(body, dict) else None
        if kind != "Status" or body.get("code") != response.status_code:
            note(operation, "a refusal that is no Status", response)
    if response.status_code in EXPECTED and reason == EXPECTED[response.status_code]:
        return
    try:
        case.validate_response(response, checks=[not_a_server_error, response_schema_conformance])
    except AssertionError as broken:
        note(operation, str(broken), response)
    except BaseExceptionGroup as broken:
        for one in broken.exceptions:
            note(operation, str(one), response)


def try_operation(operation):
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
        @hypothesis.seed(SEED)
        @settings(max_examples=EXAMPLES, deadline=None, database=None, phases=[Phase.generate],
                  suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))
        def run(case):
            try_case(operation, case)

        try:
            run()
        except hypothesis.errors.Unsatisfiable:
            # An operation without parameters has nothing that could be broken.
            pass


def main():
    begun = time.monotonic()
    made = session.post(f"{target.host}/api/v1/namespaces", json={"metadata": {"name": NAMESPACE}}, timeout=TIMEOUT)
    assert made.status_code in (201, 409), made.text
    known = count = 0
    for document in documents():
        schema = schemathesis.openapi.from_dict(document)
        for result in schema.get_all_operations():
            operation = result.ok()
            if spared(operation):
                continue
            known += 1
            if (known + SEED) % SHARE == 0:
                count += 1
                try_operation(operation)
    alive = session.get(f"{target.host}/api/v1/namespaces/{NAMESPACE}", timeout=TIMEOUT)
    assert alive.status_code == 200, alive.text
    for text in failures.values():
        print(text)
    cases = sum(codes.values())
    print(f"schemathesis: {count} of {known} operations, {cases} cases in {time.monotonic() - begun:.0f} s, "
          f"{len(failures)} failures; answers by code: {dict(sorted(codes.items()))}")
    assert cases >= count, "hardly anything was asked"
    return 1 if failures else 0


sys.exit(main())
