"""Write records into the machine's kernel log at a rate, with Xids evenly distributed, and print their number.

Starts at a line on standard input. `RATE SECONDS XIDS TIMED ADDRESS…`: records per second, duration, number of Xids,
and number of records with their time of writing. Each Xid is of the next GPU, and of the next code after a round of the
GPUs. With as many Xids as records there are no other lines.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections import Counter

from bench.kmsg import KMSG
from bench.moment import stamp

CODES = (31, 48, 94, 95)
"""Codes of applications and of memory errors: each is a finding."""
_TICK_SECONDS = 0.001
_MOST_AT_ONCE_SECONDS = 0.004
"""Limit of catching up after a pause of the writer: a kernel does not write bursts after a sleep."""
_OTHER = b"<14>usb 2-1.4: reset high-speed USB device number %d using xhci_hcd, gpu-healthcheck bench\n"
_XID = "<12>NVRM: Xid (PCI:{}): {}, pid={}, name=python3, gpu-healthcheck bench, invented, {}\n"


def main() -> None:
    rate, seconds, xids, timed = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    total = round(rate * seconds)
    kinds = itertools.cycle([(code, address) for code in CODES for address in sys.argv[5:]])
    every, timed_every = total // xids, max(xids // timed, 1)
    wrote: Counter[str] = Counter()
    log = os.open(KMSG, os.O_WRONLY)
    sys.stdin.readline()
    began = behind_until = time.monotonic()
    done = 0
    while done < total:
        now = time.monotonic()
        due = min(round((now - behind_until) * rate), total)
        if due - done > _MOST_AT_ONCE_SECONDS * rate:
            behind_until = now - (done + _MOST_AT_ONCE_SECONDS * rate) / rate
            due = min(done + round(_MOST_AT_ONCE_SECONDS * rate), total)
        for number in range(done, due):
            if number % every == every // 2:
                code, address = next(kinds)
                sequence = number // every
                mark = stamp() if sequence % timed_every == 0 else "one of many"
                os.write(log, _XID.format(address, code, 1000 + sequence % 50, mark).encode())
                wrote[f"{code} {address}"] += 1
            else:
                os.write(log, _OTHER % number)
        done = due
        time.sleep(_TICK_SECONDS)
    print(json.dumps({"records": done, "seconds": time.monotonic() - began, "xids": wrote}), flush=True)


if __name__ == "__main__":
    main()
