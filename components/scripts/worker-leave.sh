# Takes a node out of its cluster before its container goes. Best effort where
# the cluster is dying itself: a node object in a dead cluster harms nobody.
#   MANAGEMENT_NODE TENANT NODE
ready_elsewhere() { tenant get nodes --output 'jsonpath={range .items[*]}{.metadata.name} {.status.conditions[?(@.type=="Ready")].status} {.spec.unschedulable}{"\n"}{end}' </dev/null 2>/dev/null | grep -v "^$NODE " | grep -q ' True $'; }

if tenant get node "$NODE" --output name </dev/null >/dev/null 2>&1; then
  if ready_elsewhere; then
    tenant drain "$NODE" --ignore-daemonsets --delete-emptydir-data --force --timeout 90s </dev/null >&2 ||
      say "$NODE could not be drained within 90 s; it goes all the same"
  fi
  tenant delete node "$NODE" --ignore-not-found --wait=false </dev/null >&2 || say "the API of $TENANT does not answer; node $NODE is left to it"
fi
