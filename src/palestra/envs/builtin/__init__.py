"""The worlds that ship with palestra, one a file: real work in small, each with an oracle and three levels.

They are reached by name through ``make_env``. The one surprising choice: their texts are terse and their ids
plain numbers, so that a model of a few million parameters can learn them on a laptop.
"""

__all__: list[str] = []
