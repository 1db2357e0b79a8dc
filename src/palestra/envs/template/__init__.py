"""The start of a new world: a working one of under 100 lines, its config and its test.

``palestra init NAME`` writes these three files for an author to change. The one surprising choice: the
template is a whole world that passes every check: changing what works teaches faster than filling gaps.
"""

from __future__ import annotations

import keyword
from importlib.resources import files
from pathlib import Path
from string import Template

from palestra.errors import ConfigError

__all__ = ["write_template"]

_TEMPLATES = {
    "{name}.py": "world.py.tmpl",
    "{name}.yaml": "config.yaml.tmpl",
    "test_{name}.py": "test.py.tmpl",
}


def write_template(name: str, folder: str | Path) -> list[Path]:
    """Write ``<name>.py``, ``<name>.yaml`` and ``test_<name>.py`` into ``folder``, made if need be.

    Args:
        name: of the world, in snake case such as ``fridge``; the class is called after it.
        folder: where the files go.

    Returns:
        The files written.

    Raises:
        ConfigError: if ``name`` is no lower-case identifier or a file exists; then nothing is written.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower() or not name[0].isalpha():
        raise ConfigError(f"a world cannot be called {name!r}: use a word like 'fridge'")
    texts = {Path(folder, target.format(name=name)): source for target, source in _TEMPLATES.items()}
    existing = [str(path) for path in texts if path.exists()]
    if existing:
        raise ConfigError(f"{', '.join(existing)} exists already: choose another name or folder")
    Path(folder).mkdir(parents=True, exist_ok=True)
    class_name = "".join(part.capitalize() for part in name.split("_"))
    for path, source in texts.items():
        text = files(__package__).joinpath(source).read_text(encoding="utf-8")
        path.write_text(Template(text).substitute(name=name, class_name=class_name), encoding="utf-8")
    return list(texts)
