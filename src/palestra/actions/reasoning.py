"""Parts a model's leading reasoning from what it does. Nothing inside the reasoning is ever run.

The block is opened in the text, or by the chat template so that only its closer is in the text. Used by
``parse`` before and after a format reader has looked for calls.

The surprising choice: a closer without an opener ends the reasoning only if it is not data, that is, not
inside a call that could be read. So the calls are found first and the reasoning second.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from palestra.actions.candidate import Candidate, RawCall

_TAGS = r"(?:think|thinking|thought|reasoning)"
_LEADING = re.compile(rf"[\s\ufeff]*+<({_TAGS})>", re.IGNORECASE)
_ANY = re.compile(rf"<(?P<slash>/?)({_TAGS})>", re.IGNORECASE)


def leading_block(text: str) -> tuple[str | None, int]:
    """The reasoning that opens the text, and where it ends: the whole text if it never closes."""
    opener = _LEADING.match(text)
    if opener is None:
        return None, 0
    tag = opener[1].lower()
    tags = [match for match in _ANY.finditer(text, opener.end()) if match[2].lower() == tag]
    closer = _balanced(tags) or next((match for match in tags if match["slash"]), None)
    if closer is None:
        return text[opener.end() :].strip(), len(text)
    return text[opener.end() : closer.start()].strip(), closer.end()


def _balanced(tags: Sequence[re.Match[str]]) -> re.Match[str] | None:
    """The closer of the block, counting blocks inside it."""
    depth = 1
    for tag in tags:
        depth += -1 if tag["slash"] else 1
        if depth == 0:
            return tag
    return None


def orphan_closer(text: str, found: Sequence[Candidate]) -> re.Match[str] | None:
    """The closer of reasoning that the template opened: the first that is no data and follows no call."""
    read = [candidate for candidate in found if isinstance(candidate.call, RawCall)]
    waiting = iter(read)
    current = next(waiting, None)
    opener: int | None = None
    for tag in _ANY.finditer(text):
        while current is not None and current.end <= tag.start():
            current = next(waiting, None)
        if current is not None and current.start <= tag.start():
            continue
        if not tag["slash"]:
            opener = tag.start()
        elif opener is not None and read and read[0].end <= opener:
            return None
        else:
            return tag
    return None
