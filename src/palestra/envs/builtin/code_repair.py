"""Code repair: see a test fail, find the function, change a line, see the tests pass, submit.

The surprising choice: tests nobody is shown decide, in a process that is never told what they want, so code
that knows the visible tests or talks to its judge wins nothing.
"""

from collections.abc import Iterator
from random import Random
from typing import ClassVar

from palestra.envs import ToolEnv, ToolError, call, tool
from palestra.envs.builtin.code_project import Project, changes, draw_project
from palestra.types import ToolCall

LONGEST_LINE, MOST_LINES = 100, 30


class CodeRepair(ToolEnv[Project]):
    """Repair a bug in a small project until hidden tests pass."""

    instructions = "Run tests. List files, read the failing one, edit its line. Run tests again, then submit."
    deed_tools, closing_tool = ("edit", "insert"), "submit"
    milestones: ClassVar = {
        "failing": lambda state: state.seen_failing,
        "found": Project.found,
        "mended": lambda state: state.mended,
        "checked": Project.checked,
    }

    def generate(self, rng: Random, difficulty: int) -> Project:
        """Level 1: one file, four kinds of bug; 2: one of two files, eight kinds; 3: two of three files."""
        return draw_project(rng, difficulty)

    def observe(self, state: Project) -> str:
        """Where tests fail."""
        where = state.broken[0] if state.listed else f"{len(state.broken)} of {len(state.files)} files"
        return f"Project {state.name}: tests fail in {where}."

    def verify(self, state: Project) -> bool:
        """Whether all tests, hidden ones too, passed when it was submitted, and the visible ones were run."""
        return state.submitted and state.checked()

    def done(self, state: Project) -> bool:
        """Whether it was submitted."""
        return state.submitted

    def oracle(self, state: Project) -> Iterator[ToolCall]:
        """Test, find and mend file by file, test, submit."""
        wrong = state.wrong()
        if not state.tested:
            yield call("run_tests")
        if wrong and not state.listed:
            yield call("list_files")
        for file in wrong:
            if file not in state.read:
                yield call("read", file=file)
            yield from changes(file, list(state.files[file]), state.right(file))
            yield call("run_tests")
        yield call("submit")

    def _lines(self, file: str, text: str | None = None) -> list[str]:
        """The lines of a file, which may be changed where there is a ``text`` to put in."""
        state = self.state
        if file not in state.files:
            raise ToolError(f"there is no {file}")
        if text is not None and not (state.seen_failing and file in state.read):
            raise ToolError(f"read {file} first" if state.seen_failing else "run the tests first")
        if text is not None and (len(text) > LONGEST_LINE or not text.isprintable()):
            raise ToolError(f"text must be one line of at most {LONGEST_LINE} characters")
        return state.files[file]

    def _changed(self) -> None:
        self.state.tested = False
        self.state.mended = not self.state.fails(self.state.visible + self.state.hidden)

    @tool
    def run_tests(self) -> str:
        """The first failing test."""
        failed, count = self.state.fails(self.state.visible), len(self.state.visible)
        self.state.seen_failing = self.state.seen_failing or bool(failed)
        self.state.tested = True
        return f"tests: {len(failed)} of {count} fail, {failed[0].text()}" if failed else "tests: all pass"

    @tool
    def list_files(self) -> str:
        """Files and their functions."""
        self.state.listed = True
        return "files: " + ", ".join(f"{file} {name}" for file, name in self.state.functions.items())

    @tool
    def read(self, file: str) -> str:
        """Numbered lines."""
        lines = self._lines(file)
        self.state.read.add(file)
        return "\n".join(f"{number} {line}" for number, line in enumerate(lines, 1))

    @tool
    def edit(self, file: str, line: int, text: str) -> str:
        """Replace a line; no text deletes it."""
        lines = self._lines(file, text)
        if not 1 <= line <= len(lines):
            raise ToolError(f"{file} has lines 1 to {len(lines)}")
        lines[line - 1 : line] = [text] if text.strip() else []
        self._changed()
        return f"{file}: line {line} {'replaced' if text.strip() else 'deleted'}"

    @tool
    def insert(self, file: str, line: int, text: str) -> str:
        """Add a line before one."""
        lines = self._lines(file, text)
        if not 1 <= line <= len(lines) + 1 or len(lines) >= MOST_LINES:
            raise ToolError(f"{file} has {len(lines)} lines, of at most {MOST_LINES}")
        lines.insert(line - 1, text)
        self._changed()
        return f"{file}: line {line} added"

    @tool
    def submit(self) -> str:
        """Hand it in."""
        self.state.submitted = True
        return "submitted"
