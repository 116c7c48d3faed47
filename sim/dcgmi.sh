#!/bin/sh
# Stand-in for DCGM's `dcgmi diag [--host HOST] [-i GPUS] -r LEVEL-OR-TESTS -j`. It reports on the simulated node that contains
# it, at usr/bin. A person or a test controls it with these files in the folder `dcgm`:
#   answer, answer-WHAT  output, answer-2 before answer; default: every GPU of the node is healthy
#   error                output on stderr
#   code                 exit code
#   seconds              duration
#   hang                 never ends
#   deaf                 ignores SIGTERM
#   session              the process that hangs or waits has its own session
#   hostengine           host:port of the running engine on the node: calls with another or no host are refused
#   version              version of this program; the engine's is in `engine-version`. If one of two different versions is
#                        4.7.1, the engine refuses the diagnostic (release notes of dcgm-exporter 4.9.0)
#   asked                output: arguments, environment and working directory of each run
root=${0%/usr/bin/dcgmi}
told=$root/dcgm
[ ! -e "$told/deaf" ] || trap '' TERM

host= what= only=
[ "$1" = diag ] || exit 254
shift
while [ $# -gt 0 ]; do
    case $1 in
        --host) host=$2 && shift ;;
        -r) what=$2 && shift ;;
        -i) only=$2 && shift ;;
        -j) ;;
        *) echo "PARSE ERROR: Argument: $1" >&2 && exit 254 ;;
    esac
    shift
done
[ ! -d "$told" ] || { echo "what=$what host=$host only=$only pwd=$(pwd -P)" && env; } >>"$told/asked"

version=4.4.2 engine_version=
[ ! -e "$told/version" ] || version=$(cat "$told/version")
[ ! -e "$told/engine-version" ] || engine_version=$(cat "$told/engine-version")

refuse() { # CODE TEXT
    printf '{\n\t"DCGM Diagnostic" : \n\t{\n\t\t"runtime_error" : "%s",\n\t\t"version" : "%s"\n\t}\n}\n' "$2" "$version"
    exit "$1"
}

results() { # of one test, for each GPU of the node
    index=0 comma=
    for gpu in "$root"/nvml/gpu*; do
        [ -d "$gpu" ] || continue
        printf '%s{"entity_group":"GPU","entity_group_id":1,"entity_id":%d,"status":"Pass"}' "$comma" "$index"
        index=$((index + 1)) comma=,
    done
}

test_of() { # CATEGORY NAME
    printf '{"category":"%s","tests":[{"name":"%s","results":[%s],"test_summary":{"status":"Pass"}}]}' \
        "$1" "$2" "$(results)"
}

well() {
    categories=$(test_of Deployment software),$(test_of Hardware memory),$(test_of Integration pcie)
    [ "$what" -lt 4 ] 2>/dev/null || categories=$categories,$(test_of Hardware diagnostic),$(test_of Stress memtest)
    printf '{"DCGM Diagnostic":{"test_categories":[%s]},"metadata":{"version":"%s"}}\n' "$categories" "$version"
}

[ ! -e "$told/error" ] || cat "$told/error" >&2
if [ -e "$told/hostengine" ] && [ "$host" != "$(cat "$told/hostengine")" ]; then
    echo "Error: unable to establish a connection to the specified host: ${host:-localhost}"
    exit 235
fi
if [ -n "$host" ] && [ "${engine_version:-$version}" != "$version" ]; then
    case $version/$engine_version in
        4.7.1/* | */4.7.1) refuse 244 "Error: Unable to complete diagnostic for group 0. Return: (-12) API version mismatch." ;;
    esac
fi
if [ -e "$told/hang" ] || [ -e "$told/seconds" ]; then
    # Like DCGM: stop the processes of the test, print that and exit.
    [ -e "$told/deaf" ] || trap 'kill "$sleeper"; refuse 203 "Error: the diagnostic was killed."' TERM
    seconds=999 apart=
    [ -e "$told/hang" ] || seconds=$(cat "$told/seconds")
    [ ! -e "$told/session" ] || apart=setsid
    $apart sleep "$seconds" &
    sleeper=$!
    [ ! -d "$told" ] || echo "$sleeper" >"$told/sleeper"
    wait "$sleeper"
fi
if [ -e "$told/answer-$what" ]; then
    cat "$told/answer-$what"
elif [ -e "$told/answer" ]; then
    cat "$told/answer"
else
    well
fi
[ ! -e "$told/code" ] || exit "$(cat "$told/code")"
