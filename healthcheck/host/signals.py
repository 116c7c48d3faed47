"""Termination signals for the programs in the cluster."""

from __future__ import annotations

import os
import signal
import threading


def stop_at_signals() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set, regardless of the state of the main thread.

    A signal handler in Python runs only when the main thread is back in the interpreter. A main thread that is about to
    wait would never run it. Therefore the signal itself writes to a pipe, which a thread reads.
    """
    stop = threading.Event()
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)

    def wait() -> None:
        os.read(read_end, 1)
        stop.set()

    threading.Thread(target=wait, name="signals", daemon=True).start()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda *_: None)  # without a handler nothing is written to the pipe
    return stop
