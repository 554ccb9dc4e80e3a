#!/usr/bin/env bash
# Two nodes that watch one run together. Here both are on this machine. It needs redis-server.
#
#     examples/observe_nodes.sh 200
#
# On real machines, each runs the command in `node` once, and --node can be left out: its default is the host name. In
# place of 127.0.0.1 stands a host that all nodes reach. Redis then needs a password: see docs/multinode.md.
set -euo pipefail

steps=$1
redis_port=${REDIS_PORT:-6390}
meeting_port=${MEETING_PORT:-29410}

"${REDIS_SERVER:-redis-server}" --bind 127.0.0.1 --port "$redis_port" --save "" --loglevel warning &
trap 'kill %1' EXIT

node() {
    holdfast observe --nodes 2 --node "$1" --redis "redis://127.0.0.1:$redis_port" --run nodes \
        --directory "${RUNS:-holdfast-runs}" -- \
        torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint "127.0.0.1:$meeting_port" \
        examples/ddp.py "$steps"
}

node a &
first=$!
node b &
wait "$first"
wait $!
