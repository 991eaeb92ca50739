# Puts the cards of a worker where HAMi and its mock-device-plugin look for them.
#   MANAGEMENT_NODE TENANT NODE REGISTER GPUS
tenant annotate node "$NODE" --overwrite "hami.io/node-nvidia-register=$REGISTER" </dev/null >/dev/null
tenant patch node "$NODE" --subresource status --type merge --patch \
  "{\"status\":{\"capacity\":{\"nvidia.com/gpu\":\"$GPUS\"},\"allocatable\":{\"nvidia.com/gpu\":\"$GPUS\"}}}" </dev/null >/dev/null
