#!/usr/bin/env bash
# `make up`: starts server and agent on this machine, submits a real distributed training job, follows
# it to its end, and leaves the platform running. A second run uses the running platform and submits
# another job.
set -euo pipefail
cd "$(dirname "$0")/.."
data=${MUSTER_DATA:-$PWD/.muster}
listen=${MUSTER_LISTEN:-127.0.0.1:8443}
muster=${MUSTER_BINARY:-$PWD/target/release/muster}
export MUSTER_DATA=$data
unset MUSTER_LISTEN

# Limit on the wait for a ready node, in half seconds.
ready_bound=120

is_up() { "$muster" get nodes >/dev/null 2>&1; }

start() {
  # Only the owner may read the platform's files, including its log.
  umask 077
  mkdir -p "$data"
  if [ -e "$data/muster.log" ]; then chmod 600 "$data/muster.log"; fi
  setsid nohup "$muster" up --listen "$listen" ${MUSTER_UP_ARGUMENTS:-} >"$data/muster.log" 2>&1 </dev/null &
  echo $! >"$data/muster.pid"
  local i
  for ((i = 0; i < ready_bound; i++)); do
    if "$muster" get nodes 2>/dev/null | grep -q ' Ready'; then return; fi
    if ! kill -0 "$(cat "$data/muster.pid")" 2>/dev/null; then break; fi
    sleep 0.5
  done
  echo "the platform did not come up; the end of $data/muster.log:" >&2
  tail -n 20 "$data/muster.log" >&2
  exit 1
}

if is_up; then echo "==> the platform is up already"; else echo "==> starting server and agent (data in $data)"; start; fi
"$muster" nodes

# The example's pods have no image. A machine that may not mount or change users starts no such pod: without this check,
# the job would wait without end.
if [ -z "$("$muster" get nodes -l muster.io/runtime.process=true -o name 2>/dev/null)" ]; then
  echo "no node can run the example's pods:" >&2
  grep -o 'this node starts no pods without images: .*' "$data/muster.log" | tail -n 1 >&2 || true
  echo "  $muster doctor checks this machine; make down stops the platform" >&2
  exit 1
fi

# A new job each time: the example's name, or the first free name after it.
job=pytorch-ddp
n=1
while "$muster" get pytorchjob/"$job" >/dev/null 2>&1; do n=$((n + 1)); job=pytorch-ddp-$n; done
echo "==> submitting packaging/examples/pytorch-ddp.yaml as $job: one master, two workers"
sed "s/pytorch-ddp/$job/g" packaging/examples/pytorch-ddp.yaml | "$muster" apply -f -
echo "==> following rank 0"
# Whether the job succeeded is what the wait says; a job that cannot start has no log.
"$muster" logs -f "$job" || true
status=0
"$muster" wait pytorchjob/"$job" --timeout 60 || status=$?
if [ "$status" != 0 ]; then
  "$muster" explain pytorchjob/"$job" || true
  "$muster" describe pytorchjob/"$job" || true
fi
"$muster" get pytorchjob "$job" -o wide
"$muster" get pods -l training.kubeflow.org/job-name="$job" -o wide
cat <<END

The platform stays up.
  web UI    http://$("$muster" kubeconfig | sed -n 's,^ *server: https://,,p')/
  sign in   admin, with the password in $data/server/first-password
  try       $muster --data $data get pytorchjobs
  stop      make down
END
exit $status
