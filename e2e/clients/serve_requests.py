"""Sends requests to a Service one after the other until a file exists, and prints how many got which answer.

Arguments: the Service with its port, a path, the file that ends it, and the file that it makes after the first answer.
"""

import collections
import os
import sys
import time

from kubernetes import client, config

service, path, end, begun = sys.argv[1:]
config.load_kube_config()
core = client.CoreV1Api()
answers = collections.Counter()
while not os.path.exists(end):
    try:
        answer = core.connect_get_namespaced_service_proxy_with_path(service, "default", path)
    except Exception as error:
        answer = f"failed: {error}"
    answers[answer] += 1
    if not os.path.exists(begun):
        open(begun, "w").close()
    time.sleep(0.05)
for answer, count in answers.items():
    print(f"{count} times {answer}")
