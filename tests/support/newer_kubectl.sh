#!/bin/bash
# newer_kubectl.sh COMMAND...: run a command for which kubectl 1.32 of Debian trixie is in the place of the cluster's own
# one, in the images of launchers, too. The first call downloads it (80 MiB). Root only.
set -e
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/tflaunch-tests
NEW=$CACHE/kubectl-1.32

download() {
    rm -rf "$NEW" "$NEW.new"
    mkdir -p "$NEW.new/lists"
    echo "deb $(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m1 '/debian/*$') trixie main" \
        >"$NEW.new/sources.list"
    # Nothing of this system counts: it may have another kubectl.
    options="-o Dir::Etc::SourceList=$NEW.new/sources.list -o Dir::Etc::SourceParts=- -o Dir::State::Lists=$NEW.new/lists
        -o Dir::State::status=/dev/null -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache="
    apt-get $options update
    (cd "$NEW.new" && apt-get $options download kubectl && dpkg -x kubectl_*.deb .)
    mv "$NEW.new" "$NEW"
}

[ -e "$CACHE/kube/bin/kubectl" ] || { echo "The cluster is not built yet: run \`pytest tests/kubernetes\` once." >&2; exit 1; }
[ -d "$NEW" ] || download >&2
exec unshare --mount sh -c "mount --bind '$NEW/usr/bin/kubectl' '$CACHE/kube/bin/kubectl' && exec \"\$@\"" sh "$@"
