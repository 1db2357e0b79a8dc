"""``report.html``: the whole run on one page that opens anywhere, offline.

Reads a run folder, gathers evaluations, curves and episodes, and fills ``report.html.j2``. The one
surprising choice: the page holds no script at all and forbids itself to load anything, so what a model wrote
can be shown to the letter without being able to do anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from palestra.store import RunFolder, write_atomic
from palestra.types import Trajectory
from palestra.viewer.curves import learning_curves, sft_curves
from palestra.viewer.episodes import badges, evaluated_episodes, outcome, pick
from palestra.viewer.findings import Evidence, headline, notes
from palestra.viewer.stages import STAGE_TITLES, Eval, main_world, stage_costs, stage_evals
from palestra.viewer.words import UNKNOWN, duration, number, percent, percent_with_interval

CAN_DRAW = find_spec("matplotlib") is not None
"""matplotlib comes with an extra; without it the page says so in place of the curves."""
if CAN_DRAW:
    from palestra.viewer import plots

Row = tuple[str, list[str]]
"""A label and one cell a stage."""


def write_report(run_path: str | Path) -> Path:
    """Write ``report.html`` into the run, whatever the run holds so far.

    Returns:
        The path of the page.

    Raises:
        StoreError: if there is no run at ``run_path`` or the page cannot be written.
    """
    run = RunFolder.open(run_path)
    target = run.path / "report.html"
    write_atomic(target, _template().render(_content(run)))
    return target


def _template() -> Any:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, nobreak=_nobreak)
    environment.globals.update(badges=badges, outcome=outcome)
    return environment.get_template("report.html.j2")


def _content(run: RunFolder) -> dict[str, Any]:
    """All that the template shows."""
    rows, torn = run.read_metrics()
    alarms, torn_alarms = run.read_alarms()
    changes, torn_changes = run.read_changes()
    evals = run.read_evals()
    chosen = stage_evals(evals.values())
    learning, sft = learning_curves(rows), sft_curves(rows)
    sources = evaluated_episodes(run)
    evidence = Evidence(
        chosen, {**sft, **learning}, sources[0] if sources else (), len(torn + torn_alarms + torn_changes)
    )
    return {
        "name": run.path.resolve().name,
        "headline": headline(evidence),
        "notes": notes(evidence),
        "alarms": alarms,
        "changes": changes,
        "stages": [STAGE_TITLES[stage] for stage in chosen],
        "sections": _sections(list(chosen.values())),
        "other_evals": _other_evals(evals, list(chosen.values())),
        "has_curves": bool(learning or sft),
        "drawings": _drawings(learning, sft, chosen),
        "episodes": pick(sources),
        "facts": _facts(run, evals, sources),
    }


def _drawings(learning: Any, sft: Any, chosen: Mapping[str, Eval]) -> list[dict[str, Any]] | None:
    """The curves as drawings; None where matplotlib is missing."""
    if not CAN_DRAW:
        return None
    drawn = map(plots.draw, plots.charts(learning, sft, chosen.get("teacher", {}).get("success")))
    return [{"title": each.title, "caption": each.caption, "svg": Markup(each.svg)} for each in drawn]


def _sections(evals: Sequence[Eval]) -> list[tuple[str, list[Row]]]:
    """The table in parts: a title and its rows, leaving out what no stage has."""
    parts = [
        ("Result", _metric_rows(evals)),
        ("Milestones reached", _mapping_rows(evals, "milestone_rates", percent)),
        ("Why episodes ended", _mapping_rows(evals, "stop_reasons", number, missing=0)),
        ("Reward parts", _mapping_rows(evals, "reward_parts", number)),
    ]
    return [(title, rows) for title, rows in parts if rows]


def _metric_rows(evals: Sequence[Eval]) -> list[Row]:
    lost = any(each.get("excluded") for each in evals)  # else both rates of success are the same
    rows = [
        ("Success (95 % interval)", [_success(each) for each in evals]),
        *([_row(evals, "Success of all attempted", "success_of_attempted", percent)] if lost else []),
        _row(evals, "Turns", "turns", number),
        _row(evals, "Step efficiency", "step_efficiency", percent),
        _row(evals, "Invalid actions an episode", "invalid_actions", number),
        _row(evals, "Repeated actions an episode", "repeated_actions", number),
        _row(evals, "Format compliance", "format_compliance", percent),
        _row(evals, "Strict format", "strict_format", percent),
        _row(evals, "Tool-call accuracy", "tool_call_accuracy", percent),
        _row(evals, "Recovery after trouble", "recovery", percent),
        _row(evals, "Tokens an episode", "action_tokens", number),
        _row(evals, "Reward", "reward", number),
        _row(evals, "Episodes", "episodes", number),
        _row(evals, "Excluded", "excluded", number),
        ("Played", [str(each.get("mode") or UNKNOWN) for each in evals]),
        ("On tasks", [str(each.get("split") or UNKNOWN) for each in evals]),
    ]
    return _measured(rows)


def _row(evals: Sequence[Eval], label: str, key: str, write: Callable[[Any], str]) -> Row:
    return label, [write(each.get(key)) for each in evals]


def _measured(rows: list[Row]) -> list[Row]:
    """The rows in which some stage has a value."""
    return [row for row in rows if any(cell != UNKNOWN for cell in row[1])]


def _mapping_rows(
    evals: Sequence[Eval], key: str, write: Callable[[Any], str], missing: int | None = None
) -> list[Row]:
    names = dict.fromkeys(name for each in evals for name in each.get(key) or {})
    rows = [
        (name.replace("_", " "), [write((each.get(key) or {}).get(name, missing)) for each in evals])
        for name in names
    ]
    return _measured(rows)


def _success(each: Eval) -> str:
    return percent_with_interval(each.get("success"), each.get("success_ci95"))


def _other_evals(evals: Mapping[str, Eval], chosen: Sequence[Eval]) -> list[list[str]]:
    """The evaluations that have no column: name, world, split, mode, success, episodes."""
    return [
        [
            name,
            *(str(each.get(key) or UNKNOWN) for key in ("world", "split", "mode")),
            _success(each),
            number(each.get("episodes")),
        ]
        for name, each in evals.items()
        if not any(each is column for column in chosen)
    ]


def _facts(
    run: RunFolder, evals: Mapping[str, Eval], sources: Sequence[Sequence[Trajectory]]
) -> list[tuple[str, str]]:
    """What the run is: shown small under the headline."""
    seconds, memory = stage_costs(run)
    world = main_world(evals.values()) or (sources[0][0].task.env if sources else None)
    values = [
        ("World", world),
        ("Time", duration(seconds) if seconds is not None else None),
        ("Peak memory", f"{number(memory)} MB" if memory is not None else None),
        ("Started", str(run.manifest.get("created", "")).replace("T", " ").replace("+00:00", " UTC")),
        ("Version", run.manifest.get("palestra")),
        ("Command", run.manifest.get("command")),
    ]
    return [(label, str(value)) for label, value in values if value]


def _nobreak(text: str) -> str:
    """A number stays on one line with its percent sign."""
    return text.replace(" %", "\u00a0%")
