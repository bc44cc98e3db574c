"""A program in a pod with web pages, for the tests of pages of pods: it tells what it was sent, and misbehaves on demand.

usage: pod_server.py PORT
"""
import base64
import hashlib
import http.server
import json
import os
import struct
import sys
import threading

NEXT = threading.Event()
PAGE = """<!doctype html><title>page of a pod</title><h1 id=h>no script ran</h1><script>
document.getElementById('h').innerText = 'the script ran';
</script>"""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, body, code=200, headers=()):
        body = body.encode() if isinstance(body, str) else body
        self.send_response(code)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def do_GET(self):
        path = self.path.split("?")[0]
        if path == "/headers":
            told = {"path": self.path, "headers": [[name.lower(), value] for name, value in self.headers.items()]}
            self.answer(json.dumps(told), headers=[("Content-Type", "application/json")])
        elif path == "/cookie":
            self.answer("set", headers=[
                ("Set-Cookie", "app=1; Domain=localhost; Path=/; HttpOnly"), ("Set-Cookie", "muster_session=evil; Path=/"),
                ("Clear-Site-Data", '"cookies"'), ("Connection", "X-Secret"), ("X-Secret", "hop"),
            ])
        elif path == "/redirect":
            self.answer("", 302, [("Location", f"http://{self.headers['Host']}/headers?from=redirect")])
        elif path == "/stream":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.chunk(b"one\n")
            NEXT.wait(60)
            self.chunk(b"two\n")
            self.chunk(b"")
        elif path == "/next":
            NEXT.set()
            self.answer("next")
        elif path == "/large-header":
            self.answer("large", headers=[("X-Large", "x" * 200_000)])
        elif path == "/end":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"begin")
            self.wfile.flush()
            os._exit(3)
        elif path == "/ws":
            self.websocket()
        elif path == "/evil":
            self.answer(EVIL, headers=[("Content-Type", "text/html")])
        else:
            self.answer(PAGE, headers=[("Content-Type", "text/html")])

    do_HEAD = do_GET

    def do_POST(self):
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        framing = [name for name in ("Transfer-Encoding", "Content-Length") if name in self.headers]
        self.answer(f"{self.command} {self.path} {','.join(framing)} {len(body)} ".encode() + body[:100])

    do_PUT = do_DELETE = do_PATCH = do_POST

    def websocket(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.send_response(101)
        for name, value in (("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", accept)):
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True
        while True:
            head = self.rfile.read(2)
            if len(head) < 2 or head[0] & 15 == 8:
                return
            size = head[1] & 127
            if size == 126:
                size, = struct.unpack(">H", self.rfile.read(2))
            mask = self.rfile.read(4)
            text = bytes(byte ^ mask[at % 4] for at, byte in enumerate(self.rfile.read(size)))
            text = b"echo " + text
            self.wfile.write(bytes([0x81, len(text)]) + text)
            self.wfile.flush()


# What a hostile page tries with the address of Muster and that of another pod's page; the browser's test reads #out.
EVIL = """<!doctype html><title>evil</title><pre id=out></pre><script>
const query = new URLSearchParams(location.search), out = {};
async function attempt(name, work) { try { out[name] = await work(); } catch (e) { out[name] = 'refused: ' + e; } }
async function read(url, options) {
  const answer = await fetch(url, {credentials: 'include', ...options});
  return answer.status + ' ' + (await answer.text()).slice(0, 60);
}
function socket(url, ...protocols) {
  return new Promise((done) => {
    const socket = new WebSocket(url, protocols);
    socket.onopen = () => done('open'); socket.onerror = () => done('refused');
  });
}
function frame(url) {
  return new Promise((done) => {
    const frame = document.createElement('iframe');
    frame.onload = () => { try { done('read: ' + frame.contentDocument.title); } catch (e) { done('refused: ' + e.name); } };
    frame.src = url; document.body.append(frame);
  });
}
(async () => {
  const muster = query.get('muster'), other = query.get('other');
  await attempt('own', () => read('/headers'));
  await attempt('cookie', async () => document.cookie);
  await attempt('whoami', () => read(muster + '/api/v1/whoami'));
  await attempt('write', () => read(muster + '/ui/jobs', {method: 'POST', body: 'action=cancel',
    headers: {'Content-Type': 'application/x-www-form-urlencoded'}}));
  await attempt('exec', () => socket(muster.replace('http', 'ws') +
    '/api/v1/namespaces/default/pods/other/exec?command=id&stdout=true', 'v4.channel.k8s.io'));
  await attempt('page', () => frame(muster + '/ui/'));
  await attempt('other', () => read(other + '/headers'));
  await attempt('otherSocket', () => socket(other.replace('http', 'ws') + '/ws'));
  await attempt('otherFrame', () => frame(other + '/'));
  for (const name of ['muster_session', '__Host-muster_session', 'muster_proxy', '__Host-muster_proxy'])
    for (const more of ['', '; Secure', '; Domain=' + query.get('domain')])
      document.cookie = name + '=tossed; path=/' + more;
  await attempt('tossed', async () => document.cookie);
  document.getElementById('out').innerText = JSON.stringify(out);
})();
</script>"""

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
