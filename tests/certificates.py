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
    certificate = directory / f"{name}.pem"
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-keyout", str(directory / f"{name}.key"), "-out", str(certificate)),
        *("-days", "2", "-subj", f"/CN={name}"),
    )
    return certificate


def issue(directory: Path, authority: Path, name: str, hosts: str) -> Certificate:
    """Issues a certificate for hosts such as `IP:127.0.0.1,DNS:localhost`."""
    cert, key = directory / f"{name}.pem", directory / f"{name}.key"
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-CA", str(authority), "-CAkey", str(authority.with_suffix(".key"))),
        *("-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", f"/CN={name}"),
        *("-addext", f"subjectAltName={hosts}", "-addext", "basicConstraints=critical,CA:FALSE"),
    )
    return Certificate(str(cert), str(key), str(authority))


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)
