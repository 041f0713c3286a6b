import pytest

from optimist_scheduler.__main__ import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "nowhere"], "--workers: must be host:port, with commas between several"),
        (["--workers", ""], "--workers: must name at least one"),
        (["--proposers", "a:1,b"], "--proposers: must be host:port, with commas between several"),
        (["--max-num-waiting", "0"], "--max-num-waiting: "),
        (["--no-such-flag", "1"], "unrecognized arguments"),
        (["--policy", "lifo"], "--policy: "),
        (["--max-plans-in-flight", "4"], "--max-plans-in-flight: "),
        (["--enable-prefix-caching", "perhaps"], "--enable-prefix-caching: "),
        (
            ["--max-num-seqs", "9", "--max-num-batched-tokens", "3"],
            "max_num_seqs: must be at most max_num_batched_tokens (3)",
        ),
        (
            ["--num-pipeline-stages", "2", "--multi-step-count", "2"],
            "multi_step_count: must be 1 with several pipeline stages",
        ),
    ],
)
def test_a_wrong_flag_is_explained_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
