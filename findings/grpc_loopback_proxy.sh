#!/bin/bash
# A service on 127.0.0.1 is asked through the proxy of the environment.
#
# Version: grpcio 1.82.3 (and earlier ones).
# Behaviour: with http_proxy, https_proxy or grpc_proxy set, a channel to a loopback address connects to that proxy and
#   asks it with CONNECT for 127.0.0.1, unless no_proxy or no_grpc_proxy names the address. A
#   proxy on another machine cannot reach this one's 127.0.0.1, so the service looks as if it were down. With the channel
#   option grpc.enable_http_proxy = 0, the service answers.
# Seen: "with http_proxy: UNAVAILABLE; the proxy was asked: CONNECT 127.0.0.1:PORT HTTP/1.1",
#   "without grpc.enable_http_proxy: b'answer'".
# Why it matters to us: a drafting service on the same machine is left out of each step, without another sign than M 1; and
#   a proxy that forwards would see the text of sessions. rest_store/service/channel.py sets the option for addresses of
#   this machine, and messages about other services name the proxy.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check grpcio==1.82.3
"$folder/venv/bin/python" - <<'PYTHON'
import os
import socket
import threading
from concurrent import futures

import grpc

class Handler(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda request, context: b"answer")

for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy"):
    os.environ.pop(name, None)
server = grpc.server(futures.ThreadPoolExecutor(1), handlers=(Handler(),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()

proxy = socket.create_server(("127.0.0.1", 0))
asked = []

def refuse():
    while True:
        connection, _ = proxy.accept()
        with connection:
            asked.append(connection.recv(4096).decode().splitlines()[0])
            connection.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")

threading.Thread(target=refuse, daemon=True).start()
os.environ["http_proxy"] = f"http://127.0.0.1:{proxy.getsockname()[1]}"

def ask(*options):
    own_connection = ("grpc.use_local_subchannel_pool", 1)
    with grpc.insecure_channel(f"127.0.0.1:{port}", [own_connection, *options]) as channel:
        try:
            return repr(channel.unary_unary("/a.B/C")(b"", timeout=10))
        except grpc.RpcError as error:
            return error.code().name

through, direct = ask(), ask(("grpc.enable_http_proxy", 0))
print(f"with http_proxy: {through}; the proxy was asked: {asked[0] if asked else 'nothing'}")
print(f"without grpc.enable_http_proxy: {direct}")
changed = (through, direct) != ("UNAVAILABLE", "b'answer'") or asked[0] != f"CONNECT 127.0.0.1:{port} HTTP/1.1"
os._exit(int(changed))
PYTHON
