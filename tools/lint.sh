#!/usr/bin/env bash
# Every check that reads the code without running it.
set -euo pipefail
cd "$(dirname "$0")/.."
failed=0
check() {
  local name=$1 output status=0
  shift
  output=$("$@" 2>&1) || status=$?
  # What Go brings first is no finding.
  output=$(grep -v '^go: downloading ' <<<"$output" || true)
  if [ "$status" = 0 ] && [ -z "$output" ]; then
    echo "ok    $name"
  else
    printf 'FAIL  %s\n%s\n' "$name" "$output"
    failed=1
  fi
}
tidy() {
  for module in . agent tests/*/ tools/*/; do
    [ ! -f "$module/go.mod" ] || go mod tidy -C "$module" -diff 2> >(grep -v '^go: downloading' >&2)
  done
}

check 'gofmt' gofmt -l .
check 'go mod tidy' tidy
for module in . agent tests/*/; do
  [ -f "$module/go.mod" ] || continue
  check "go vet $module" go vet -C "$module" ./...
  check "staticcheck $module" go tool -C "$module" -modfile "$PWD/tools/lint/go.mod" staticcheck ./...
done
if command -v shellcheck >/dev/null; then
  # lib.sh stands in front of each of the others when they run.
  for script in components/scripts/*.sh; do
    check "shellcheck $script" bash -c 'cat components/scripts/lib.sh "$0" | shellcheck --shell bash --severity warning --exclude SC2034 -' "$script"
  done
  check 'shellcheck tools' shellcheck --severity warning tools/*.sh .ci/run
else
  echo 'skip  shellcheck: it is not installed'
fi
exit "$failed"
