"""A small stand-in for CoreDNS: answer for the names of Services and of their pods, asking the API at each query.

Usage: dns.py ADDRESS API PKI
"""

import json
import socket
import ssl
import struct
import sys
import threading
import urllib.error
import urllib.request
from typing import Any

_NO_ERROR, _SERVER_FAILURE, _NO_NAME = 0, 2, 3
_ADDRESS_RECORD = 1


class Api:
    def __init__(self, url: str, pki: str) -> None:
        self._url = url
        self._context = ssl.create_default_context(cafile=f"{pki}/ca.crt")
        self._context.load_cert_chain(f"{pki}/admin.crt", f"{pki}/admin.key")

    def read(self, namespace: str, kind: str, name: str) -> dict[str, Any]:
        """Return an object, {} if there is none."""
        url = f"{self._url}/api/v1/namespaces/{namespace}/{kind}/{name}"
        try:
            with urllib.request.urlopen(url, context=self._context, timeout=3) as answer:
                found: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError:
            return {}
        return found

    def addresses(self, name: str) -> list[str]:
        """Return the addresses of [POD.]SERVICE.NAMESPACE.svc.cluster.local."""
        parts = name.lower().rstrip(".").split(".")
        if parts[-3:] != ["svc", "cluster", "local"] or len(parts) not in (5, 6):
            return []
        pod, service, namespace = parts[0] if len(parts) == 6 else None, parts[-5], parts[-4]
        cluster_ip = self.read(namespace, "services", service).get("spec", {}).get("clusterIP", "None")
        if cluster_ip != "None":
            return [] if pod else [cluster_ip]
        subsets = self.read(namespace, "endpoints", service).get("subsets") or []
        found = [address for subset in subsets for address in subset.get("addresses") or []]
        return [address["ip"] for address in found if pod in (None, address.get("hostname"))]


def answer(api: Api, query: bytes) -> bytes:
    at, labels = 12, []
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode())
        at += 1 + length
    (kind,) = struct.unpack("!H", query[at + 1 : at + 3])
    try:
        addresses = api.addresses(".".join(labels))
        code = _NO_ERROR if addresses else _NO_NAME
    except OSError as error:
        print(f"{'.'.join(labels)}: {error}", flush=True)
        addresses, code = [], _SERVER_FAILURE
    records = [
        b"\xc0\x0c" + struct.pack("!HHIH", _ADDRESS_RECORD, 1, 1, 4) + socket.inet_aton(address)
        for address in addresses
        if kind == _ADDRESS_RECORD
    ]
    header = query[:2] + struct.pack("!HHHHH", 0x8500 | code, 1, len(records), 0, 0)
    return header + query[12 : at + 5] + b"".join(records)


def main(address: str, url: str, pki: str) -> None:
    """Serve until killed."""
    api = Api(url, pki)
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((address, 53))

    def serve(query: bytes, client: Any) -> None:
        server.sendto(answer(api, query), client)

    while True:
        threading.Thread(target=serve, args=server.recvfrom(4096), daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:4])
