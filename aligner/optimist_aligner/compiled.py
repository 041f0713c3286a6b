"""The default algorithm as machine code: the same drafts in a part of the time."""

from functools import cached_property

from optimist_aligner import native
from optimist_aligner.follower import Aligner
from optimist_aligner.model.common import Common
from optimist_aligner.text.searched_text import SearchedText
from optimist_aligner.text.sources import Sources


class CompiledAligner(Aligner):
    """Reads sources as `Aligner` does; what is compiled of `src/` follows them."""

    _native_common: native.Common | None = None

    @cached_property
    def _native_classes(self) -> native.Classes:
        return native.Classes(self._classes.table)

    @cached_property
    def _native_weights(self) -> dict[bool, native.Weights]:
        return {key: native.Weights([*each.logits]) for key, each in self._weights.items()}

    @property
    def common(self) -> Common | None:
        """See `Aligner.common`."""
        if self._native_common is None and (common := super().common) is not None:
            classes = dict(enumerate(common.classes))
            self._native_common = native.Common(common.twos, common.ones, classes)
            # The same in Python takes 30 MB.
            self._common = None
        return self._native_common

    def prepare(self, sources: Sources) -> native.Reference:  # type: ignore[override]
        """See `Algorithm.prepare`."""
        searched = SearchedText(sources, self._vocabulary)
        return native.Reference(
            searched.token_ids,
            searched.positions,
            searched.num_aligned,
            searched.context_start,
            searched.starts,
            searched.is_rewrite,
            self._is_chain,
            self._native_classes,
            self._native_weights[searched.is_rewrite],
            self._find_common(searched),
        )
