# Shared by every script here. Data comes in through the environment; a script's
# standard output is its result, everything for people goes to standard error.

# What `make tools` installed wins over the machine's own.
PATH="$PWD/.tools/bin:$PATH"

say() { printf '%s\n' "$*" >&2; }

fail() { say "$*"; exit 1; }

# retry SECONDS COMMAND ...: runs the command until it succeeds. When the time is
# up, says what the last attempt said, and fails.
retry() {
  local deadline=$((SECONDS + $1)) output
  shift
  until output=$("$@" 2>&1); do
    if ((SECONDS >= deadline)); then
      say "$output"
      return 1
    fi
    sleep 2 # between two looks
  done
}

# kubectl in the management cluster.
management() {
  docker exec -i "$MANAGEMENT_NODE" kubectl --kubeconfig /etc/kubernetes/admin.conf "$@"
}

# kubectl in the tenant's cluster, as its administrator. The credential is read
# and used inside the management node and does not leave it.
tenant() {
  docker exec -i -e "TENANT=$TENANT" "$MANAGEMENT_NODE" bash -euo pipefail -c '
    kubeconfig=$(mktemp)
    trap "rm -f $kubeconfig" EXIT
    kubectl --kubeconfig /etc/kubernetes/admin.conf --namespace tenants get secret "$TENANT-admin-kubeconfig" \
      --output "jsonpath={.data.admin\.conf}" </dev/null | base64 -d >"$kubeconfig"
    kubectl --kubeconfig "$kubeconfig" --request-timeout 20s "$@"' kubectl "$@"
}

# certs_d NODE: makes the node's containerd ask the mirror for every image, or
# no longer. containerd reads the folder at each pull and needs no restart.
certs_d() {
  docker exec -i "$1" bash -euo pipefail -c '
    hosts=/etc/containerd/certs.d/_default/hosts.toml
    if [ -n "$1" ]; then
      mkdir -p "$(dirname "$hosts")"
      printf "%s" "$1" >"$hosts"
    elif grep -qs "^# gpu-tenants" "$hosts"; then
      rm -f "$hosts"
    fi' certs_d "$MIRROR_HOSTS" </dev/null
}
