"""The Python client's stream: a command's output, its input, its exit code."""

from kubernetes import client, config
from kubernetes.stream import stream

config.load_kube_config()
api = client.CoreV1Api()


def exec_in(command, **options):
    wanted = {"stdin": False, "stdout": True, "stderr": True, "tty": False, **options}
    return stream(api.connect_get_namespaced_pod_exec, "box", "default", command=command, **wanted)


answer = exec_in(["/bin/sh", "-c", "echo $GREETING"])
assert answer == "hello\n", repr(answer)

talk = exec_in(["/bin/sh"], stdin=True, _preload_content=False)
talk.write_stdin("echo one; echo two >&2; exit 3\n")
out, err = "", ""
while talk.is_open():
    talk.update(timeout=1)
    out += talk.read_stdout() if talk.peek_stdout() else ""
    err += talk.read_stderr() if talk.peek_stderr() else ""
assert (out, err) == ("one\n", "two\n"), (out, err)
assert talk.returncode == 3, talk.returncode
print("exec stream done")
