"""A real containerd at the standard paths of its own node: a mount namespace over folders of a test."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Self

BOOTED = "containerd successfully booted"
_OWN = ("/etc/containerd", "/run/containerd", "/var/lib/containerd")
_CONFIGURED = "etc/containerd"
_SYSTEMCTL = """#!/bin/sh
# As systemd restarts a service of Type=notify: the answer comes when it has started, or has ended.
# Whichever unit a distribution runs it in, it is the one containerd of this node.
[ "$1" = restart ] && [ $# = 2 ] || exit 5
if [ -e {pid} ]; then
    kill "$(cat {pid})"
    while kill -0 "$(cat {pid})" 2>/dev/null; do sleep 0.1; done
fi
: >{log}
{program} --log-level info >>{log} 2>&1 &
echo $! >{pid}
until grep -q '{booted}' {log}; do
    kill -0 "$(cat {pid})" 2>/dev/null || exit 1
    sleep 0.1
done
"""


class RunningContainerd:
    """Running containerd. `root` replaces /: its file is `root/etc/containerd/config.toml`.

    `programs` are added to a `systemctl` and a `snap` that restart it. Needs root and mount namespaces.
    """

    def __init__(self, program: Path, root: Path, *programs: Path) -> None:
        self.root = root
        self._pid, self.log = root / "containerd.pid", root / "containerd.log"
        self._bin = root / "bin"
        for folder in (self._bin, *(root / text.lstrip("/") for text in _OWN)):
            folder.mkdir(parents=True)
        for path in (program, *programs):
            (self._bin / path.name).symlink_to(path)
        systemctl = self._bin / "systemctl"
        words = {"program": program, "pid": self._pid, "log": self.log}
        quoted = {name: shlex.quote(str(value)) for name, value in words.items()}
        systemctl.write_text(_SYSTEMCTL.format(**quoted, booted=BOOTED))
        systemctl.chmod(0o755)
        (self._bin / "snap").symlink_to(systemctl)

    def __enter__(self) -> Self:
        for text in _OWN:  # a mount needs an existing folder
            Path(text).mkdir(parents=True, exist_ok=True)
        binds = "\n".join(f"mount --bind {shlex.quote(str(self.root / text.lstrip('/')))} {text}" for text in _OWN)
        script = f"set -e; mount --make-rprivate /\n{binds}\necho ready; exec sleep infinity"
        self._namespace = subprocess.Popen(["unshare", "--mount", "sh", "-c", script], stdout=subprocess.PIPE)
        assert self._namespace.stdout is not None
        if not self._namespace.stdout.readline():
            raise RuntimeError("cannot create a mount namespace")
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._namespace.kill()
        self._namespace.wait()

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run the command as typed on the node."""
        path = f"{self._bin}:{os.environ['PATH']}"
        inside = ("nsenter", f"--mount=/proc/{self._namespace.pid}/ns/mnt", "bash", "-c", command)
        environment = os.environ | {"PATH": path}
        return subprocess.run(inside, env=environment, capture_output=True, text=True, check=False)

    def start(self, files: dict[str, str]) -> bool:
        """Restart with only these files in /etc/containerd; return whether it started."""
        self._end()
        self.put(files)
        return self.run("systemctl restart containerd").returncode == 0

    def put(self, files: dict[str, str]) -> None:
        """Replace the configuration files; the running process keeps its own."""
        folder = self.root / _CONFIGURED
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)

    @property
    def pid(self) -> int:
        """Return the process of its last start."""
        return int(self._pid.read_text())

    @property
    def is_up(self) -> bool:
        return self._pid.exists() and Path(f"/proc/{self.pid}/exe").exists()

    def _end(self) -> None:
        if self.is_up:
            pid = self.pid
            os.kill(pid, 15)
            subprocess.run(["tail", f"--pid={pid}", "-f", "/dev/null"], check=True)
        self._pid.unlink(missing_ok=True)
