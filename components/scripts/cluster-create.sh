# Brings about the management cluster and prints its kubeconfig.
#   CLUSTER IMAGE CONFIG (kind's) INCARNATION MIRROR_HOSTS KIND_EXPERIMENTAL_DOCKER_NETWORK
MANAGEMENT_NODE="$CLUSTER-control-plane"
marker=/kind/gpu-tenants-incarnation

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# The marker is written last: with it a cluster is whole, without it what is
# there was left by a run that did not end.
whole() { [ "$(docker cp "$MANAGEMENT_NODE:$marker" - 2>/dev/null | tar -xO 2>/dev/null)" = "$INCARNATION" ]; }

if whole; then
  docker start "$MANAGEMENT_NODE" >/dev/null # it may have been stopped
else
  kind delete cluster --name "$CLUSTER" --kubeconfig "$scratch/kubeconfig"
  printf '%s' "$CONFIG" | kind create cluster --name "$CLUSTER" --image "$IMAGE" --config - \
    --kubeconfig "$scratch/kubeconfig" --wait 0s >&2 ||
    fail "kind could not create cluster $CLUSTER; what it said stands above. 'docker logs' of its node is gone with it: kind create cluster --retain --name $CLUSTER --image $IMAGE keeps it."
fi

certs_d "$MANAGEMENT_NODE"
retry 180 management get --raw /readyz </dev/null || fail "the API server of cluster $CLUSTER does not answer; see: docker logs $MANAGEMENT_NODE"
retry 180 management wait --for=condition=Ready node --all --timeout=5s </dev/null ||
  fail "the node of cluster $CLUSTER is not Ready; see: docker exec $MANAGEMENT_NODE journalctl -u kubelet"
docker exec "$MANAGEMENT_NODE" sh -c "printf %s '$INCARNATION' >$marker"
kind get kubeconfig --name "$CLUSTER"
