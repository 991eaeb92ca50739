# Puts the agent's image into the containerd of a worker, from this host's Docker.
#   CONTAINER IMAGE
if ! docker exec "$CONTAINER" ctr --namespace k8s.io images ls --quiet </dev/null | grep -qxF "docker.io/$IMAGE"; then
  docker image inspect "$IMAGE" >/dev/null 2>&1 || fail "image $IMAGE is not in Docker; pulumi refresh finds that out, and the next up builds it again"
  docker save "$IMAGE" | docker exec -i "$CONTAINER" ctr --namespace k8s.io images import --digests - >/dev/null
fi
