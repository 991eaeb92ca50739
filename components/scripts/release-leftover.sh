# Drops Helm's record of a release.   MANAGEMENT_NODE TENANT (empty: none) NAMESPACE RELEASE
cluster() { if [ -n "$TENANT" ]; then tenant "$@"; else management "$@"; fi; }
cluster --namespace "$NAMESPACE" delete secret --ignore-not-found --selector "owner=helm,name=$RELEASE" </dev/null
