#!/usr/bin/env bash
# Removes what a stack left in Docker when its state is lost and `make destroy`
# knows nothing of it: containers, their volumes, its network. Only what carries
# the stack's label, and the kind cluster on its network.   STACK
set -euo pipefail
stack=${1:?which stack?}

# The label's value is the stack's prefix: ask Docker for those there are.
found=$({
  docker ps --all --filter label=io.gpu-tenants.stack --format '{{.Label "io.gpu-tenants.stack"}}'
  docker network ls --filter label=io.gpu-tenants.stack --format '{{.Label "io.gpu-tenants.stack"}}'
} | sort --unique)
prefix=$(printf '%s\n' "$found" | grep -x -e "gpu-tenants-$stack" -e "$stack" || true)
if [ -z "$prefix" ]; then
  echo "no stack '$stack' is known to Docker; there are: ${found:-none}" >&2
  exit 1
fi

cluster=$(docker ps --all --quiet --filter "label=io.x-k8s.kind.cluster=$prefix")
workers=$(docker ps --all --quiet --filter "label=io.gpu-tenants.stack=$prefix")
network=$(docker network ls --quiet --filter "label=io.gpu-tenants.stack=$prefix")
echo "to be removed: $(echo $workers $cluster | wc -w) containers with their volumes, and network $prefix" >&2
if [ -t 0 ]; then
  read -r -p "type the stack's name to go on: " answer
  [ "$answer" = "$stack" ] || exit 1
fi
# shellcheck disable=SC2086 # ids, one word each
[ -z "$workers$cluster" ] || docker rm --force --volumes $workers $cluster >/dev/null
# shellcheck disable=SC2086
[ -z "$network" ] || docker network rm $network >/dev/null
echo "done. If Pulumi still holds the stack: pulumi stack rm --force $stack" >&2
