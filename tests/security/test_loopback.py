"""Services that are started without thought are reached by nobody else, and reach nobody else."""

import re

import pytest

from optimist_common.errors import SetupError
from optimist_common.network.endpoints import is_loopback
from optimist_common.settings import load_settings
from optimist_gateway.settings import GatewaySettings
from optimist_proposer.settings import ProposerSettings
from optimist_scheduler.settings import SchedulerSettings
from optimist_worker.settings import WorkerSettings

SETTINGS = [GatewaySettings, SchedulerSettings, WorkerSettings, ProposerSettings]
MODEL = {"gateway", "worker", "proposer"}
TLS = ["--tls-cert", "a.pem", "--tls-key", "a.key", "--tls-ca", "ca.pem"]


@pytest.mark.parametrize("settings_class", SETTINGS, ids=lambda one: one.section)
def test_every_service_keeps_to_the_loopback_unless_it_is_protected(
    settings_class: type[GatewaySettings],
) -> None:
    flags = ["--model", "m"] if settings_class.section in MODEL else []
    assert load_settings(settings_class, flags).host == "127.0.0.1"
    exposed = [("--host", host, host) for host in ("0.0.0.0", "::", "10.1.2.3", "optimist.example")]
    for peers in settings_class.peers:
        exposed.append((f"--{peers}", "worker:1", "worker:1"))
        exposed.append((f"--{peers}", "127.0.0.1:1,10.0.0.7:2", "10.0.0.7:2"))
    for flag, value, named in exposed:
        words = [*flags, flag, value]
        with pytest.raises(SetupError, match=f"{flag}: .*{re.escape(named)} .*--insecure"):
            load_settings(settings_class, words)
        settings = load_settings(settings_class, [*words, "--insecure"])
        assert flag != "--host" or settings.host == value
        if (settings_class, flag) != (GatewaySettings, "--host"):
            load_settings(settings_class, [*words, *TLS])


@pytest.mark.parametrize("number", [2, 4])
def test_files_for_tls_are_given_together(number: int) -> None:
    with pytest.raises(SetupError, match="together"):
        load_settings(SchedulerSettings, TLS[:number])


def test_a_certificate_or_an_admin_key_alone_admits_no_clients_to_the_gateway() -> None:
    exposed = ["--model", "m", "--host", "0.0.0.0"]
    for others in (["--https-cert", "a", "--https-key", "b"], ["--admin-keys", "k"]):
        with pytest.raises(SetupError, match="--api-keys-file"):
            load_settings(GatewaySettings, [*exposed, *others])
    load_settings(GatewaySettings, [*exposed, "--api-keys", "k"])


def test_addresses_of_this_machine_alone_are_loopback() -> None:
    own = ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost")
    others = ("0.0.0.0", "::", "127.0.0.1.example.com", "localhost.example.com", "", "2130706433")
    assert [host for host in (*own, *others) if is_loopback(host)] == list(own)
