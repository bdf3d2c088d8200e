"""Encrypted connections: the server shows a certificate, and may ask every client for one (mutual TLS)."""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core.errors import UsageError


@dataclass(frozen=True)
class TlsFiles:
    """PEM files of the server."""

    cert: Path
    """Its certificate, with those between it and an authority that clients trust."""
    key: Path
    ca: Path | None = None
    """The authority whose certificates clients must show; without one anybody may connect."""

    @classmethod
    def parse(cls, cert: str | None, key: str | None, ca: str | None) -> "TlsFiles | None":
        """Of `--tls-cert`, `--tls-key` and `--tls-ca`; UsageError unless they belong together and can be read."""
        if cert is None and key is None and ca is None:
            return None
        if cert is None or key is None:
            raise UsageError("TLS needs the server's certificate and its key; give --tls-cert FILE and --tls-key FILE")
        found = cls(Path(cert).expanduser(), Path(key).expanduser(), Path(ca).expanduser() if ca else None)
        try:
            # Loaded once for the check alone, so that a bad file is told at the start and not by each connection.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(found.cert, found.key)
            if found.ca is not None:
                context.load_verify_locations(found.ca)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"--tls-cert {cert} with its key, or --tls-ca, cannot be used: {error}") from None
        return found

    def for_http(self) -> dict[str, Any]:
        """Arguments of uvicorn."""
        given: dict[str, Any] = {"ssl_certfile": str(self.cert), "ssl_keyfile": str(self.key)}
        if self.ca is not None:
            given |= {"ssl_ca_certs": str(self.ca), "ssl_cert_reqs": ssl.CERT_REQUIRED}
        return given

    def for_grpc(self) -> Any:
        """Credentials of a gRPC server."""
        import grpc

        authority = self.ca.read_bytes() if self.ca is not None else None
        pair = (self.key.read_bytes(), self.cert.read_bytes())
        return grpc.ssl_server_credentials([pair], authority, require_client_auth=self.ca is not None)
