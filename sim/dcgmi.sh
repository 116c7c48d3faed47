#!/bin/sh
# Stands in for DCGM's dcgmi, asked as `dcgmi diag [--host HOST] -r LEVEL-OR-TESTS -j`. It speaks of the simulated node
# in whose tree it lies, at usr/bin, by these files of a person or a test in the folder `dcgm`:
#   answer, answer-WHAT  what it prints, answer-2 before answer; without one, that every GPU of the node is well
#   error                what it prints on standard error
#   code                 its exit code
#   seconds              how long it takes
#   hang                 it does not end by itself
#   deaf                 it does not hear SIGTERM
#   session              what hangs, or takes those seconds, has a session of its own
#   hostengine           the host:port of the engine that runs on the node: with another, or none, it is refused
#   asked                each time it writes its arguments, its environment and where it works here
root=${0%/usr/bin/dcgmi}
told=$root/dcgm
[ ! -e "$told/deaf" ] || trap '' TERM

host= what=
[ "$1" = diag ] || exit 254
shift
while [ $# -gt 0 ]; do
    case $1 in
        --host) host=$2 && shift ;;
        -r) what=$2 && shift ;;
        -j) ;;
        *) echo "PARSE ERROR: Argument: $1" >&2 && exit 254 ;;
    esac
    shift
done
[ ! -d "$told" ] || { echo "what=$what host=$host pwd=$(pwd -P)" && env; } >>"$told/asked"

refuse() { # CODE TEXT
    printf '{\n\t"DCGM Diagnostic" : \n\t{\n\t\t"runtime_error" : "%s",\n\t\t"version" : "4.4.2"\n\t}\n}\n' "$2"
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
    printf '{"DCGM Diagnostic":{"test_categories":[%s]},"metadata":{"version":"4.4.2"}}\n' "$categories"
}

[ ! -e "$told/error" ] || cat "$told/error" >&2
if [ -e "$told/hostengine" ] && [ "$host" != "$(cat "$told/hostengine")" ]; then
    echo "Error: unable to establish a connection to the specified host: ${host:-localhost}"
    exit 235
fi
if [ -e "$told/hang" ] || [ -e "$told/seconds" ]; then
    # As DCGM does: it stops the processes of the test, says so and ends.
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
