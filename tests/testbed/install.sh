#!/usr/bin/env bash
# Installs the Debian packages that building, linting and testing need. Idempotent: what is there is left alone, and
# the package lists are only fetched when something is missing. Starts no service, and leaves none running that it
# brought in.
set -euo pipefail

# One program or file that proves a package, then the package. A file rather than dpkg's word, because a machine
# may have the program from elsewhere.
needs=(
    /etc/ssl/certs/ca-certificates.crt   ca-certificates
    /usr/share/keyrings/debian-archive-keyring.gpg debian-archive-keyring
    cc                                   build-essential
    c++                                  build-essential
    protoc                               protobuf-compiler
    runc                                 runc
    docker-registry                      docker-registry
    htpasswd                             apache2-utils
    /bin/busybox                         busybox-static
    /usr/lib/cni/ptp                     containernetworking-plugins
    zstd                                 zstd
    gzip                                 gzip
    mkfs.ext4                            e2fsprogs
    ip                                   iproute2
    tc                                   iproute2
    script                               bsdutils
)

# A package that may carry a service of the same name.
services=(docker-registry)

present() {
    case "$1" in
        /bin/busybox) [[ -x $1 ]] && ! ldd "$1" >/dev/null 2>&1 ;; # containers need the static one
        /*) [[ -e $1 ]] ;;
        *) command -v "$1" >/dev/null 2>&1 ;;
    esac
}

missing_packages() {
    local i
    for ((i = 0; i < ${#needs[@]}; i += 2)); do
        present "${needs[i]}" || echo "${needs[i + 1]}"
    done
}

# Maintainer scripts ask policy-rc.d before they start a service; 101 is "not allowed".
forbid_service_starts() {
    local policy=/usr/sbin/policy-rc.d
    [[ -e $policy ]] && return 0
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 0755 "$policy"
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
}

disable_service() {
    [[ -d /run/systemd/system ]] || return 0
    systemctl disable --now "$1.service" >/dev/null 2>&1 || true
    echo "install: service $1 is disabled; the test bed starts its own"
}

mapfile -t missing < <(missing_packages)
if ((${#missing[@]} == 0)); then
    echo "install: nothing is missing"
    exit 0
fi
if ((EUID != 0)); then
    echo "install: missing ${missing[*]}; run this as root, or install them by hand" >&2
    exit 1
fi

echo "install: fetching the package lists"
apt-get update -qq
forbid_service_starts
echo "install: installing ${missing[*]}"
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
for package in "${missing[@]}"; do
    for service in "${services[@]}"; do
        [[ $package == "$service" ]] && disable_service "$service"
    done
done

mapfile -t missing < <(missing_packages)
if ((${#missing[@]} > 0)); then
    echo "install: still missing after the install: ${missing[*]}; see the output of apt-get above" >&2
    exit 1
fi
echo "install: done"
