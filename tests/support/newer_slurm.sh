#!/bin/bash
# newer_slurm.sh COMMAND...: run a command that finds Slurm 24.11 of Debian trixie in the place of this system's own one.
# The first call installs both, trixie in a directory of its own (300 MiB, some minutes). Root only.
set -e
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/tflaunch-tests/slurm-24.11
ROOT=$CACHE/root
LIBRARIES=usr/lib/x86_64-linux-gnu
NAMES="slurmctld slurmd slurmstepd srun sbatch salloc scancel scontrol squeue sinfo sacct"

make_programs() {
    apt-get install -y --no-install-recommends debootstrap patchelf slurm-wlm munge
    rm -rf "$CACHE"
    debootstrap --variant=minbase --include=slurm-wlm trixie "$ROOT" \
        "$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m1 '/debian/*$')"
    mkdir "$CACHE/new"
    for name in $NAMES; do
        cp "$ROOT$(chroot "$ROOT" sh -c "readlink -f \$(which $name)")" "$CACHE/new/$name"
        # They need the C library of their own system.
        patchelf --set-interpreter "$ROOT/usr/lib64/ld-linux-x86-64.so.2" --force-rpath \
            --set-rpath "$ROOT/$LIBRARIES/slurm-wlm:$ROOT/$LIBRARIES" "$CACHE/new/$name"
    done
    mv "$CACHE/new" "$CACHE/bin"
}

[ -d "$CACHE/bin" ] || make_programs >&2
cover="mount --bind '$ROOT/$LIBRARIES/slurm-wlm' '/$LIBRARIES/slurm-wlm'"
for name in $NAMES; do
    cover+=" && mount --bind '$CACHE/bin/$name' '$(PATH=$PATH:/usr/sbin which $name)'"
done
exec unshare --mount sh -c "$cover && exec \"\$@\"" sh "$@"
