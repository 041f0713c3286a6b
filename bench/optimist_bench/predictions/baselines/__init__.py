"""What `auto` is compared with: known ways to say how a text goes on, which no service offers."""

from collections.abc import Callable

from optimist_aligner.algorithm import Algorithm, Follower, Reference
from optimist_aligner.text.sources import Sources


class Baseline(Algorithm):
    """An algorithm whose followers read the sources by themselves."""

    def __init__(self, begin: Callable[[Sources], Follower]) -> None:
        """Takes what begins to follow an output."""
        self._begin = begin

    def prepare(self, sources: Sources) -> Reference:
        """See `Algorithm.prepare`."""
        return _Unprepared(sources, self._begin)


class _Unprepared(Reference):
    """The sources as they are."""

    def __init__(self, sources: Sources, begin: Callable[[Sources], Follower]) -> None:
        self._sources, self._begin = sources, begin

    @property
    def num_bytes(self) -> int:
        """See `Reference.num_bytes`."""
        return 512 + 8 * len(self._sources.token_ids)

    def follow(self) -> Follower:
        """See `Reference.follow`."""
        return self._begin(self._sources)
