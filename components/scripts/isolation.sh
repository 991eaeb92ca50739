# Puts packet filter rules into a node, where they come back with each start.
#   CONTAINER RULES (nftables)
isolate() {
  printf '%s' "$RULES" | docker exec -i "$CONTAINER" bash -euo pipefail -c '
    mkdir -p /etc/gpu-tenants
    cat >/etc/gpu-tenants/isolation.nft
    nft --check --file /etc/gpu-tenants/isolation.nft
    printf "%s\n" "[Unit]" "Description=Isolation of tenants" "Before=kubelet.service" \
      "[Service]" "Type=oneshot" "RemainAfterExit=yes" "ExecStart=/usr/sbin/nft --file /etc/gpu-tenants/isolation.nft" \
      "[Install]" "WantedBy=multi-user.target" >/etc/systemd/system/gpu-tenants-isolation.service
    systemctl daemon-reload
    systemctl enable --quiet gpu-tenants-isolation.service
    systemctl restart gpu-tenants-isolation.service'
}
# A node that has just been started has no systemd to talk to yet.
retry 120 isolate ||
  fail "the rules that keep tenants apart could not be put into $CONTAINER; what nft or systemd said stands above. They need nf_tables and nf_conntrack in this host's kernel."
