#!/usr/bin/env bash
# Puts into .tools/bin what the machine lacks of the pinned tools: kind, built
# from its Go module (tools/kind, checked by go.sum), and Pulumi with its Go
# language host, from its release, checked by digest. What the machine has in
# the right version already is used as it is.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/.tools/bin
mkdir -p "$bin"
export PATH="$bin:$PATH"

# pin SECTION KEY: a scalar of stacks/pins/versions.yaml, one level deep.
pin() { sed -n "/^$1:/,/^[^ #]/{s/^  $2: *\([^ #]*\).*/\1/p}" stacks/pins/versions.yaml | head -n 1; }
say() { printf '%s\n' "$*" >&2; }

kind_version=$(pin tools kind)
if [ "$(kind version -q 2>/dev/null || true)" = "$kind_version" ]; then
  say "kind $kind_version: $(command -v kind)"
else
  say "kind $kind_version: building from its module (a minute or two)"
  GOWORK=off GOFLAGS=-buildvcs=false CGO_ENABLED=0 go build -C tools/kind -trimpath -ldflags '-s -w' -o "$bin/kind" sigs.k8s.io/kind
fi

pulumi_version=$(pin tools pulumi)
# Newer is fine: state made by it is only read by it.
if command -v pulumi >/dev/null && command -v pulumi-language-go >/dev/null &&
  [ "$(printf '%s\n%s\n' "v$pulumi_version" "$(pulumi version)" | sort -V | head -n 1)" = "v$pulumi_version" ]; then
  say "pulumi $(pulumi version): $(command -v pulumi)"
  exit 0
fi

case $(uname -m) in
  x86_64) arch=x64 ;;
  aarch64 | arm64) arch=arm64 ;;
  *) say "no Pulumi release for $(uname -m)"; exit 1 ;;
esac
archive=pulumi-v$pulumi_version-linux-$arch.tar.gz
release=https://github.com/pulumi/pulumi/releases/download/v$pulumi_version
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
say "pulumi $pulumi_version: downloading $archive"
curl --fail --silent --show-error --location --retry 3 --output "$scratch/$archive" "https://get.pulumi.com/releases/sdk/$archive" || {
  say "Pulumi could not be downloaded. In a closed network, bring pulumi and pulumi-language-go $pulumi_version onto the PATH; see README, \"Closed networks\"."
  exit 1
}
sum=$(sha256sum "$scratch/$archive" | cut -d' ' -f1)
wanted=$(pin tools "pulumiSHA256-$arch")
if [ -z "$wanted" ] || [ "$wanted" = '""' ]; then
  # Not pinned: at least two places must agree.
  wanted=$(curl --fail --silent --show-error --location --retry 3 "$release/pulumi-$pulumi_version-checksums.txt" | sed -n "s/^\([0-9a-f]\{64\}\) .*$archive\$/\1/p")
  say "pulumi $pulumi_version: no digest is pinned for $arch; the release's own list says $wanted. Pin it as pulumiSHA256-$arch in stacks/pins/versions.yaml."
fi
[ "$sum" = "$wanted" ] || { say "$archive has sha256 $sum, not $wanted: it was changed at its source or on the way; it is not used"; exit 1; }
tar -xzf "$scratch/$archive" -C "$scratch"
install -m 755 "$scratch"/pulumi/pulumi "$scratch"/pulumi/pulumi-language-go "$bin/"
say "pulumi $pulumi_version: $bin/pulumi"
