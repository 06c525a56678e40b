"""The HTTP proxy that gRPC takes from the environment: whose
connections go through it, for messages.

gRPC reads these variables itself (`src/core/handshaker/http_connect/http_proxy_mapper.cc`). What is
here says the same in words: a proxy that is down looks like a service that is down.
"""

from __future__ import annotations

import ipaddress
import os
from urllib.parse import urlsplit

from rest_store.service.address import Address

# The first that is set counts, even if it is empty.
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_EXCEPTIONS = ("no_grpc_proxy", "no_proxy")  # likewise


def proxy_for(target: str) -> str | None:
    """Return the proxy between this process and `target` and the variable that names it.

    None without a proxy.

    Args:
        target: `HOST:PORT` or `unix:/path`.

    Returns:
        Such as "10.0.0.1:3128 (http_proxy)"; never the user and password that the variable may
        hold.
    """
    address = Address.parse(target)
    if address.is_local or address.host is None:
        return None
    name = next((name for name in _PROXIES if name in os.environ), "")
    try:
        url = urlsplit(os.environ.get(name, ""))
    except ValueError:
        return None
    if url.scheme != "http" or not url.hostname:  # gRPC takes no other one
        return None
    exceptions = next((os.environ[one] for one in _EXCEPTIONS if one in os.environ), "")
    if any(_covers(exception.strip(), address.host) for exception in exceptions.split(",")):
        return None
    return f"{url.netloc.rpartition('@')[2]} ({name})"


def _covers(exception: str, host: str) -> bool:
    """Whether an entry of `no_proxy` covers a host: the end of its
    name, or a network that its address is in.
    """
    if not exception:
        return False
    if host.lower().endswith(exception.lower()):
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(exception, strict=False)
    except ValueError:  # names
        return False
