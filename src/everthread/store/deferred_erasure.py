"""Search large texts for forgotten words outside the write transaction.

A unit of work that has to erase words from a large text raises `ErasureDue`. The store rolls it back, searches the text
while other units of work may write, and runs the unit of work again. It then uses the result, unless something else was
forgotten meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from everthread.domain.forgotten_words import ForgottenWords, Mark, Span

FoundWords = Mapping[tuple[str, str], Mapping[Span, Mark]]
"""The forgotten words in each text, by the id of the marks that were searched for and the text."""


class ErasureDue(Exception):
    """A large text has to be searched before the unit of work runs again."""

    def __init__(self, marks_id: str, words: ForgottenWords, texts: Sequence[str]) -> None:
        super().__init__("large texts have to be searched for forgotten words")
        self._marks_id = marks_id
        self._words = words
        self._texts = texts

    def search(self) -> FoundWords:
        """Search the texts. Call it outside the transaction."""
        return {(self._marks_id, text): self._words.find(text) for text in self._texts}
