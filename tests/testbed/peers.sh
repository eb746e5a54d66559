#!/usr/bin/env bash
# Brings the servers that drayd is tested against, from Debian's own packages, into a cache directory. Nothing is
# installed: apt runs on a private state (own sources, lists and cache), and packages are only unpacked. A second run
# takes no network. `peers/line/<name>-<line>` points at what stands for that release line.
set -euo pipefail

cache=${DRAYD_TEST_CACHE:-/var/cache/drayd-test}
peers=$cache/peers
apt_state=$cache/apt
arch=$(dpkg --print-architecture)

# name, release line, version that the tests were written against, suite that carries it, program inside, and the
# package with its library if that is one of its own.
wanted=(
    "containerd        1.6  1.6.20 bookworm usr/bin/containerd"
    "containerd        1.7  1.7.24 trixie   usr/bin/containerd"
    "containerd        2.1  2.1.9  forky    usr/bin/containerd"
    "nydus-snapshotter 0.13 0.13.4 forky    usr/bin/containerd-nydus-grpc"
    "crane             0.20 0.20.7 forky    usr/bin/crane"
    "prometheus        2.42 2.42.0 bookworm usr/bin/prometheus"
    # Not installed, because every containerd on this machine would find them and inflate by them.
    "pigz              2.8  2.8    trixie   usr/bin/unpigz"
    "isal              2.31 2.31.1 forky    usr/bin/igzip libisal2"
)

say() { echo "peers: $*"; }
die() {
    echo "peers: $*" >&2
    exit 1
}

# The machine's own Debian mirror, so that a site's mirror and proxy settings hold here too.
mirror() {
    local codename
    codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
        awk -v release="$codename" '$2 == release && $3 == "main" && !found { print $1; found = 1 }'
}

private_apt() {
    local tool=$1
    shift
    "$tool" \
        -o Dir::Etc::sourcelist=/dev/null \
        -o Dir::Etc::sourceparts="$apt_state/sources" \
        -o Dir::Etc::preferencesparts=/dev/null \
        -o Dir::State="$apt_state/state" \
        -o Dir::State::status="$apt_state/state/status" \
        -o Dir::Cache="$apt_state/cache" \
        -o Acquire::Languages=none \
        -o APT::Sandbox::User=root \
        "$@"
}

# Fetches the lists of every wanted suite, once per run.
fetch_lists() {
    [[ -z ${lists_fetched:-} ]] || return 0
    local from suites
    from=$(mirror)
    [[ -n $from ]] || die "apt's sources name no Debian mirror for this release; add one with component main"
    suites=$(printf '%s\n' "${wanted[@]}" | awk '{ print $4 }' | sort -u | tr '\n' ' ')
    rm -rf "$apt_state"
    mkdir -p "$apt_state"/{sources,state/lists/partial,cache/archives/partial}
    : >"$apt_state/state/status"
    cat >"$apt_state/sources/peers.sources" <<SOURCES
Types: deb
URIs: $from
Suites: $suites
Components: main
Architectures: $arch
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
SOURCES
    say "fetching the package lists of $suites"
    private_apt apt-get update -qq
    lists_fetched=yes
}

# Newest version of a package in one suite.
version_in() {
    private_apt apt-cache madison "$1" |
        awk -F'|' -v suite="$2/main" '{ split($3, from, " "); gsub(/ /, "", $2)
            if (from[2] == suite && !found) { print $2; found = 1 } }'
}

# `1:2.1.9~ds1-3` → `2.1.9`
upstream() { sed -E 's/^[0-9]+://; s/[^0-9.].*$//' <<<"$1"; }

unpack() {
    local package=$1 version=$2 into=$3 scratch
    scratch=$(mktemp -d "$cache/unpack.XXXXXX")
    (cd "$scratch" && private_apt apt-get download -qq "$package=$version")
    dpkg-deb -x "$scratch"/*.deb "$into"
    rm -rf "$scratch"
}

# Not every program knows the flag.
runs() { "$@" --version >/dev/null 2>&1 || "$@" version >/dev/null 2>&1; }

patchelf() {
    if [[ ! -x $apt_state/patchelf/usr/bin/patchelf ]]; then
        fetch_lists
        unpack patchelf "$(version_in patchelf bookworm)" "$apt_state/patchelf"
    fi
    "$apt_state/patchelf/usr/bin/patchelf" "$@"
}

# Lets the programs find a library that was unpacked beside them, wherever they are moved together.
bring_library() {
    local here=$1 suite=$2 library=$3 found file
    unpack "$library" "$(version_in "$library" "$suite")" "$here"
    found=$(cd "$here" && dirname "$(find usr/lib -name '*.so.*' -print -quit)")
    for file in "$here"/usr/bin/*; do
        [[ -L $file ]] || patchelf --set-rpath "\$ORIGIN/../../$found" "$file"
    done
}

# Programs of a newer suite may ask for a newer libc: then that suite's libc comes along, and the programs are told to
# start through its loader. Wrapper scripts would not do, because a shim starts itself again by its own path.
make_runnable() {
    local here=$1 final=$2 suite=$3 program=$4 version loader libraries file own
    runs "$here/$program" && return 0
    say "$(basename "$program") does not run with this machine's libc; bringing the one of $suite along"
    fetch_lists
    version=$(version_in libc6 "$suite")
    unpack libc6 "$version" "$here/libc"
    loader=$(cd "$here" && find libc -name 'ld-linux*.so*' -print -quit)
    libraries=$(cd "$here" && dirname "$(find libc -name libc.so.6 -print -quit)")
    for file in "$here"/usr/bin/*; do
        [[ ! -L $file ]] || continue
        own=$(patchelf --print-rpath "$file")
        patchelf --set-interpreter "$final/$loader" --set-rpath "${own:+$own:}$final/$libraries" "$file"
    done
}

bring() {
    local name=$1 line=$2 tested=$3 suite=$4 program=$5 library=$6
    local pointer=$peers/line/$name-$line
    if [[ -x $pointer/$program ]]; then
        say "$name $line is $(basename "$(readlink "$pointer")") (cached)"
        return 0
    fi
    fetch_lists
    local version short into scratch
    version=$(version_in "$name" "$suite")
    [[ -n $version ]] || die "$suite carries no $name any more; name the suite that does in $0"
    short=$(upstream "$version")
    [[ $short == "$tested" ]] || say "note: $suite now carries $name $short; the tests were written against $tested"
    [[ $short == "$line" || $short == "$line".* ]] || say "note: $name $short stands in for the $line line, which $suite has left"
    into=$peers/$name-$short
    scratch=$(mktemp -d "$peers/new.XXXXXX")
    chmod 0755 "$scratch"
    unpack "$name" "$version" "$scratch"
    rm -rf "$into"
    [[ -z $library ]] || bring_library "$scratch" "$suite" "$library"
    make_runnable "$scratch" "$into" "$suite" "$program"
    mv "$scratch" "$into"
    runs "$into/$program" || die "$into/$program does not run here: $("$into/$program" --version 2>&1 | head -n 3)"
    ln -sfn "../$name-$short" "$pointer"
    say "$name $line is $name-$short, from $suite"
}

mkdir -p "$peers/line"
for peer in "${wanted[@]}"; do
    read -r name line tested suite program library <<<"$peer"
    bring "$name" "$line" "$tested" "$suite" "$program" "$library"
done
if [[ -n ${lists_fetched:-} ]]; then
    rm -rf "$apt_state"
fi
