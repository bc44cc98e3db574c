"""The Python client's portforward: an HTTP answer of a pod's server, and the error of a port that is not the pod's."""

import sys

from kubernetes import client, config
from kubernetes.stream import portforward

port, other = int(sys.argv[1]), int(sys.argv[2])
config.load_kube_config()
api = client.CoreV1Api()


def forward(wanted):
    return portforward(api.connect_get_namespaced_pod_portforward, "web", "default", ports=str(wanted))


ports = forward(port)
socket = ports.socket(port)
socket.setblocking(True)
socket.sendall(b"GET /page HTTP/1.0\r\n\r\n")
answer = b""
while piece := socket.recv(65536):
    answer += piece
assert answer.endswith(b"hello from the pod\n"), answer
assert ports.error(port) is None, ports.error(port)

ports = forward(other)
socket = ports.socket(other)
socket.setblocking(True)
assert socket.recv(1) == b""
assert "listens on port" in ports.error(other), ports.error(other)
print("port forward done")
