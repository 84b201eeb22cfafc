#!/bin/bash
# with_apptainer.sh COMMAND...: run a command that finds Apptainer, and in TFLAUNCH_TEST_IMAGE an image with Python.
# The first call installs both from Debian sid into a directory of their own (400 MiB, a minute or two). Root only.
set -e
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/tflaunch-tests/apptainer
IMAGE=$CACHE/image
LIBRARIES=usr/lib/x86_64-linux-gnu

make_programs() {
    apt-get install -y --no-install-recommends debootstrap patchelf
    rm -rf "$CACHE"
    debootstrap --variant=minbase --include=apptainer,python3 sid "$IMAGE" \
        "$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m1 '/debian/*$')"
    # Apptainer finds its files from its own place, and its starter from another one.
    mkdir -p "$CACHE"/new/usr/{bin,etc,lib/etc,lib/var/lib/apptainer/mnt/session} "$CACHE/new/$LIBRARIES"
    cp -r "$IMAGE/$LIBRARIES/apptainer" "$CACHE/new/$LIBRARIES/"
    cp "$IMAGE/usr/bin/apptainer" "$CACHE/new/usr/bin/"
    cp -r "$IMAGE/etc/apptainer" "$CACHE/new/usr/etc/"
    ln -s ../../etc/apptainer "$CACHE/new/usr/lib/etc/"
    # Of the capabilities of root, a container here may lack some.
    sed -i 's/^root default capabilities.*/root default capabilities = no/' "$CACHE/new/usr/etc/apptainer/apptainer.conf"
    for program in "$CACHE/new/usr/bin/apptainer" "$CACHE/new/$LIBRARIES/apptainer/bin/starter"; do
        # It needs the C library of its own system.
        patchelf --set-interpreter "$IMAGE/usr/lib64/ld-linux-x86-64.so.2" --force-rpath \
            --set-rpath "$IMAGE/$LIBRARIES" "$program"
    done
    mv "$CACHE/new" "$CACHE/root"
}

[ -d "$CACHE/root" ] || make_programs >&2
TFLAUNCH_TEST_IMAGE=$IMAGE PATH=$CACHE/root/usr/bin:$PATH exec "$@"
