"""How a program in the cluster hears that it has to end."""

from __future__ import annotations

import os
import signal
import threading


def stop_at_signals() -> threading.Event:
    """Set by SIGTERM and SIGINT, whatever the main thread does at that moment.

    A handler in Python runs only once the main thread is back in the interpreter: one that was just about to wait would
    never come to it. The pipe is written by the signal itself.
    """
    stop = threading.Event()
    heard, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)

    def wait() -> None:
        os.read(heard, 1)
        stop.set()

    threading.Thread(target=wait, name="signals", daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # without any, there is nothing for the pipe to tell
    return stop
