#!/bin/sh
# Stands in for libfabric's fi_info, asked as `fi_info -p efa`. It speaks of the simulated node in whose tree it lies,
# at opt/amazon/efa/bin, by the node's own /sys and these files of a person or a test:
#   libfabric/hang      it never ends
#   libfabric/refused   the names of verbs devices that exist and can't be opened
#   libfabric/unlisted  the names of EFA devices that it leaves out
#   libfabric/asked     each time it writes its environment here
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
        *" $name "*) devices= && break ;; # the provider gives up as a whole (libfabric, issue 12708)
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
