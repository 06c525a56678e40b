"""The certificates of a service, and the authority of its clients' certificates."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from rest_store.errors import ServeError
from rest_store.service.channel import read_certificates


@dataclass(frozen=True)
class CertificateFiles:
    """PEM files: the certificate (chain), its key, and the authority that clients' certificates must come from."""

    certificate: Path
    key: Path
    client_authority: Path | None = None


class Certificates:
    """Certificates read from files, again at each reload; new connections get the newest.

    Raises:
        ServeError: a file cannot be read, or certificate and key do not belong together.
    """

    def __init__(self, files: CertificateFiles) -> None:
        self._files = files
        self.reload()

    def reload(self) -> None:
        """Read the files again; on an error the certificates stay as they are."""
        certificate, key, authority = read_certificates(
            self._files.certificate, self._files.key, self._files.client_authority, ServeError
        )
        assert certificate is not None
        assert key is not None
        self._current = grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=authority)

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials for a port of a gRPC server."""
        is_required = self._files.client_authority is not None
        return grpc.dynamic_ssl_server_credentials(self._current, lambda: self._current, is_required)
