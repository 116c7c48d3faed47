"""Read the machine's kernel log and drop it: the best case of a reader, and the losses of the ring itself.

Starts and ends at a line on standard input. Prints the number of records read, of overwritten ones, of the bench's Xids
among them, and the cost.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time

from bench.kmsg import KMSG, is_invented


def main() -> None:
    sys.stdin.readline()
    log = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK)
    os.lseek(log, 0, os.SEEK_END)
    read = xids = lost = 0
    last: int | None = None
    poll = select.poll()
    poll.register(log, select.POLLIN)
    poll.register(sys.stdin, select.POLLIN)
    print("ready", flush=True)
    began = time.process_time()
    while True:
        try:
            record = os.read(log, 16384)
        except BrokenPipeError:
            continue
        except BlockingIOError:
            if any(fd == sys.stdin.fileno() for fd, _ in poll.poll()):
                break
            continue
        seq = int(record.split(b",", 2)[1])
        lost += seq - last - 1 if last is not None else 0
        last = seq
        read += 1
        xids += is_invented(record)
    print(json.dumps({"read": read, "xids": xids, "lost": lost, "cpu_seconds": time.process_time() - began}))


if __name__ == "__main__":
    main()
