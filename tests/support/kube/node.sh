#!/bin/bash
# node.sh STATE CACHE HERE: run a cluster of one node, as process 1 of namespaces of its own (mount, net, pid, uts, ipc,
# cgroup).
STATE=$1 CACHE=$2 HERE=$3
ROOT=$CACHE/root PKI=$STATE/pki LOGS=$STATE/log
export PATH=$CACHE/bin:$ROOT/usr/sbin:$ROOT/usr/bin:$PATH
export LD_LIBRARY_PATH=$ROOT/usr/lib/x86_64-linux-gnu XTABLES_LIBDIR=$ROOT/usr/lib/x86_64-linux-gnu/xtables
mount --make-rshared /
hostname node-0
# cgroup v1, rooted at the groups of this node
mount -t tmpfs -o mode=755 cgroups /sys/fs/cgroup
for controller in cpu cpuacct cpuset memory devices freezer blkio pids; do
    mkdir /sys/fs/cgroup/$controller
    mount -t cgroup -o $controller cgroup /sys/fs/cgroup/$controller
done
mkdir /sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
# The kubelet insists on settings of the whole machine: show it files instead.
mkdir -p "$STATE/sysctl"
while read -r name value; do
    echo "$value" >"$STATE/sysctl/${name//\//_}"
    mount --bind "$STATE/sysctl/${name//\//_}" "/proc/sys/$name"
done <<END
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
END
mount -t tmpfs -o mode=755 run /run
mkdir -p /run/lock "$STATE"/{kubelet,varlog,etcd,containerd,cni} "$LOGS"
mount --bind "$STATE/kubelet" /var/lib/kubelet
mount --bind "$STATE/varlog" /var/log
ip link set lo up
ip link add node0 type bridge
ip addr add 10.77.0.1/24 dev node0
ip link set node0 up
ip route add default via 10.77.0.254
echo 1 >/proc/sys/net/ipv4/ip_forward
echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables
echo nameserver 10.77.0.1 >"$STATE/resolv.conf"
mount --bind "$STATE/resolv.conf" /etc/resolv.conf # no name leaves the node
cat >"$STATE/cni/10-lab.conflist" <<END
{"cniVersion": "0.4.0", "name": "lab", "plugins": [
 {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
  "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam", "ranges": [[{"subnet": "10.88.0.0/16"}]],
           "routes": [{"dst": "0.0.0.0/0"}]}}]}
END
cat >"$STATE/containerd.toml" <<END
version = 2
root = "$STATE/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "lab/pause:1"
  restrict_oom_score_adj = true
  disable_apparmor = true
  tolerate_missing_hugetlb_controller = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$ROOT/usr/lib/cni"
    conf_dir = "$STATE/cni"
END
cat >"$STATE/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $PKI/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $PKI/kubelet.crt
tlsPrivateKeyFile: $PKI/kubelet.key
cgroupDriver: cgroupfs
enforceNodeAllocatable: []
failSwapOn: false
oomScoreAdj: 0
clusterDNS: [10.77.0.1]
clusterDomain: cluster.local
resolvConf: $STATE/resolv.conf
hairpinMode: none
volumePluginDir: $STATE/kubelet/volume-plugins
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
syncFrequency: 10s
nodeStatusUpdateFrequency: 1s
featureGates: {GracefulNodeShutdown: true}
shutdownGracePeriod: 30s
shutdownGracePeriodCriticalPods: 1s
END
wait_for() { until "$@" >/dev/null 2>&1; do sleep .2; done; }
start() { # NAME COMMAND...
    local name=$1
    shift
    while :; do
        "$@"
        echo "[$name ended with $?, again in 2 s]"
        sleep 2
    done >>"$LOGS/$name.log" 2>&1 &
}
start etcd etcd --data-dir "$STATE/etcd" --unsafe-no-fsync --listen-client-urls http://127.0.0.1:2379 \
    --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380
start containerd containerd -c "$STATE/containerd.toml"
(
    wait_for ctr version
    for image in "$CACHE"/images/*.tar "$STATE"/images/*.tar; do ctr -n k8s.io images import "$image" >>"$LOGS/images.log" 2>&1; done
    touch "$STATE/.images"
) &
start apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 --bind-address=0.0.0.0 --secure-port=6443 \
    --advertise-address=10.77.0.1 --service-cluster-ip-range=10.96.0.0/16 --tls-cert-file="$PKI/apiserver.crt" \
    --tls-private-key-file="$PKI/apiserver.key" --client-ca-file="$PKI/ca.crt" --authorization-mode=Node,RBAC \
    --enable-admission-plugins=NodeRestriction --allow-privileged \
    --service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$PKI/sa.pub" \
    --service-account-signing-key-file="$PKI/sa.key" --kubelet-client-certificate="$PKI/admin.crt" \
    --kubelet-client-key="$PKI/admin.key" --kubelet-certificate-authority="$PKI/ca.crt" \
    --kubelet-preferred-address-types=InternalIP
wait_for kubectl --kubeconfig "$PKI/inside.conf" get --raw /readyz
as() { echo "--kubeconfig=$PKI/$1.conf --authentication-kubeconfig=$PKI/$1.conf --authorization-kubeconfig=$PKI/$1.conf"; }
start controller-manager kube-controller-manager $(as cm) --service-account-private-key-file="$PKI/sa.key" \
    --root-ca-file="$PKI/ca.crt" --use-service-account-credentials --leader-elect=false --cert-dir=/run/cm
start scheduler kube-scheduler $(as sched) --leader-elect=false --cert-dir=/run/sched
# A kubelet learns from systemd-logind that its node shuts down.
export DBUS_SYSTEM_BUS_ADDRESS=unix:path=$STATE/dbus.sock
start dbus dbus-daemon --session --nofork --nopidfile --address="$DBUS_SYSTEM_BUS_ADDRESS"
start logind env LD_LIBRARY_PATH= /usr/bin/python3 -m dbusmock --system --template logind
wait_for dbus-send --system --print-reply --dest=org.freedesktop.login1 /org/freedesktop/login1 \
    org.freedesktop.DBus.Mock.AddProperty string:org.freedesktop.login1.Manager string:InhibitDelayMaxUSec \
    variant:uint64:3600000000
start kubelet kubelet --config="$STATE/kubelet.yaml" --kubeconfig="$PKI/kubelet.conf" --hostname-override=node-0 \
    --node-ip=10.77.0.1 --container-runtime=remote --cert-dir=/run/kubelet-pki \
    --container-runtime-endpoint=unix:///run/containerd/containerd.sock --pod-infra-container-image=lab/pause:1
start proxy kube-proxy --kubeconfig="$PKI/proxy.conf" --hostname-override=node-0 --proxy-mode=iptables \
    --cluster-cidr=10.88.0.0/16 --conntrack-max-per-core=0 --conntrack-min=0 \
    --conntrack-tcp-timeout-established=0s --conntrack-tcp-timeout-close-wait=0s
LD_LIBRARY_PATH='' start dns python3 -u "$HERE/dns.py" 10.77.0.1 https://127.0.0.1:6443 "$PKI"
while :; do
    sleep 3600 &
    wait $!
done
