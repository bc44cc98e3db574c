#!/usr/bin/env bash
# `make down`: stops what `make up` started: server, agent, and the pods' processes.
set -euo pipefail
cd "$(dirname "$0")/.."
data=${MUSTER_DATA:-$PWD/.muster}
pidfile=$data/muster.pid

# Limit on the wait for an orderly stop, in tenths of a second.
stop_bound=150

if [ ! -f "$pidfile" ] || ! kill -0 "$(cat "$pidfile")" 2>/dev/null; then
  echo "nothing is up with data in $data"
else
  pid=$(cat "$pidfile")
  kill "$pid"
  for ((i = 0; i < stop_bound; i++)); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
  if kill -0 "$pid" 2>/dev/null; then kill -9 "$pid"; fi
  echo "stopped (data is kept in $data)"
fi
rm -f "$pidfile"
# Pods outlive their agent on purpose; taking the platform down ends them too.
pkill -TERM -f "muster shim $data/" 2>/dev/null || true
