#!/usr/bin/env bash
# Builds images with the first of docker, podman and buildah that is there.
# Usage: images/build.sh [NAME...], where NAME is a part, or a part with "-cuda"; the six CPU images by default.
# Environment: REGISTRY (localhost), TAG (dev), TORCH_INDEX, PYTHON_IMAGE, ENCODER (see the Dockerfile), BUILD_TOOL, and BUILD_ARGS, which
# is given to the builder as it is, say "--network host".
set -euo pipefail
cd "$(dirname "$0")/.."
registry=${REGISTRY:-localhost} tag=${TAG:-dev}

tool=${BUILD_TOOL:-}
for candidate in docker podman buildah; do
    [ -n "$tool" ] || ! "$candidate" info >/dev/null 2>&1 || tool=$candidate # docker's command alone, without its daemon, is of no use
done
[ -n "$tool" ] || { echo "build: none of docker, podman and buildah is here and answers; install or start one" >&2; exit 2; }
case $(basename "$tool") in
    docker) build=("$tool" build) ;;
    *) build=("$tool" build --layers --format docker) ;; # the docker format, because OCI's has no shell for RUN
esac
read -ra extra <<<"${BUILD_ARGS:-}"

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
arguments=(--build-arg "VERSION=$version" --build-arg "REVISION=$revision")
for argument in PYTHON_IMAGE TORCH_INDEX ENCODER; do
    [ -z "${!argument:-}" ] || arguments+=(--build-arg "$argument=${!argument}")
done

[ $# -gt 0 ] || set -- control judge retriever rollout agent learner
for name in "$@"; do
    part=${name%-cuda} suffix=${name#"${name%-cuda}"}
    grep -q "^FROM runtime AS $name\$" images/Dockerfile || { echo "build: no image $name in images/Dockerfile" >&2; exit 2; }
    image=$registry/rolecast-$part:$tag$suffix
    echo "build: $image"
    "${build[@]}" "${extra[@]}" "${arguments[@]}" --target "$name" --tag "$image" --file images/Dockerfile .
done
