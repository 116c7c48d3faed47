#!/bin/sh
# Stand-in for `systemctl start|stop UNIT` and `systemctl reboot` on the simulated node that contains it; `sim/host_boot.py`
# carries the reboot out. A person or a test controls it with these files in the folder `systemd`:
#   refused      the text with which a reboot is refused
#   ignored      a reboot is accepted and never happens
#   hangs        a reboot has no answer
#   reboot       output: a reboot is requested
# The calls are in nvidia-smi/asked, in sequence with those of nvidia-smi.
# As systemd's, it ignores all calls in what it takes for a chroot.
if [ "$SYSTEMD_IGNORE_CHROOT" != 1 ]; then
    echo "Running in chroot, ignoring command '$1'" >&2
    exit 0
fi
root=${0%/usr/bin/*}
echo "${0##*/} $*" >>"$root/nvidia-smi/asked"
[ "$1" = reboot ] || exit 0
if [ -e "$root/systemd/refused" ]; then
    cat "$root/systemd/refused" >&2
    exit 1
fi
[ ! -e "$root/systemd/hangs" ] || exec sleep 600
[ -e "$root/systemd/ignored" ] || : >"$root/systemd/reboot"
