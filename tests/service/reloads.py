"""Reloads of a real service."""

from __future__ import annotations

import signal
import time

from tests.shared.services import PATIENCE, Service


def reload(service: Service) -> str:
    """Have a service read everything again, and return what it says of that, once it is done."""
    start = len(service.log)
    service.signal(signal.SIGHUP)
    wait_for("reload is done", service, start)
    return "".join(service.log[start:])


def wait_for(text: str, service: Service, start: int = 0) -> None:
    """Wait until a line of the service's log, from the line `start` on, holds `text`."""
    end = time.monotonic() + PATIENCE
    while not any(text in line for line in service.log[start:]):
        assert time.monotonic() < end, f"no {text!r} in:\n" + "".join(service.log)
        service.log_grew.wait(0.1)
        service.log_grew.clear()
