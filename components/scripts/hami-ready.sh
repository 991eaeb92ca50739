# Waits until a GPU pod is routed to HAMi: a server-side dry run goes the way of
# a real pod, from the hosted API server through Konnectivity to the webhook on
# the worker. A Deployment that is Available does not prove it: HAMi's Service
# selects a label that comes up to 15 s later.
#   MANAGEMENT_NODE TENANT POD (manifest)
routed() {
  local scheduler
  scheduler=$(printf '%s' "$POD" | tenant create --dry-run=server --filename - --output 'jsonpath={.spec.schedulerName}')
  [ "$scheduler" = hami-scheduler ] || {
    say "a GPU pod would go to ${scheduler:-nobody}"
    return 1
  }
}
retry 300 routed || {
  tenant --namespace kube-system get pods --output wide </dev/null >&2 || true
  fail "a GPU pod in $TENANT is not routed to hami-scheduler. The call goes API server -> konnectivity-server -> konnectivity-agent -> hami-scheduler; which of them is not ready stands above."
}
