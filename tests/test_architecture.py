"""The structure of the source: floors, sizes, public names, docstrings. All read from the syntax tree."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
ROOT = SRC / "palestra"
FILES = sorted(ROOT.rglob("*.py"))
PACKAGES = [path.parent for path in FILES if path.name == "__init__.py"]

FLOORS = (
    {"types", "errors"},
    {"actions", "tasks", "rewards", "store"},
    {"envs", "policy"},
    {"rollout", "monitor", "viewer"},
    {"audit", "evaluation"},
    {"training"},
    {"pipeline", "adapters"},
    {"recipes", "serving"},
    {"cli"},
)
FLOOR = {part: number for number, parts in enumerate(FLOORS) for part in parts}
MAY_IMPORT_LATE = {"cli", "adapters"}
"""A verb loads what it runs, so that the others start fast; an adapter loads its optional library."""
LOADED_LATE = {"peft"}
"""Libraries that take seconds to load and that few runs need."""

SHARE = 0.95
FUNCTION_LINES, FUNCTION_MOST = 40, 80
FILE_LINES, FILE_MOST = 400, 500
WORLD_LINES = 150
RECIPE_LINES = 150
LONGER_RECIPES = {"nano_base.py": 260, "rl_from_scratch.py": 250}
"""``nano_base.py`` makes the shipped base model: tokenizer, pre-training and its checks, told in one file.
``rl_from_scratch.py`` is reinforcement learning in full, to be read from top to bottom."""

VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "core", "manager", "misc"}
OWN_RNG = {"Random", "default_rng", "Generator", "SeedSequence", "PCG64", "BitGenerator"}


@dataclass(frozen=True)
class Import:
    """One imported name, as a dotted path, and where it stands."""

    target: str
    place: str
    late: bool


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def part_of(path: Path) -> str:
    """The top-level part a file belongs to; ``palestra`` for the package's own page."""
    first = path.relative_to(ROOT).parts[0].removesuffix(".py")
    return "palestra" if first == "__init__" else first


def imports(path: Path) -> Iterator[Import]:
    late = {
        id(inner)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree(path)):
        for target in targets(node, path):
            yield Import(target, f"{path.relative_to(SRC)}:{node.lineno}", id(node) in late)


def targets(node: ast.AST, path: Path) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        package = path.relative_to(SRC).parent.parts
        above = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
        base = ".".join(name for name in (above, node.module) if name)
        return [f"{base}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in (
        "import_module",
        "__import__",
    ):
        return [
            word.value for word in node.args if isinstance(word, ast.Constant) and isinstance(word.value, str)
        ]
    return []


def imported_part(target: str) -> str | None:
    names = target.split(".")
    if names[0] != "palestra" or target == "palestra.__version__":
        return None
    return names[1] if len(names) > 1 and names[1] in FLOOR else "palestra"


def test_every_part_has_a_floor() -> None:
    assert {part_of(path) for path in FILES} <= FLOOR.keys() | {"palestra"}


def test_a_part_imports_only_from_lower_floors() -> None:
    wrong = []
    for path in FILES:
        part = part_of(path)
        floor = FLOOR.get(part, len(FLOORS))
        for found in imports(path):
            other = imported_part(found.target)
            if other not in (None, part) and FLOOR.get(other, len(FLOORS)) >= floor:
                wrong.append(f"{found.place}: {part} imports {found.target}")
    assert not wrong, "\n".join(wrong)


def test_only_verbs_and_adapters_import_inside_functions() -> None:
    wrong = [
        f"{found.place}: {found.target}"
        for path in FILES
        if part_of(path) not in MAY_IMPORT_LATE
        for found in imports(path)
        if found.late and found.target not in LOADED_LATE
    ]
    assert not wrong, "\n".join(wrong)


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    graph = {module_name(path): path for path in FILES}
    edges = {
        name: {other for found in imports(path) for other in resolved(found.target, graph) if other != name}
        for name, path in graph.items()
    }
    done: set[str] = set()
    while free := {name for name, needs in edges.items() if name not in done and needs <= done}:
        done |= free
    in_a_circle_or_behind_one = sorted(edges.keys() - done)
    assert in_a_circle_or_behind_one == []


def test_functions_are_short() -> None:
    lengths = {
        f"{path.relative_to(SRC)}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in FILES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    check_lengths(lengths, FUNCTION_LINES, FUNCTION_MOST)


def test_files_are_short() -> None:
    check_lengths({str(path.relative_to(SRC)): lines(path) for path in FILES}, FILE_LINES, FILE_MOST)


def test_a_builtin_world_fits_on_a_few_pages() -> None:
    long = {
        path.name: lines(path)
        for path in (ROOT / "envs" / "builtin").glob("*.py")
        if lines(path) > WORLD_LINES
    }
    assert not long


def test_a_recipe_fits_on_a_few_pages() -> None:
    recipes = {path.name: lines(path) for path in (ROOT / "recipes").glob("*.py")}
    long = {name: n for name, n in recipes.items() if n > LONGER_RECIPES.get(name, RECIPE_LINES)}
    assert not long


def test_every_file_opens_with_a_docstring() -> None:
    assert [str(path.relative_to(SRC)) for path in FILES if not ast.get_docstring(tree(path))] == []


def test_no_part_has_a_name_that_could_hold_anything() -> None:
    assert [str(path.relative_to(SRC)) for path in FILES if VAGUE_NAMES & {path.stem, *path.parts}] == []


def test_no_global_random_numbers() -> None:
    wrong = []
    for path in FILES:
        forked = inside_fork_rng(path)
        for node in ast.walk(tree(path)):
            if not isinstance(node, ast.Attribute):
                continue
            owner = ast.unparse(node.value)
            seeded = owner == "torch" and node.attr in ("manual_seed", "seed") and id(node) not in forked
            if seeded or (owner in ("random", "np.random", "numpy.random") and node.attr not in OWN_RNG):
                wrong.append(f"{path.relative_to(SRC)}:{node.lineno}: {owner}.{node.attr}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: ".".join(path.relative_to(SRC).parts))
def test_all_is_what_a_package_offers(package: Path) -> None:
    name = ".".join(package.relative_to(SRC).parts)
    module = importlib.import_module(name)
    public = set(public_names(package / "__init__.py", name))
    assert public <= set(module.__all__), "imported in __init__ and missing in __all__"
    assert [offered for offered in module.__all__ if not hasattr(module, offered)] == []
    assert len(set(module.__all__)) == len(module.__all__)


def inside_fork_rng(path: Path) -> set[int]:
    """Nodes that run on a copy of torch's generator, for libraries that take none."""
    return {
        id(inner)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.With) and "fork_rng" in ast.unparse(node.items[0])
        for inner in ast.walk(node)
    }


def check_lengths(lengths: dict[str, int], usual: int, most: int) -> None:
    too_long = {name: n for name, n in lengths.items() if n > most}
    assert not too_long
    long = {name: n for name, n in lengths.items() if n > usual}
    assert len(long) <= (1 - SHARE) * len(lengths), long


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def public_names(page: Path, package: str) -> Iterator[str]:
    """What a package's own page defines, or imports from its own files."""
    for node in tree(page).body:
        if isinstance(node, ast.ImportFrom) and (node.module or package).startswith(package):
            names = [alias.asname or alias.name for alias in node.names]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            bound = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in bound if isinstance(target, ast.Name)]
        else:
            continue
        yield from (name for name in names if not name.startswith("_"))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


def resolved(target: str, known: dict[str, Path]) -> list[str]:
    """The modules of palestra that importing ``target`` needs, packages above them left out."""
    return [name for name in (target, target.rpartition(".")[0]) if name in known][:1]
