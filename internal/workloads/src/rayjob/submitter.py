"""Submits a RayJob's program to its cluster once, prints what it prints, and ends as it ends.

Ray starts a program at most once for one submission id. This program asks for the id before it submits, and again
after each error, so that it may be started again at any time. It ends with the program's exit code, and with AGAIN if
the cluster could not be asked.
"""

import asyncio
import json
import os
import signal
import sys
import time

import yaml
from ray.job_submission import JobStatus, JobSubmissionClient

AGAIN = 75
# Seconds for which the cluster may be out of reach.
PATIENCE = 300
job = json.loads(os.environ["MUSTER_RAY_JOB"])
name = os.environ["RAY_JOB_SUBMISSION_ID"]
address = "http://" + os.environ["RAY_DASHBOARD_ADDRESS"]
printed = 0
silent_since = None


def tell(text):
    print(f"muster: {text}", flush=True)


def patient(error):
    """Waits before the next try, or gives up."""
    global silent_since
    silent_since = silent_since or time.monotonic()
    if time.monotonic() - silent_since > PATIENCE:
        tell(f"{address} cannot be asked about Ray job {name} for {PATIENCE} s: {error}")
        sys.exit(AGAIN)
    time.sleep(2)


def look_up(client):
    """The job, or None if the cluster does not know it."""
    try:
        return client.get_job_info(name)
    except RuntimeError as error:
        if "status code 404" in str(error):
            return None
        raise


def submit(client):
    env = yaml.safe_load(job.get("runtimeEnvYAML") or "") or {}
    client.submit_job(
        entrypoint=job["entrypoint"],
        submission_id=name,
        runtime_env=env,
        metadata=job.get("metadata"),
        entrypoint_num_cpus=job.get("entrypointNumCpus"),
        entrypoint_num_gpus=job.get("entrypointNumGpus"),
        entrypoint_resources=json.loads(job.get("entrypointResources") or "null"),
    )
    tell(f"submitted as Ray job {name}")


async def follow(client):
    """Prints the rest of the program's output."""
    global printed
    passed = 0
    async for text in client.tail_job_logs(name):
        new = text[max(0, printed - passed):]
        passed += len(text)
        printed = max(printed, passed)
        print(new, end="", flush=True)


def end(*_):
    try:
        if job.get("stopOnTermination"):
            JobSubmissionClient(address).stop_job(name)
    finally:
        os._exit(143)


signal.signal(signal.SIGTERM, end)
client, told, seen = None, "", False
while True:
    try:
        client = client or JobSubmissionClient(address)
        info = look_up(client)
        silent_since = None if info else silent_since
        seen = seen or info is not None
        if info is None and seen:
            tell(f"the cluster forgot Ray job {name}: its head was started anew")
            sys.exit(1)
        if info is None and job.get("entrypoint") is not None:
            submit(client)
            seen, silent_since = True, None
            continue
        if info is None:
            patient("the cluster does not know it")
            continue
        if JobStatus(info.status).is_terminal():
            break
        asyncio.run(follow(client))
        time.sleep(0.5)
    except Exception as error:
        if str(error) != told:
            told = str(error)
            tell(f"the cluster at {address} refused or did not answer: {told}")
        patient(error)
try:
    asyncio.run(follow(client))
except Exception as error:
    tell(f"the rest of the output could not be read: {error}")
# The message repeats the output.
why = (info.message or "").split(", last available logs")[0]
tell(f"Ray job {name} {info.status}: {why}")
if info.status == JobStatus.SUCCEEDED:
    sys.exit(0)
code = info.driver_exit_code or 1
sys.exit(code if 0 < code < 126 and code != AGAIN else 1)
