#!/bin/bash
# build.sh CACHE: build Kubernetes 1.20.2 from the source package of Debian bookworm into CACHE/bin, once (8 minutes on two
# cores), unpack etcd, containerd and their libraries into CACHE/root, and make the images of the tests in CACHE/images.
set -e
CACHE=$1
HERE=$(cd "$(dirname "$0")" && pwd)
MIRROR=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m1 '/debian/*$')
PROGRAMS="kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl"
SYSTEM=$CACHE/build/bookworm
SOURCE=$SYSTEM/src/gopath/src/k8s.io/kubernetes
mkdir -p "$CACHE/bin" "$CACHE/images" "$CACHE/build" "$CACHE/root"

make_system() {
    debootstrap --variant=minbase \
        --include=golang-1.19-go,golang-github-modern-go-reflect2-dev,gcc,libc6-dev,dpkg-dev,ca-certificates \
        bookworm "$SYSTEM" "$MIRROR"
    echo "deb-src $MIRROR bookworm main" >>"$SYSTEM/etc/apt/sources.list"
    cp /etc/resolv.conf "$SYSTEM/etc/"
    chroot "$SYSTEM" apt-get update
    touch "$SYSTEM/.done"
}

unpack_source() {
    mkdir -p "$(dirname "$SOURCE")" "$SYSTEM/src/out"
    chroot "$SYSTEM" sh -c 'cd /src && apt-get source --download-only kubernetes &&
        dpkg-source --no-check -x kubernetes_1.20*.dsc k'
    mv "$SYSTEM/src/k" "$SOURCE"
    # The vendored reflect2 1.0.1 misreads the maps of Go 1.18 and later; that of Debian does not.
    rm -rf "$SOURCE/vendor/github.com/modern-go/reflect2"
    cp -aL "$SYSTEM/usr/share/gocode/src/github.com/modern-go/reflect2" "$SOURCE/vendor/github.com/modern-go/reflect2"
    rm -f "$SOURCE"/vendor/github.com/modern-go/reflect2/*_test.go
}

unpack_runtime() {
    mkdir -p "$SYSTEM/src/debs"
    chmod 777 "$SYSTEM/src/debs"
    chroot "$SYSTEM" sh -c 'cd /src/debs && apt-get download containerd runc containernetworking-plugins etcd-server \
        iptables conntrack ipset ethtool socat libip6tc2 libip4tc2 libnetfilter-conntrack3 libnfnetlink0 libxtables12 \
        libnftnl11 libseccomp2 libipset13'
    for package in "$SYSTEM"/src/debs/*.deb; do dpkg -x "$package" "$CACHE/root"; done
    for name in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
        ln -sf xtables-nft-multi "$CACHE/root/usr/sbin/$name"
    done
}

make_image() { # NAME ROOT COMMAND
    tar -C "$2" --exclude='./dev/*' --exclude='./proc/*' --exclude='./sys/*' -cf "$2.tar" .
    python3 "$HERE/make_image.py" "$CACHE/images/$1.new" "lab/$1:1" "$3" "$2.tar"
    mv "$CACHE/images/$1.new" "$CACHE/images/$1.tar"
    rm -rf "$2" "$2.tar"
}

if [ ! -e "$CACHE/bin/.done" ]; then
    [ -e "$SYSTEM/.done" ] || make_system
    mountpoint -q "$SYSTEM/proc" || mount -t proc proc "$SYSTEM/proc"
    mountpoint -q "$SYSTEM/dev" || mount --bind /dev "$SYSTEM/dev"
    trap 'umount "$SYSTEM/proc" "$SYSTEM/dev"' EXIT
    [ -d "$SOURCE" ] || unpack_source
    cp "$HERE/compile.sh" "$SYSTEM/src/"
    chroot "$SYSTEM" bash /src/compile.sh $PROGRAMS
    for name in $PROGRAMS pause; do install -m755 "$SYSTEM/src/out/$name" "$CACHE/bin/"; done
    unpack_runtime
    touch "$CACHE/bin/.done"
fi
if [ ! -e "$CACHE/images/pause.tar" ]; then
    mkdir -p "$CACHE/build/pause"
    cp "$CACHE/bin/pause" "$CACHE/build/pause/"
    make_image pause "$CACHE/build/pause" /pause
fi
if [ ! -e "$CACHE/images/python.tar" ]; then
    rm -rf "$CACHE/build/python"
    debootstrap --variant=minbase --include=python3 bookworm "$CACHE/build/python" "$MIRROR"
    rm -rf "$CACHE"/build/python/{var/cache/apt,var/lib/apt/lists,usr/share/doc,usr/share/man,usr/share/locale}
    make_image python "$CACHE/build/python" python3
fi
