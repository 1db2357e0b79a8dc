"""An audit for people and for programs: a page that opens anywhere, and JSON to replay attempts from."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from palestra import viewer
from palestra.audit.run import Audit
from palestra.store import readable, write_atomic


def write_page(audit: Audit, path: Path) -> None:
    """Write the audit as one HTML file without scripts.

    Raises:
        StoreError: it cannot be written.
    """
    folders = [Path(__file__).parent, Path(viewer.__file__).parent]
    environment = Environment(
        loader=FileSystemLoader(folders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = environment.get_template("audit.html.j2").render(audit=audit, headline=headline(audit))
    write_atomic(path, readable(text))


def write_json(audit: Audit, path: Path) -> None:
    """Write all that was found, with the seed and actions of each attempt.

    Raises:
        StoreError: it cannot be written.
    """
    write_atomic(path, readable(json.dumps(asdict(audit), indent=1, ensure_ascii=False)) + "\n")


def headline(audit: Audit) -> str:
    """The audit in a sentence."""
    errors = sum(each.severity == "error" for each in audit.findings)
    warnings = len(audit.findings) - errors
    if not audit.findings:
        return "Nothing found"
    counts = [
        f"{count} {word}{'s' * (count > 1)}"
        for count, word in ((errors, "error"), (warnings, "warning"))
        if count
    ]
    return " and ".join(counts)
