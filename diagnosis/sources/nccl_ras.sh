# Asks the NCCL of this container for its ranks, with what the image has: bash, Python or NCCL's client.
# NCCL waits for its other processes TIMEOUT and at most 5 more seconds.
address=${NCCL_RAS_ADDR:-localhost:28028}
port=${address##*:} host=${address%:*}
host=${host#[} host=${host%]}
request='CLIENT PROTOCOL 2\nTIMEOUT 3\nSET FORMAT json\nVERBOSE STATUS\n'
limit=''
failure='the image has neither bash, python3 nor ncclras'
no_connection="nothing listens on $address: NCCL is older than 2.24, is not in use, or NCCL_RAS_ENABLE is 0"
command -v timeout >/dev/null && limit='timeout 9'
if command -v bash >/dev/null; then
  # shellcheck disable=SC2016,SC2086
  $limit bash -c 'exec 3<>"/dev/tcp/$1/$2" && printf "$3" >&3 && cat <&3' - "$host" "$port" "$request"
  case $? in 0 | 124 | 143) exit ;; esac
  failure=$no_connection
fi
if command -v python3 >/dev/null; then
  python3 -c '
import socket, sys, time

ends_at = time.monotonic() + 9
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), 9)
connection.sendall(sys.argv[3].replace("\\n", "\n").encode())
part = True
try:
    while part:
        part = connection.recv(65536)
        sys.stdout.buffer.write(part)
        connection.settimeout(max(ends_at - time.monotonic(), 0.001))
except socket.timeout:
    pass
' "$host" "$port" "$request" && exit
  failure=$no_connection
fi
if command -v ncclras >/dev/null; then
  # Before NCCL 2.28.7, the client has no option -f.
  # shellcheck disable=SC2086
  for format in '-f json' ''; do $limit ncclras -h "$host" -p "$port" -t 3 -v $format && exit; done
  failure=$no_connection
fi
echo "$failure"
