"""TLS: with an authority nobody is answered without its certificate, over HTTP and over gRPC."""

import ssl
import subprocess
from pathlib import Path

import httpx
import pytest
from served import MemorySource, Scaled, core_of, listening

from shoal.core.errors import UsageError
from shoal.core.http_access import reserve
from shoal.serve.server import ServerOptions
from shoal.serve.tls import TlsFiles


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`ca.pem`, and `server` and `client` signed by it; `other` signs itself."""
    folder = tmp_path_factory.mktemp("certificates")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    for name in ("ca", "other"):
        files = ("-keyout", f"{name}.key", "-out", f"{name}.pem")
        openssl(folder, "req", "-x509", *curve, *files, "-subj", f"/CN={name}")
    for name in ("server", "client"):
        openssl(folder, "req", *curve[:-2], "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (folder / f"{name}.ext").write_text("subjectAltName=IP:127.0.0.1\n")
        signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", f"{name}.ext", "-days", "2")
        openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signing)
    return folder


def client_context(folder: Path, name: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    if name is not None:
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    return context


def files(folder: Path, ca: bool = True) -> TlsFiles:
    found = TlsFiles.parse(
        str(folder / "server.pem"), str(folder / "server.key"), str(folder / "ca.pem") if ca else None
    )
    assert found is not None
    return found


def test_only_clients_with_a_certificate_of_the_authority_are_answered(certificates: Path) -> None:
    core = core_of(MemorySource("m", {1: lambda: Scaled(2.0)}))
    with listening(core, ServerOptions(tls=files(certificates))) as place:
        found = httpx.get(f"https://{place}/v2", verify=client_context(certificates, "client"))
        assert found.json()["name"] == "shoal"
        for name in (None, "other"):
            with pytest.raises(httpx.TransportError):
                httpx.get(f"https://{place}/v2", verify=client_context(certificates, name))
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://{place}/v2")


def test_without_an_authority_answers_are_encrypted_for_anybody(certificates: Path) -> None:
    core = core_of(MemorySource("m", {1: lambda: Scaled(2.0)}))
    with listening(core, ServerOptions(tls=files(certificates, ca=False))) as place:
        assert httpx.get(f"https://{place}/v2", verify=client_context(certificates, None)).status_code == 200


def test_grpc_asks_for_the_same_certificate(certificates: Path) -> None:
    triton = pytest.importorskip("tritonclient.grpc")
    ca, pem, key = (str(certificates / name) for name in ("ca.pem", "client.pem", "client.key"))
    with reserve("127.0.0.1", 0) as held:
        place = f"127.0.0.1:{(port := held.getsockname()[1])}"
        core = core_of(MemorySource("m", {1: lambda: Scaled(2.0)}))
        with listening(core, ServerOptions(grpc_port=port, tls=files(certificates))):
            shown = {"ssl": True, "root_certificates": ca, "private_key": key, "certificate_chain": pem}
            with triton.InferenceServerClient(place, **shown) as client:
                assert client.is_server_live()
            bare = triton.InferenceServerClient(place, ssl=True, root_certificates=ca)
            with bare, pytest.raises(triton.InferenceServerException):
                bare.is_server_live()


def test_files_that_do_not_belong_together_are_refused(certificates: Path) -> None:
    server, other = str(certificates / "server.pem"), str(certificates / "other.key")
    with pytest.raises(UsageError, match="--tls-key"):
        TlsFiles.parse(server, None, None)
    with pytest.raises(UsageError, match="cannot be used"):
        TlsFiles.parse(server, other, None)
    with pytest.raises(UsageError, match="cannot be used"):
        TlsFiles.parse(server, str(certificates / "nowhere"), None)
    assert TlsFiles.parse(None, None, None) is None
