#!/usr/bin/env bash
# Writes the locks that images install: every package of a part's extra at one version, as pip resolves it under a constraints file, with
# the hash of the file that is installed on this platform. torch on CPU has none: its index is the builder's choice.
# Usage: images/lock.sh [NAME...], where NAME is a part, a part with "-cuda", or "build"; all by default.
# With KEEP=1 nothing is resolved: the locks get the hashes of the versions that they have.
# A lock is for the Python and platform that run this script: PYTHON, else the Python 3.11 of .venv or PATH.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-$(command -v .venv/bin/python || command -v python3.11)}
torch_index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
report=$(mktemp) pins=$(mktemp)
trap 'rm -f "$report" "$pins"' EXIT

# resolve LOCK TITLE PIP-ARGUMENT...
resolve() {
    local lock=$1 title=$2
    shift 2
    if [ -n "${KEEP:-}" ]; then
        sed '/^#/d; s/ --hash=.*//' "$lock" >"$pins"
        set -- --no-deps -r "$pins" --extra-index-url "$torch_index"
    fi
    "$python" -m pip install --quiet --dry-run --ignore-installed --report "$report" "$@"
    "$python" - "$report" "$title" "$lock" >"$lock.new" <<'PYTHON'
import json, re, sys

report, title, lock = sys.argv[1:]
print(f"# {title}\n# Written by images/lock.sh; change pyproject.toml or the constraints and run it again.")
pins = set()
for item in json.load(open(report))["install"]:
    name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
    if name == "rolecast":
        continue
    version = item["metadata"]["version"].partition("+")[0]  # a build's own suffix is the index's affair
    digest = "" if name == "torch" and not lock.endswith("-cuda.lock") else item["download_info"]["archive_info"]["hashes"]["sha256"]
    pins.add(f"{name}=={version}" + (f" --hash=sha256:{digest}" if digest else ""))
print("\n".join(sorted(pins)))
PYTHON
    mv "$lock.new" "$lock"
    echo "lock: $lock, $(grep -c == "$lock") packages"
}

# resolve_cpu PART [REQUIREMENT]
resolve_cpu() {
    local part=$1
    shift
    resolve "images/$part/requirements.lock" "rolecast[$part] on CPU." -c images/constraints.txt --extra-index-url "$torch_index" ".[$part]" "$@"
}

# A pipeline's steps prepare and evaluate run in these images, and Kubeflow starts a step with the kfp that is in its image.
step=kfp
# Services trace what they are asked, where a cluster has a collector.
tracing='.[otel]'

lock() {
    case $1 in
        build) resolve images/build.lock "What makes the project's wheel." -c images/constraints.txt hatchling ;;
        rollout-cuda)
            resolve images/rollout/requirements-cuda.lock "rolecast[rollout] with vLLM, on CUDA." -c images/constraints-cuda.txt ".[rollout]" "$tracing" "$step" vllm
            ;;
        retriever-cuda)
            resolve images/retriever/requirements-cuda.lock "rolecast[retriever] on CUDA." -c images/constraints-cuda.txt ".[retriever]" "$tracing" "$step"
            ;;
        learner-cuda) resolve images/learner/requirements-cuda.lock "rolecast[learner] on CUDA." -c images/constraints-cuda.txt ".[learner]" ;;
        retriever | rollout) resolve_cpu "$1" "$tracing" "$step" ;;
        judge | agent) resolve_cpu "$1" "$tracing" ;;
        control | learner) resolve_cpu "$1" ;;
        *)
            echo "lock: no image $1; parts are control, retriever, judge, rollout, learner and agent" >&2
            exit 2
            ;;
    esac
}

for name in "${@:-build}"; do lock "$name"; done
if [ $# -eq 0 ]; then
    for name in control retriever judge rollout learner agent retriever-cuda rollout-cuda learner-cuda; do lock "$name"; done
fi
