#!/bin/sh
# Stand-in for libfabric's `fi_info -p efa`. It reports on the simulated node that contains it, at
# opt/amazon/efa/bin, from the node's /sys. A person or a test controls it with these files:
#   libfabric/hang      never ends
#   libfabric/refused   names of existing verbs devices that cannot be opened
#   libfabric/unlisted  names of EFA devices that it omits
#   libfabric/asked     output: environment of each run
root=${0%/opt/amazon/efa/bin/fi_info}
told=$root/libfabric

words() {
    [ ! -e "$told/$1" ] || while read -r line; do echo " $line "; done <"$told/$1"
}

list() { # FABRIC DOMAIN TYPE PROTOCOL
    printf 'provider: efa\n    fabric: %s\n    domain: %s\n' "$1" "$2"
    printf '    version: 203.0\n    type: %s\n    protocol: %s\n' "$3" "$4"
}

[ "$*" = "-p efa" ] || exit 1
[ ! -d "$told" ] || env >>"$told/asked"
[ ! -e "$told/hang" ] || exec sleep 999

devices=
for device in "$root"/sys/class/infiniband/*; do
    name=${device##*/}
    case "$(words refused)" in
        *" $name "*) devices= && break ;; # the whole provider fails (libfabric, issue 12708)
    esac
    read -r vendor <"$device/device/vendor" || continue
    [ "$vendor" = 0x1d0f ] && [ -e "$(echo "$device"/device/infiniband_verbs/uverbs*)" ] || continue
    case "$(words unlisted)" in
        *" $name "*) ;;
        *) devices="$devices $name" ;;
    esac
done
if [ -z "$devices" ]; then
    echo "fi_getinfo: -61 (No data available)" >&2
    exit 61
fi
for device in $devices; do list efa-direct "$device-rdm" FI_EP_RDM FI_PROTO_EFA; done
for device in $devices; do list efa "$device-rdm" FI_EP_RDM FI_PROTO_EFA; done
for device in $devices; do list efa "$device-dgrm" FI_EP_DGRAM FI_PROTO_EFA; done
