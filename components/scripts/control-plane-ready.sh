# Waits until Kamaji reports the tenant's control plane as it is specified now,
# and prints its address.   MANAGEMENT_NODE TENANT VERSION REPLICAS
status() {
  management --namespace tenants get tenantcontrolplane "$TENANT" --output "jsonpath={.metadata.generation}|{.status.observedGeneration}|{.status.kubernetesResources.version.status}|{.status.kubernetesResources.version.version}|{.status.addons.konnectivity.enabled}|{.status.kubernetesResources.deployment.readyReplicas}" </dev/null
}

ready() {
  local generation observed state version konnectivity replicas seen
  seen=$(status)
  IFS='|' read -r generation observed state version konnectivity replicas <<<"$seen"
  [ "$generation" = "$observed" ] && [ "$state" = Ready ] && [ "$version" = "$VERSION" ] &&
    [ "$konnectivity" = true ] && [ "${replicas:-0}" -ge "$REPLICAS" ] || {
    say "seen: generation $generation, observed $observed, status $state, version $version, konnectivity $konnectivity, ready replicas ${replicas:-0}"
    return 1
  }
}

retry 600 ready || {
  management --namespace tenants get pods --selector "kamaji.clastix.io/name=$TENANT" --output wide </dev/null >&2 || true
  management --namespace tenants get events --sort-by .lastTimestamp </dev/null 2>&1 | grep "$TENANT" | tail -n 8 >&2 || true
  fail "the control plane of $TENANT did not become Ready at $VERSION within 600 s; see also: kubectl --namespace kamaji-system logs deployment/kamaji"
}

# Ready is Kamaji's word; the tenant's own API has the last one. cluster-info is
# what a worker looks for first, and is written a little later.
retry 120 tenant --namespace kube-public get configmap cluster-info --output name </dev/null ||
  fail "the API server of $TENANT does not answer as its administrator"

management --namespace tenants get tenantcontrolplane "$TENANT" --output 'jsonpath={.status.controlPlaneEndpoint}' </dev/null
