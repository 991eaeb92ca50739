# Waits until a node advertises exactly its cards. Of a card that is unhealthy
# it still counts what pods hold, so GPUMEM and GPUCORES are "from to".
#   MANAGEMENT_NODE TENANT NODE GPUS GPUMEM GPUCORES

# number prints a quantity in full: the API gives 20000 back as 20k.
number() {
  local value=${1:-0} factor=1
  case $value in
    *k) factor=1000 ;;
    *M) factor=1000000 ;;
    *G) factor=1000000000 ;;
  esac
  printf '%s' "$((${value%[kMG]} * factor))"
}

# within VALUE "FROM TO"
within() {
  local value from to
  value=$(number "$1")
  read -r from to <<<"$2"
  [ "$value" -ge "$from" ] && [ "$value" -le "$to" ]
}

advertised() {
  local seen gpus memory cores
  seen=$(tenant get node "$NODE" --output 'jsonpath={.status.allocatable.nvidia\.com/gpu}|{.status.allocatable.nvidia\.com/gpumem}|{.status.allocatable.nvidia\.com/gpucores}' </dev/null)
  IFS='|' read -r gpus memory cores <<<"$seen"
  within "$gpus" "$GPUS $GPUS" && within "$memory" "$GPUMEM" && within "$cores" "$GPUCORES" || {
    say "seen: gpu ${gpus:-0}, gpumem ${memory:-0}, gpucores ${cores:-0}; wanted: gpu $GPUS, gpumem ${GPUMEM/ / to }, gpucores ${GPUCORES/ / to }"
    return 1
  }
}
retry 240 advertised || {
  tenant --namespace kube-system get pods --output wide --field-selector "spec.nodeName=$NODE" </dev/null >&2 || true
  fail "$NODE does not advertise its cards within 240 s; the pods on it stand above, the device plugin's among them."
}
