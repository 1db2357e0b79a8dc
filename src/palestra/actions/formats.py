"""The names of the text formats in which an action can be written.

Apart from ``parse`` and ``render`` so that neither imports the other.
"""

from __future__ import annotations

from typing import Literal

ActionFormat = Literal["json", "hermes", "xml", "react", "pythonic", "qwen", "llama"]
"""json: object, bare, fenced or wrapped; hermes: wrapped only; xml: tags; react: labels; pythonic: Python;
qwen and llama: as hermes and json, with the keys that the chat templates of these models ask for."""
