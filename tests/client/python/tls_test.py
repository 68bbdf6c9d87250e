"""TLS: arguments, the environment, and what is said when they do not fit."""

import subprocess

import kvstow
import pytest
from conftest import SPEC, Prompt, outcomes


def openssl(folder, *arguments):
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """ca.pem, and certificates of a server and of a worker that it signed."""
    folder = tmp_path_factory.mktemp("tls")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl(folder, "req", "-x509", *key, "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")
    for name, alternative in (("server", "IP:127.0.0.1"), ("worker", "URI:spiffe://x/worker")):
        (folder / "ext").write_text(f"subjectAltName={alternative}\n")
        openssl(
            folder, "req", *key, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", "csr"
        )
        openssl(
            folder, "x509", "-req", "-in", "csr", "-CA", "ca.pem", "-CAkey", "ca.key",
            "-CAcreateserial", "-days", "2", "-extfile", "ext", "-out", f"{name}.pem",
        )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def tls_server(files):
    with kvstow.Server(
        tls_cert=files / "server.pem", tls_key=files / "server.key", tls_client_ca=files / "ca.pem"
    ) as server:
        yield server


def test_pages_travel_by_tls(tls_server, files):
    with kvstow.Client(
        tls_server.address,
        tls_ca=files / "ca.pem",
        tls_cert=files / "worker.pem",
        tls_key=files / "worker.key",
    ) as client:
        prompt = Prompt()
        space = client.open_space("tls", SPEC, recipe="raw")
        assert outcomes(space.put(prompt.puts())) == ["STORED"] * 4
        results = space.get(prompt.keys)
        assert outcomes(results) == ["HIT"] * 4


def test_the_environment_counts_where_an_argument_is_absent(tls_server, files, monkeypatch):
    monkeypatch.setenv("KVSTOW_TLS_CA", str(files / "ca.pem"))
    monkeypatch.setenv("KVSTOW_TLS_CERT", str(files / "worker.pem"))
    monkeypatch.setenv("KVSTOW_TLS_KEY", str(files / "worker.key"))
    with kvstow.Client(tls_server.address) as client:
        client.open_space("of-the-environment", SPEC, recipe="raw")
        assert client.find_space("of-the-environment") is not None
    with kvstow.Client(tls_server.address, attempts=1, tls_name="kv.example") as client:
        assert client.find_space("of-the-environment") is None
    with kvstow.Client(tls_server.address, attempts=1, tls_ca="", tls_cert="", tls_key="") as client:
        assert client.find_space("of-the-environment") is None, "it goes without TLS"


def test_a_client_without_a_certificate_gets_misses(tls_server, files):
    with kvstow.Client(tls_server.address, attempts=1, tls_ca=files / "ca.pem") as client:
        space = client.open_space("tls", SPEC, recipe="raw")
        (result,) = space.get(Prompt().keys[:1])
        assert result.outcome == "UNAVAILABLE"
