#!/bin/sh
# Stand-in for all_reduce_perf of NVIDIA's nccl-tests 2.17. It reports on the simulated node that contains it, at
# opt/nccl-tests/build. A person or a test controls it with these files:
#   nccl/bandwidth  bus bandwidth in GB/s (default 472.31)
#   nccl/fails      failure: `hang`, `wrong` (wrong values), `nvlink` (an error of a link), `memory` (other work uses
#                   it), `library` (NCCL is missing)
#   nccl/asked      output: arguments and environment of each run
root=${0%/opt/nccl-tests/build/all_reduce_perf}
told=$root/nccl

word() { # FILE DEFAULT
    if [ -e "$told/$1" ]; then cat "$told/$1"; else echo "$2"; fi
}

failure() { # KIND CODE TEXT
    echo "simulated: Test $1 failure common.cu:1027 '$3'"
    echo " .. simulated pid $$: Test failure common.cu:891"
    exit "$2"
}

fails=$(word fails '')
[ ! -d "$told" ] || { echo "$*" && env; } >>"$told/asked"
if [ "$fails" = library ]; then
    echo "$0: error while loading shared libraries: libnccl.so.2: cannot open shared object file" >&2
    exit 127
fi
while getopts "b:e:f:g:" option; do
    case $option in
        g) gpus=$OPTARG ;;
        *) ;;
    esac
done
echo "# Collective test starting: all_reduce_perf"
echo "# nThread 1 nGpus $gpus minBytes 1073741824 maxBytes 4294967296 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0"
echo "#"
echo "# Using devices"
case $fails in
    hang) exec sleep 999 ;;
    nvlink) failure NCCL 3 "unhandled cuda error / Cuda failure 'uncorrectable NVLink error detected during the execution'" ;;
    memory) failure CUDA 2 "out of memory" ;;
esac
wrong=0
[ "$fails" != wrong ] || wrong=3
bandwidth=$(word bandwidth 472.31)
echo "#"
echo "#                                                              out-of-place                       in-place          "
echo "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong"
echo "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       "
for size in 1073741824 2147483648 4294967296; do
    row="%12s  %12s     float     sum      -1   7968.1  269.51  %6s  %5s   7961.4  269.73  %6s  %5s\n"
    # shellcheck disable=SC2059
    printf "$row" $size $((size / 4)) "$bandwidth" "$wrong" "$bandwidth" 0
done
[ $wrong -eq 0 ] && verdict=OK || verdict=FAILED
echo "# Out of bounds values : $((wrong * 3)) $verdict"
echo "# Avg bus bandwidth    : $bandwidth "
echo "#"
[ $wrong -eq 0 ]
