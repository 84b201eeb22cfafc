#!/bin/bash
# certificates.sh DIRECTORY PORT: make certificates and kubeconfigs of a cluster that answers at PORT of 127.0.0.1.
set -e
mkdir -p "$1"
cd "$1"
[ -e .done ] && exit 0
key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1"; }
key ca.key
openssl req -x509 -new -key ca.key -subj /CN=tests -days 365 -out ca.crt
certificate() { # NAME SUBJECT [ALTERNATIVE-NAMES]
    key "$1.key"
    openssl req -new -key "$1.key" -subj "$2" -out "$1.csr"
    printf 'extendedKeyUsage=clientAuth,serverAuth\n%s\n' "${3:+subjectAltName=$3}" >"$1.ext"
    openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -extfile "$1.ext" -out "$1.crt"
}
certificate apiserver /CN=kube-apiserver DNS:localhost,IP:127.0.0.1,IP:10.96.0.1,IP:10.77.0.1
certificate kubelet /O=system:nodes/CN=system:node:node-0 DNS:node-0,IP:10.77.0.1,IP:127.0.0.1
certificate admin /O=system:masters/CN=admin
certificate cm /CN=system:kube-controller-manager
certificate sched /CN=system:kube-scheduler
certificate proxy /CN=system:kube-proxy
openssl genrsa -out sa.key 2048
openssl rsa -in sa.key -pubout -out sa.pub
config() { # FILE USER PORT
    cat >"$1" <<END
apiVersion: v1
kind: Config
clusters: [{name: lab, cluster: {server: "https://127.0.0.1:$3", certificate-authority-data: $(base64 -w0 ca.crt)}}]
users: [{name: $2, user: {client-certificate-data: $(base64 -w0 "$2.crt"), client-key-data: $(base64 -w0 "$2.key")}}]
contexts: [{name: lab, context: {cluster: lab, user: $2}}]
current-context: lab
END
}
for user in kubelet cm sched proxy; do config $user.conf $user 6443; done
config admin.conf admin "$2"
config inside.conf admin 6443
touch .done
