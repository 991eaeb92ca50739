# Brings about a running node container and prints its id.
#   CONTAINER NODE IMAGE CONTENT (what is in it, however it is reached) NETWORK SUBNET
#   NEAR (pod and service networks) ADDRESS LABELS (one a line) OWNER (one of them)
#
# The flags are those with which kind runs its nodes; what each answers:
# https://github.com/kubernetes-sigs/kind/blob/main/pkg/cluster/internal/providers/docker/provision.go
specification=$(printf '%s\n' "$NODE" "$CONTENT" "$NETWORK" "$ADDRESS" "$LABELS" | sha256sum | cut -d' ' -f1)

label() { docker container inspect --format "{{index .Config.Labels \"$1\"}}" "$CONTAINER"; }

if docker container inspect "$CONTAINER" >/dev/null 2>&1; then
  [ "$(label "${OWNER%%=*}")" = "${OWNER#*=}" ] ||
    fail "a container named $CONTAINER exists and is not this stack's (it lacks the label $OWNER): remove it or rename the stack"
  # The same container is whole, or only stopped; another one was left by a run
  # that did not end.
  [ "$(label io.gpu-tenants.specification)" = "$specification" ] || docker rm --force --volumes "$CONTAINER" >/dev/null
fi

if docker container inspect "$CONTAINER" >/dev/null 2>&1; then
  docker start "$CONTAINER" >/dev/null
else
  flags=()
  while IFS= read -r line; do flags+=(--label "$line"); done <<<"$LABELS"
  # As kind does it: with a proxy, what is near is never asked through it.
  proxied=
  for variable in HTTP_PROXY HTTPS_PROXY http_proxy https_proxy; do
    [ -z "${!variable:-}" ] || { flags+=(--env "$variable"); proxied=yes; }
  done
  if [ -n "$proxied" ]; then
    near="${NO_PROXY:-${no_proxy:-}},$SUBNET,$NEAR,.svc,.cluster.local,localhost,127.0.0.1"
    flags+=(--env "NO_PROXY=${near#,}" --env "no_proxy=${near#,}")
  fi
  docker run --detach --name "$CONTAINER" --hostname "$NODE" \
    --privileged --security-opt seccomp=unconfined --security-opt apparmor=unconfined \
    --tty --init=false --cgroupns private \
    --tmpfs /tmp --tmpfs /run --volume /var --volume /lib/modules:/lib/modules:ro \
    --network "$NETWORK" --ip "$ADDRESS" --restart unless-stopped \
    --label "io.gpu-tenants.specification=$specification" "${flags[@]}" "$IMAGE" >/dev/null ||
    { docker rm --force --volumes "$CONTAINER" >/dev/null 2>&1 || true
      fail "$CONTAINER could not be started; Docker's answer stands above."; }
fi
docker container inspect --format '{{.Id}}' "$CONTAINER"
