# Waits until a webhook of the management cluster takes a request: a Ready pod
# does not say that (certificates are injected later), a dry run does.
#   MANAGEMENT_NODE WHAT NAMESPACE MANIFEST [WAIT_FOR: kubectl wait arguments]
takes() { printf '%s' "$MANIFEST" | management create --dry-run=server --filename - --output name; }

diagnose() {
  management --namespace "$NAMESPACE" get pods --output wide </dev/null >&2 || true
  management --namespace "$NAMESPACE" get events --sort-by .lastTimestamp </dev/null 2>&1 | tail -n 8 >&2 || true
}

retry 300 takes || {
  diagnose
  fail "$WHAT did not take a dry run within 300 s; its answer and its pods stand above."
}
if [ -n "${WAIT_FOR:-}" ]; then
  # shellcheck disable=SC2086 # arguments, not one word
  retry 300 management wait --timeout=5s $WAIT_FOR </dev/null || {
    diagnose
    fail "$WHAT: '$WAIT_FOR' did not come true within 300 s."
  }
fi
