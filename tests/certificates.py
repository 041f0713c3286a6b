"""Certificates for tests, made by openssl."""

import subprocess
from pathlib import Path
from typing import NamedTuple


class Certificate(NamedTuple):
    """PEM files."""

    cert: str
    key: str
    ca: str

    @property
    def flags(self) -> list[str]:
        return ["--tls-cert", self.cert, "--tls-key", self.key, "--tls-ca", self.ca]


def make_authority(directory: Path, name: str = "ca") -> Path:
    """Makes an authority; returns its certificate, beside which its key lies."""
    return _certify(directory, name)


def issue(directory: Path, authority: Path, name: str, hosts: str) -> Certificate:
    """Issues a certificate for hosts such as `IP:127.0.0.1,DNS:localhost`."""
    signer = ("-CA", str(authority), "-CAkey", str(authority.with_suffix(".key")))
    names = ("-addext", f"subjectAltName={hosts}")
    is_none = ("-addext", "basicConstraints=critical,CA:FALSE")
    cert = _certify(directory, name, *signer, *names, *is_none)
    return Certificate(str(cert), str(cert.with_suffix(".key")), str(authority))


def _certify(directory: Path, name: str, *more: str) -> Path:
    cert = directory / f"{name}.pem"
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout")
    command = ["openssl", "req", "-x509", *key, str(cert.with_suffix(".key")), "-out", str(cert)]
    command += ["-days", "2", "-subj", f"/CN={name}", *more]
    subprocess.run(command, check=True, capture_output=True)
    return cert
