#!/bin/sh
# Stand-in for libfabric's fi_pingpong 2.x. It reports on the simulated node that contains it, at
# opt/amazon/efa/bin, from the node's /sys. Its two sides communicate through a file of the node, named after the port,
# instead of TCP. A person or a test sets the state of devices in these files, with lines `DEVICE WORD`:
#   fi_pingpong/megabytes  bandwidth in MB/s (default 4321.00)
#   fi_pingpong/fails      the client's failure on its first message: `hang`, `corrupt`, `error` (a completion with an
#                          error), or before it `memory` (locked-memory limit), `timeout` (a command of the driver)
#   fi_pingpong/log        output: arguments of each run of either side, and PIDs of the running ones
root=${0%/opt/amazon/efa/bin/fi_pingpong}
told=$root/fi_pingpong
device= port=47592 integrity= server=1 rounds=10

word() { # FILE DEFAULT
    found=$2
    [ ! -e "$told/$1" ] || while read -r name value; do [ "$name" != "$device" ] || found=$value; done <"$told/$1"
    echo "$found"
}

error() { # CALL NUMBER TEXT
    echo "$1(): util/pingpong.c:1500, ret=-$2 ($3)" >&2
    [ ! "$server" ] || rm "$meeting.up" "$meeting.down"
    exit "$2"
}

while getopts "p:e:d:I:S:B:P:c" option; do
    case $option in
        d) device=${OPTARG%-rdm} ;;
        I) rounds=$OPTARG ;;
        B | P) port=$OPTARG ;;
        c) integrity=1 ;;
        p | e | S) ;;
        *) exit 1 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -eq 0 ] || server=
[ ! -d "$told" ] || echo "$$ $FI_EFA_ENABLE_SHM_TRANSFER $device $integrity $server" >>"$told/log"

meeting=$root/dev/fi_pingpong.$port
if [ "$server" ]; then
    mkfifo "$meeting.up" "$meeting.down"
elif [ ! -p "$meeting.up" ] || [ ! -p "$meeting.down" ]; then
    echo "[error] util/pingpong.c:399 : failed to connect: Connection refused" >&2
    exit 111
fi

[ -e "$root/sys/class/infiniband/$device" ] || error fi_getinfo 61 "No data available"
fails=$(word fails '')
case $fails in
    memory) error fi_endpoint 12 "Cannot allocate memory" ;;
    timeout) error fi_enable 62 "Timer expired" ;;
esac

# Opening either pipe waits for the other side.
if [ "$server" ]; then
    exec 3<"$meeting.up" 4>"$meeting.down"
    rm "$meeting.up" "$meeting.down"
else
    exec 3>"$meeting.up" 4<"$meeting.down"
fi
case $fails$server in
    hang*) while :; do sleep 1; done ;;
    corrupt)
        if [ "$integrity" ]; then
            echo "Error at iteration=1 size=64 byte=0"
            exit 255
        fi
        ;;
    error)
        echo "[error] util/pingpong.c:712 : cq_readerr: Unresponsive remote" >&2
        exit 5
        ;;
esac
if [ "$server" ]; then
    read -r _ <&3 || { [ "$integrity" ] && while :; do sleep 1; done; } # waits forever for a message, like the real one
else
    echo "fin" >&3
fi

header="%-8s%-8s%-9s%-8s%8s %10s%13s%13s\n"
# shellcheck disable=SC2059
printf "$header" bytes '#sent' '#ack' total time MB/sec usec/xfer Mxfers/sec
printf '%-8s%-8s=%-8s%-8s%8ss%10s%11s%11s\n' 64 "$rounds" "$rounds" 125k 0.03 4.27 15.00 0.07
printf '%-8s%-8s=%-8s%-8s%8ss%10s%11s%11s\n' 1m "$rounds" "$rounds" 1.9g 0.46 "$(word megabytes 4321.00)" 242.67 0.00
