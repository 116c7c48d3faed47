#!/bin/sh
# Stand-in for `nvidia-smi --gpu-reset [-i GPUS]`, `nvidia-smi -i GPU -pm 0|1` and `systemctl start|stop UNIT`, on the
# simulated node that contains it. A GPU that a process of the node has open is in use, as on a real node. Texts and exit
# codes are those of NVIDIA's issues (NVSentinel 1690, gpu-operator 118, ai-cloud-validation 603). A person or a test
# controls it with these files in the folder `nvidia-smi`:
#   in-use, not-supported, unknown-error   the reset fails so
#   not-fixed                              the reset succeeds, and the GPU stays as it was
#   seconds                                duration of a reset
#   asked                                  output: arguments of each run
# PROCESSES is the folder of the node's processes.
root=${0%/usr/bin/*}
root=${root%/run/nvidia/driver}
told=$root/nvidia-smi
processes=${PROCESSES:-$root/proc}
echo "${0##*/} $*" >>"$told/asked"
[ "${0##*/}" = nvidia-smi ] || exit 0

gpus= reset= persistence=
while [ $# -gt 0 ]; do
    case $1 in
        --gpu-reset | -r) reset=yes ;;
        -i) gpus=$(echo "$2" | tr ',' ' ') && shift ;;
        -pm) persistence=$2 && shift ;;
        *) echo "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help." && exit 2 ;;
    esac
    shift
done

folder_of() { # UUID, PCI ADDRESS or INDEX
    [ ! -d "$root/nvml/gpu$1" ] || { echo "$root/nvml/gpu$1" && return; }
    name=$(echo "$1" | tr 'a-f' 'A-F')
    for gpu in "$root"/nvml/gpu*; do
        [ "$(cat "$gpu/uuid")" != "$1" ] || { echo "$gpu" && return; }
        case $(cat "$gpu/bus_id") in *"$name") echo "$gpu" && return ;; esac
    done
}

write() { # FILE TEXT: a reader gets the old or the new text
    echo "$2" >"$1.$$" && mv "$1.$$" "$1"
}

if [ -n "$persistence" ]; then
    for name in $gpus; do
        write "$(folder_of "$name")/persistence_mode" "$persistence"
    done
    echo "All done."
    exit 0
fi
[ -n "$reset" ] || exit 0
if [ -z "$gpus" ]; then
    for gpu in "$root"/nvml/gpu*; do
        gpus="$gpus ${gpu##*/gpu}"
    done
fi
[ ! -e "$told/seconds" ] || sleep "$(cat "$told/seconds")"

in_use() { # ADDRESS
    printf 'The following GPUs could not be reset:\n  GPU %s: In use by another client\n\n' "$1"
    echo '1 device is currently being used by one or more other processes (e.g., Fabric Manager, CUDA application).'
    exit 255
}

is_open() { # FDINFO of a file; with O_PATH, which is 010000000, the driver has not opened it
    flags=$(sed -n 's/^flags:[[:space:]]*//p' "$1")
    [ -n "$flags" ] && [ $((0$flags & 010000000)) -eq 0 ]
}

for name in $gpus; do
    gpu=$(folder_of "$name")
    [ -n "$gpu" ] || { echo "No devices were found" && exit 6; }
    address=$(cat "$gpu/bus_id")
    for fd in "$processes"/[0-9]*/fd/*; do
        if [ "$(readlink "$fd")" = "/dev/nvidia$(cat "$gpu/minor")" ] && is_open "${fd%/fd/*}/fdinfo/${fd##*/}"; then
            in_use "$address"
        fi
    done
    [ ! -e "$told/in-use" ] || in_use "$address"
    [ ! -e "$told/not-supported" ] || { echo "Resetting GPU $address is not supported." && exit 3; }
    [ ! -e "$told/unknown-error" ] || { echo "GPU $address reset failed: Unknown Error" && exit 255; }
done
for name in $gpus; do
    gpu=$(folder_of "$name")
    if [ ! -e "$told/not-fixed" ]; then
        rm -rf "$gpu"/error*
        for value in remap_pending retired_pending repair_channel repair_tpc field/230; do
            [ ! -e "$gpu/$value" ] || write "$gpu/$value" 0
        done
    fi
    echo "GPU $(cat "$gpu/bus_id") was successfully reset."
done
echo "All done."
