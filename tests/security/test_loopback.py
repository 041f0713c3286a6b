"""Services that are started without thought are reached by nobody else."""

import pytest

from optimist_common.errors import SetupError
from optimist_common.settings import load_settings
from optimist_gateway.settings import GatewaySettings
from optimist_proposer.settings import ProposerSettings
from optimist_scheduler.settings import SchedulerSettings
from optimist_worker.settings import WorkerSettings

SETTINGS = [GatewaySettings, SchedulerSettings, WorkerSettings, ProposerSettings]
MODEL = {"gateway", "worker", "proposer"}


@pytest.mark.parametrize("settings_class", SETTINGS, ids=lambda one: one.section)
def test_every_service_listens_on_the_loopback_unless_it_is_protected(
    settings_class: type[GatewaySettings],
) -> None:
    flags = ["--model", "m"] if settings_class.section in MODEL else []
    assert load_settings(settings_class, flags).host == "127.0.0.1"
    for host in ("0.0.0.0", "::", "10.1.2.3", "optimist.example"):
        exposed = [*flags, "--host", host]
        with pytest.raises(SetupError, match="--insecure true"):
            load_settings(settings_class, exposed)
        assert load_settings(settings_class, [*exposed, "--insecure", "true"]).host == host


def test_a_certificate_alone_admits_no_clients_to_the_gateway() -> None:
    files = ["--https-cert", "a", "--https-key", "b"]
    with pytest.raises(SetupError, match="--api-keys-file"):
        load_settings(GatewaySettings, ["--model", "m", "--host", "0.0.0.0", *files])
