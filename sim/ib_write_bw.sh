#!/bin/sh
# Stand-in for perftest's ib_write_bw 24.01. It reports on the simulated node that contains it, at usr/bin, from the node's
# /sys. Its two sides communicate through pipes of the node, named after the port number, instead of TCP and RDMA. A person
# or a test sets the state of ports in these files, with lines `DEVICE WORD`:
#   ib_write_bw/gbits   bandwidth in Gb/s (default 391.80)
#   ib_write_bw/fails   the client's failure: `hang`, `completion` (a write without an answer), or before it `memory` (the
#                       memory can't be registered), `option` (a version without --bind_source_ip)
#   ib_write_bw/log     output: PID, device and options of each run of either side
root=${0%/usr/bin/ib_write_bw}
told=$root/ib_write_bw
device= port=18515 size=65536 rounds=5000 address= units=MB source= server=1
all=$*

word() { # FILE DEFAULT
    found=$2
    [ ! -e "$told/$1" ] || while read -r name value; do [ "$name" != "$device" ] || found=$value; done <"$told/$1"
    echo "$found"
}

end() { # CODE TEXT...
    code=$1
    shift
    printf '%s\n' "$@" >&2
    [ ! "$server" ] || rm -f "$meeting.up" "$meeting.down"
    exit "$code"
}

while [ $# -gt 0 ]; do
    case $1 in
        -d) device=$2 && shift ;;
        -p) port=$2 && shift ;;
        -s) size=$2 && shift ;;
        -n) rounds=$2 && shift ;;
        --bind_source_ip) source=$2 && shift ;;
        --report_gbits) units=Gb ;;
        -F) ;;
        -*) end 1 "$0: unrecognized option '$1'" " Invalid Command or flag." ;;
        *) address=$1 ;;
    esac
    shift
done
[ -z "$address" ] || server=
[ ! -d "$told" ] || echo "$$ $device ${server:-0} $all" >>"$told/log"
meeting=$root/dev/ib_write_bw.$port

[ "$(word fails '')" != option ] || end 1 "$0: unrecognized option '--bind_source_ip'" " Invalid Command or flag."
[ -e "$root/sys/class/infiniband/$device" ] || end 1 "IB device $device not found" " Unable to find the Infiniband/RoCE device"
if [ "$server" ]; then
    [ "$source" = 127.0.0.1 ] || end 1 "the server would listen on every address"
    mkfifo "$meeting.up" "$meeting.down"
elif [ ! -p "$meeting.up" ] || [ ! -p "$meeting.down" ]; then
    end 1 "Couldn't connect to $address:$port" "Unable to open file descriptor for socket connection" \
        " Unable to init the socket connection"
fi

# Opening either pipe waits for the other side.
if [ "$server" ]; then
    exec 3<"$meeting.up" 4>"$meeting.down"
    rm "$meeting.up" "$meeting.down"
else
    exec 3>"$meeting.up" 4<"$meeting.down"
fi
case $(word fails '')$server in
    hang*) while :; do sleep 1; done ;;
    memory*) end 1 "Couldn't allocate MR" " Couldn't create IB resources" ;;
    completion)
        echo " #bytes     #iterations    BW peak[$units/sec]    BW average[$units/sec]   MsgRate[Mpps]"
        end 1 " Completion with error at client" " Failed status 12: wr_id 0 syndrom 0x81" "scnt=128, ccnt=0" \
            " Failed to complete run_iter_bw function successfully"
        ;;
esac
if [ "$server" ]; then
    read -r _ <&3 || end 1 "ethernet_read_keys: Couldn't read remote address" " Unable to read to socket/rdma_cm" \
        " Failed to exchange data between server and clients"
else
    echo "fin" >&3
fi
line=---------------------------------------------------------------------------------------
gbits=$(word gbits 391.80)
echo "$line"
printf '                    RDMA_Write BW Test\n Dual-port       : OFF\t\tDevice         : %s\n' "$device"
echo "$line"
echo " #bytes     #iterations    BW peak[$units/sec]    BW average[$units/sec]   MsgRate[Mpps]"
printf ' %-7s    %-10s       %-7s            %-7s\t\t   %-7s\n' "$size" "$rounds" "$gbits" "$gbits" 0.747299
echo "$line"
