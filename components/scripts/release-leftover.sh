# Drops Helm's records of a release, all or those of what never ended.   MANAGEMENT_NODE TENANT (empty: none) NAMESPACE RELEASE WHICH (all, pending)
cluster() { if [ -n "$TENANT" ]; then tenant "$@"; else management "$@"; fi; }
selector="owner=helm,name=$RELEASE"
if [ "$WHICH" = pending ]; then selector="$selector,status in (pending-install,pending-upgrade,pending-rollback)"; fi
cluster --namespace "$NAMESPACE" delete secret --ignore-not-found --selector "$selector" </dev/null
