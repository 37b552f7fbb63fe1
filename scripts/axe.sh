#!/usr/bin/env bash
# Puts axe-core, which tests pages for accessibility, into .tools/ as axe.min.js. It comes from npm, as released.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=${TOOLS:-.tools}
package=axe-core-4.14.1
sha256=e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745
fail() { echo "axe: $*" >&2; exit 1; }

[ ! -s "$tools/axe.min.js" ] || exit 0
command -v npm >/dev/null || fail "npm is not on PATH; install it, or put axe.min.js of $package into $tools by hand"
mkdir -p "$tools"
work=$(mktemp -d "$tools/axe.XXXXXX")
trap 'rm -rf "$work"' EXIT
npm pack --silent --pack-destination "$work" "axe-core@${package##*-}" >/dev/null || fail "$package could not be downloaded; check npm's registry"
echo "$sha256  $work/$package.tgz" | sha256sum --check --quiet || fail "$package is not the file that was released"
tar -xzf "$work/$package.tgz" -C "$work" package/axe.min.js
mv "$work/package/axe.min.js" "$tools/axe.min.js" # never half a file under the final name
