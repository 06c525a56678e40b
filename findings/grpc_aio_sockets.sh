#!/bin/bash
# Sockets of closed asyncio channels stay open until the garbage collector runs.
#
# Version: grpcio 1.83.0 to 1.83.2; 1.82.3 closes them (grpc/grpc#42125).
# Behaviour: a stream's reader is cancelled and awaited, the stream is cancelled, and the channel is closed. In 1.83, calls
#   are part of a reference cycle, so the connection stays until a collection, which a program with few new objects does
#   not see for long.
# Seen: "1.82.3: 20 more channels, 0 more sockets, 0 after gc.collect()", "1.83.2: 20 more channels, 40 more sockets, 0 after gc.collect()"
#   (client and server are one process: two sockets for each channel).
# Why it matters to us: it is one of the two reasons for the upper bound of grpcio in pyproject.toml. A client that opens a
#   channel for each session would run out of file descriptors.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
cat > "$folder/sockets.py" <<'PYTHON'
import asyncio
import gc
import os
import sys

import grpc
import grpc.aio

def sockets():
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except OSError:
            pass
    return count

class Handler(grpc.GenericRpcHandler):
    def service(self, details):
        async def echo(requests, context):
            async for request in requests:
                yield request

        return grpc.stream_stream_rpc_method_handler(echo)

async def session(port):
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) as channel:
        call = channel.stream_stream("/a.B/C")()
        await call.write(b"x")
        await call.read()
        reader = asyncio.create_task(call.read())
        await asyncio.sleep(0)
        reader.cancel()
        try:
            await reader
        except asyncio.CancelledError:
            pass
        call.cancel()

async def main():
    server = grpc.aio.server(handlers=(Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await session(port)
    gc.collect()
    await asyncio.sleep(1)
    gc.disable()
    before = sockets()
    await asyncio.gather(*(session(port) for _ in range(20)))
    await asyncio.sleep(1)
    kept = sockets() - before
    gc.collect()
    await asyncio.sleep(1)
    print(f"{grpc.__version__}: 20 more channels, {kept} more sockets, {max(0, sockets() - before)} after gc.collect()")
    await server.stop(None)
    sys.exit(int((kept > 0) != (grpc.__version__ == "1.83.2")))

asyncio.run(main())
PYTHON
for version in 1.82.3 1.83.2; do
  "$folder/venv/bin/pip" install -q --disable-pip-version-check "grpcio==$version"
  "$folder/venv/bin/python" "$folder/sockets.py"
done
