# Makes a running node container a Ready node of the tenant's cluster.
#   MANAGEMENT_NODE TENANT CONTAINER NODE VERSION MIRROR_HOSTS TOKEN_ID TOKEN_SECRET JOIN_CONFIG
worker() { docker exec -i "$CONTAINER" "$@"; }

up() { worker crictl --runtime-endpoint unix:///run/containerd/containerd.sock info </dev/null >/dev/null; }
retry 180 up || {
  docker logs --tail 20 "$CONTAINER" >&2 || true
  fail "containerd in $CONTAINER does not answer; the container's last words stand above."
}
certs_d "$CONTAINER"

joined() { worker test -f /etc/kubernetes/kubelet.conf </dev/null 2>/dev/null && tenant get node "$NODE" --output name </dev/null; }

# The token is good for ten minutes and for joining only; nobody else has it.
token() {
  local action=$1
  printf '%s\n' '{"apiVersion":"v1","kind":"Secret","type":"bootstrap.kubernetes.io/token",
    "metadata":{"name":"bootstrap-token-'"$TOKEN_ID"'","namespace":"kube-system"},
    "stringData":{"token-id":"'"$TOKEN_ID"'","token-secret":"'"$TOKEN_SECRET"'",
      "expiration":"'"$(date -u -d '+10 minutes' +%Y-%m-%dT%H:%M:%SZ)"'",
      "usage-bootstrap-authentication":"true","usage-bootstrap-signing":"true",
      "auth-extra-groups":"system:bootstrappers:kubeadm:default-node-token"}}' |
    tenant "$action" --filename - ${2:-}
}

# signed: the token's signature stands in cluster-info, which kubeadm looks for.
signed() { [ -n "$(tenant --namespace kube-public get configmap cluster-info --output "jsonpath={.data.jws-kubeconfig-$TOKEN_ID}" </dev/null)" ]; }

join() {
  printf '%s' "$JOIN_CONFIG" | worker sh -euc '
    umask 077
    cat >/run/kubeadm-join.yaml
    trap "rm -f /run/kubeadm-join.yaml" EXIT
    test ! -f /etc/kubernetes/kubelet.conf || kubeadm reset --force >/dev/null 2>&1
    kubeadm join --config /run/kubeadm-join.yaml'
}

if ! joined >/dev/null; then
  trap 'token delete --ignore-not-found >/dev/null 2>&1 || true' EXIT
  token apply >/dev/null
  retry 120 signed || fail "the control plane of $TENANT did not sign cluster-info with the worker's token: is its controller-manager running?"
  retry 240 join || {
    worker journalctl --unit kubelet --no-pager --lines 15 </dev/null >&2 || true
    fail "$NODE could not join $TENANT; kubeadm's answer and the kubelet's last words stand above."
  }
fi

ready() {
  local seen
  seen=$(tenant get node "$NODE" --output 'jsonpath={.status.conditions[?(@.type=="Ready")].status} {.status.nodeInfo.kubeletVersion}' </dev/null)
  [ "$seen" = "True $VERSION" ] || {
    say "seen: Ready $seen; wanted: Ready True $VERSION"
    return 1
  }
}
retry 420 ready || {
  tenant describe node "$NODE" </dev/null 2>&1 | sed -n '/^Conditions/,/^Addresses/p' >&2 || true
  tenant --namespace kube-system get pods --output wide --field-selector "spec.nodeName=$NODE" </dev/null >&2 || true
  fail "$NODE did not become Ready at $VERSION within 420 s; its conditions and pods stand above."
}
printf '%s' "$NODE"
