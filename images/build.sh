#!/usr/bin/env bash
# Builds images with the first of docker, podman and buildah that is there.
# Usage: images/build.sh [NAME...], where NAME is a part, or a part with "-cuda"; the six CPU images by default.
# With SBOM=FOLDER each image's CycloneDX list of packages, with their hashes, is written there from its lock, by cyclonedx-py of the PyPI
# package cyclonedx-bom; SBOM_ONLY=1 builds nothing.
# Environment: REGISTRY (localhost), TAG (dev), TORCH_INDEX, PYTHON_IMAGE, ENCODER (see the Dockerfile), BUILD_TOOL, and BUILD_ARGS, which
# is given to the builder as it is, say "--network host".
set -euo pipefail
cd "$(dirname "$0")/.."
registry=${REGISTRY:-localhost} tag=${TAG:-dev}

if [ -n "${SBOM:-}" ]; then
    command -v cyclonedx-py >/dev/null || { echo "build: SBOM is set, and cyclonedx-py is not here; pip install cyclonedx-bom" >&2; exit 2; }
    mkdir -p "$SBOM"
fi

sbom() { # of image NAME
    local part=${1%-cuda}
    cyclonedx-py requirements --output-reproducible --mc-type application --pyproject pyproject.toml --output-format JSON \
        --output-file "$SBOM/rolecast-$1.cdx.json" "images/$part/requirements${1#"$part"}.lock"
    echo "build: $SBOM/rolecast-$1.cdx.json"
}

tool=${BUILD_TOOL:-}
for candidate in docker podman buildah; do
    [ -n "$tool" ] || [ -n "${SBOM_ONLY:-}" ] || ! "$candidate" info >/dev/null 2>&1 || tool=$candidate # docker's command alone, without its daemon, is of no use
done
[ -n "$tool" ] || [ -n "${SBOM_ONLY:-}" ] || { echo "build: none of docker, podman and buildah is here and answers; install or start one" >&2; exit 2; }
case $(basename "${tool:-none}") in
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
    [ -z "${SBOM:-}" ] || sbom "$name"
    [ -z "${SBOM_ONLY:-}" ] || continue
    echo "build: $image"
    "${build[@]}" "${extra[@]}" "${arguments[@]}" --target "$name" --tag "$image" --file images/Dockerfile .
done
