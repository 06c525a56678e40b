"""The HTTP proxy that gRPC uses, for error messages.

A proxy that is down looks like a service that is down. So errors name the proxy. gRPC itself reads
the environment in `src/core/handshaker/http_connect/http_proxy_mapper.cc`; the rules here are its
rules.
"""

from __future__ import annotations

import ipaddress
import os
from urllib.parse import urlsplit

from rest_store.service.address import Address

# Of each list of variables, the first one that is set counts, even if it is empty.
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_EXCEPTIONS = ("no_grpc_proxy", "no_proxy")


def proxy_for(target: str) -> str | None:
    """Return the proxy between this process and a service, and the variable that names it.

    Args:
        target: `HOST:PORT` or `unix:/path`.

    Returns:
        Text such as "10.0.0.1:3128 (http_proxy)", without the user and password that the variable
        may hold; None: there is no proxy.
    """
    address = Address.parse(target)
    if address.is_local or address.host is None:
        return None
    name = next((name for name in _PROXIES if name in os.environ), "")
    try:
        url = urlsplit(os.environ.get(name, ""))
    except ValueError:
        return None
    if url.scheme != "http" or not url.hostname:  # gRPC uses no other proxy
        return None
    variables = [variable for variable in _EXCEPTIONS if variable in os.environ]
    exceptions = os.environ[variables[0]] if variables else ""
    if any(_covers(exception.strip(), address.host) for exception in exceptions.split(",")):
        return None
    return f"{url.netloc.rpartition('@')[2]} ({name})"


def _covers(exception: str, host: str) -> bool:
    """Return whether an entry of `no_proxy` is the end of a host's name, or its network."""
    if not exception:
        return False
    if host.lower().endswith(exception.lower()):
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(exception, strict=False)
    except ValueError:  # names
        return False
