# Takes the cards of a worker back, after what shows them is gone.   MANAGEMENT_NODE TENANT NODE
if tenant get node "$NODE" --output name </dev/null >/dev/null 2>&1; then
  tenant annotate node "$NODE" hami.io/node-nvidia-register- hami.io/node-handshake- </dev/null >/dev/null
  tenant patch node "$NODE" --subresource status --type merge --patch \
    '{"status":{"capacity":{"nvidia.com/gpu":"0","nvidia.com/gpumem":"0","nvidia.com/gpucores":"0","nvidia.com/gpumem-percentage":"0"},"allocatable":{"nvidia.com/gpu":"0","nvidia.com/gpumem":"0","nvidia.com/gpucores":"0","nvidia.com/gpumem-percentage":"0"}}}' </dev/null >/dev/null
fi
