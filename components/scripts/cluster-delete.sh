# Takes the management cluster away, whatever is left of it.   CLUSTER
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
kind delete cluster --name "$CLUSTER" --kubeconfig "$scratch/kubeconfig"
