"""Who shares cached prompts with whom."""

from collections.abc import Callable
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from optimist_gateway.core.request import cache_salt
from optimist_gateway.server.settings import GatewaySettings
from optimist_gateway.text.tokenizer import Tokenizer
from tests.gateway.conftest import asking
from tests.gateway.fake_scheduler import FakeScheduler
from tests.gateway.server.test_authentication import BODY, CHAT, bearer


def test_without_keys_the_request_says_whom_it_shares_with() -> None:
    assert cache_salt("", "") == ""
    assert cache_salt("", "team") == "team"


@given(st.lists(st.tuples(st.text(), st.text()), min_size=2, max_size=4, unique=True))
def test_clients_share_with_themselves_alone(asked: list[tuple[str, str]]) -> None:
    named = [(f"key {client}".replace("\0", ""), salt) for client, salt in asked]
    for one, other in combinations(named, 2):
        assert (cache_salt(*one) == cache_salt(*other)) == (one == other)
    assert all(len(cache_salt(*one)) == 64 for one in named)


async def test_keys_share_nothing_with_each_other(
    settings: GatewaySettings,
    tokenizer: Tokenizer,
    scheduler: FakeScheduler,
    say: Callable[..., list[int]],
) -> None:
    say("x")
    async with asking(settings, tokenizer, api_keys=["ann:key-a", "bob:key-b"]) as http:
        for key in ("key-a", "key-b", "key-a"):
            body = BODY | {"cache_salt": "team"}
            assert (await http.post(CHAT, json=body, headers=bearer(key))).status_code == 200
    ann, bob, ann_again = (add.cache_salt for add in scheduler.adds)
    assert ann == ann_again != bob
    assert "team" not in (ann, bob)
