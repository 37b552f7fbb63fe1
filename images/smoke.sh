#!/usr/bin/env bash
# Runs each CPU image as a user that it knows and as one that it does not, without capabilities, on a read-only root with tmpfs on /tmp
# and /work. The parts meet in a tiny run: the retriever's image prepares it, the learner's trains it on two ranks with DeepSpeed, the
# retriever serves its index and the agent its model. Prints a table; exits with 1 if anything failed.
# Usage: images/smoke.sh [PART...]; all six by default.
# Environment: REGISTRY (localhost), TAG (dev), RUN_TOOL (docker or podman), PATIENCE (seconds to wait for a service, 120).
set -euo pipefail
registry=${REGISTRY:-localhost} tag=${TAG:-dev} patience=${PATIENCE:-120}
tool=${RUN_TOOL:-}
for candidate in docker podman; do
    [ -n "$tool" ] || ! "$candidate" info >/dev/null 2>&1 || tool=$candidate # docker's command alone, without its daemon, is of no use
done
[ -n "$tool" ] || { echo "smoke: neither docker nor podman is here and answers; install or start one" >&2; exit 2; }
[ $# -gt 0 ] || set -- control judge retriever rollout learner agent

users=(10001:10001 12345:0)
config='{"name": "smoke", "threads": 1, "learner": {"name": "deepspeed", "zero": 2},
 "method": {"name": "decor", "prompts": "compact", "max_tokens": 24, "memory_tokens": 128, "condenser": "extractive"},
 "model": {"max_context": 256, "scratch": {"hidden": 32, "layers": 1, "heads": 2, "head_dim": 16, "feed_forward": 64}},
 "data": {"world": {"entities": {"train": 150, "dev": 60, "test": 90}, "questions": {"train": 60, "dev": 8, "test": 16}}},
 "stages": {"sft": {"steps": 2, "batch": 4}}}'
work=$(mktemp -d)
service= # the container that serves right now
# shellcheck disable=SC2329 # the trap calls it
cleanup() {
    [ -z "$service" ] || "$tool" rm --force "$service" >/dev/null 2>&1 || true
    rm -rf "$work" || echo "smoke: $work holds files of other users; delete it as root" >&2
}
trap cleanup EXIT
log=$work/log

# confine USER: fills `confined` with what every container gets.
confine() {
    confined=(--read-only --user "$1" --cap-drop ALL --security-opt no-new-privileges --tmpfs "/tmp:rw,mode=1777" --tmpfs "/work:rw,mode=1777")
    [ "$(basename "$tool")" != podman ] || confined+=(--read-only-tmpfs=false) # podman would make more folders writable
}

image() { echo "$registry/rolecast-$1:$tag"; }

# once PART USER OPTION... -- ARGUMENT...: runs a container to its end.
once() {
    local part=$1 options=()
    confine "$2"
    shift 2
    while [ "$1" != -- ]; do options+=("$1"); shift; done
    shift
    "$tool" run --rm "${confined[@]}" "${options[@]}" "$(image "$part")" "$@" >>"$log" 2>&1
}

# serve PART USER OPTION... -- ARGUMENT...: sets `seconds` to how long /healthz took; the service must end well on SIGTERM.
serve() {
    local part=$1 options=() start address status
    confine "$2"
    shift 2
    while [ "$1" != -- ]; do options+=("$1"); shift; done
    shift
    start=$(date +%s%N)
    service=$("$tool" run --detach "${confined[@]}" --publish 127.0.0.1::8080 "${options[@]}" "$(image "$part")" "$@")
    address=$("$tool" port "$service" 8080 | head -n 1)
    until curl --silent --fail --max-time 2 --output /dev/null "http://$address/healthz"; do
        if [ "$("$tool" inspect --format '{{.State.Running}}' "$service")" != true ] || [ $((($(date +%s%N) - start) / 1000000000)) -ge "$patience" ]; then
            "$tool" logs "$service" >>"$log" 2>&1
            echo "no answer from /healthz" >>"$log"
            return 1
        fi
        sleep 0.1
    done
    seconds=$(awk -v nanoseconds="$(($(date +%s%N) - start))" 'BEGIN {printf "%.1f", nanoseconds / 1e9}')
    "$tool" stop --time 30 "$service" >/dev/null
    status=$("$tool" inspect --format '{{.State.ExitCode}}' "$service")
    "$tool" logs "$service" >>"$log" 2>&1
    "$tool" rm --force "$service" >/dev/null
    service=
    [ "$status" = 0 ] || { echo "exit code $status after SIGTERM" >>"$log"; return 1; }
}

# prepared USER: sets `run` to the user's run, with a world and an index; made when first asked for.
prepared() {
    run=$work/${1/:/-}
    [ ! -e "$run/index/manifest.json" ] || return 0
    mkdir -p "$run" && chmod 777 "$run"
    once retriever "$1" --volume "$run:/run/smoke:z" --entrypoint python -- \
        -c "
import sys
from rolecast.config import read_json_config
from rolecast.schedule import digest
from rolecast.stages.tasks import prepare
prepare('/run/smoke', sys.argv[1], digest(read_json_config(sys.argv[1]).schedule))" "$config"
}

# trained USER: the same with a model.
trained() {
    prepared "$1" || return 1
    [ ! -e "$run/sft/model/manifest.json" ] || return 0
    once learner "$1" --volume "$run:/run/smoke:z" --entrypoint python -- -m rolecast.launching.ranks sft /run/smoke --procs 2
}

# absent PART USER MODULE IMPORTS: the module is not in the image, and the imports work without it.
absent() {
    once "$1" "$2" --entrypoint python -- -c "
import importlib.util, sys
$4
sys.exit(f'$3 is in the image' if importlib.util.find_spec('$3') else 0)"
}

check() { # check PART USER
    seconds=-
    once "$1" "$2" -- doctor && once "$1" "$2" -- --help || return 1
    local elsewhere=(--env ROLECAST_COORDINATOR_URL=http://127.0.0.1:9 --env ROLECAST_RETRIEVER_URL=http://127.0.0.1:9 --env ROLECAST_JUDGE_URL=http://127.0.0.1:9
        --env ROLECAST_RELEASE_KEY=only-to-start-with)
    case $1 in
        control) absent "$1" "$2" torch "import kfp, rolecast.stages.tasks, rolecast.stages.report, rolecast.launching.launcher, rolecast_pipelines.comparison, rolecast.stages.compared" ;;
        judge) absent "$1" "$2" torch "import rolecast.config" && serve "$1" "$2" --env ROLECAST_JUDGE_BACKEND=lexical -- judge serve ;;
        retriever) prepared "$2" && serve "$1" "$2" --volume "$run/index:/index:ro,z" -- retriever serve --index /index ;;
        rollout) once "$1" "$2" --entrypoint python -- -c "import kfp.dsl, rolecast.stages.evaluate" && serve "$1" "$2" "${elsewhere[@]}" -- rollout serve ;;
        learner) trained "$2" ;;
        agent) trained "$2" && serve "$1" "$2" "${elsewhere[@]}" --volume "$run:/run/smoke:ro,z" -- agent serve /run/smoke --port 8080 ;;
        *) echo "no image $1" >>"$log"; return 1 ;;
    esac
}

failed=0
row='%-34s %9s %-12s %9s  %s\n'
# shellcheck disable=SC2059 # the format is ours
printf "$row" image MB user /healthz result
for part in "$@"; do
    size=$("$tool" image inspect --format '{{.Size}}' "$(image "$part")" 2>/dev/null | awk '{printf "%d", $1 / 1e6}') || size=-
    for user in "${users[@]}"; do
        : >"$log"
        result=ok
        check "$part" "$user" || { result=FAILED; failed=1; }
        # shellcheck disable=SC2059
        printf "$row" "$(image "$part")" "$size" "$user" "$seconds" "$result"
        [ "$result" = ok ] || tail -n 25 "$log" | sed 's/^/    /'
    done
done
exit "$failed"
