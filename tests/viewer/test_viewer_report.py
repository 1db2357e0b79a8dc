import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

from viewer_runs import evaluate, new_run, solved, stored

from palestra.evaluation import wilson_interval
from palestra.store import RunFolder, read_trajectory_file, write_trajectory_file
from palestra.types import StopReason
from palestra.viewer import run_summary, write_report


def page_of(run: Path) -> str:
    return write_report(run).read_text(encoding="utf-8")


class Tags(HTMLParser):
    """Collects every tag, attribute and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "path", "use"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_headline_says_from_where_to_where_and_against_whom(full_run: Path) -> None:
    page = page_of(full_run).replace("\xa0", " ")
    shown = {}
    for stage in ("sft", "rl"):
        low, high = wilson_interval(solved(full_run, stage), 60) or (0.0, 0.0)
        shown[stage] = f"{solved(full_run, stage) / 0.6:.0f} % ({low * 100:.0f}–{high * 100:.0f})"
    assert (
        f"<h1>Success on held-out tasks rose from {shown['sft']} after SFT to {shown['rl']} after RL; "
        f"the teacher manages {solved(full_run, 'teacher') / 0.6:.0f} %; the oracle 100 %.</h1>"
    ) in page


def test_the_table_shows_the_stages_side_by_side(full_run: Path) -> None:
    page = page_of(full_run)
    assert re.findall(r'<th scope="col">(Teacher|SFT|RL|Oracle)</th>', page) == [
        "Teacher",
        "SFT",
        "RL",
        "Oracle",
    ]
    for label in (
        "Turns",
        "Invalid actions an episode",
        "Format compliance",
        "Tool-call accuracy",
        "handled",
    ):
        assert f'<th scope="row">{label}</th>' in page
    cut = [
        sum(each.stop_reason is StopReason.max_turns for each in stored(full_run, stage))
        for stage in ("teacher", "sft", "rl", "oracle")
    ]
    assert cut[1] > 0
    assert "max turns</th>" + "".join(f"<td>{count}</td>" for count in cut) in page
    assert "judge" not in page[: page.index("<h2>Episodes")]


def test_the_page_needs_nothing_but_itself(full_run: Path) -> None:
    page = page_of(full_run)
    tags = Tags(page)
    assert not tags.open
    assert not {"script", "link", "img", "iframe", "object"} & set(tags.tags)
    assert not re.search(r"https?://|url\((?!#)|@import", page)
    assert not [value for name, value in tags.attributes if name == "src"]
    references = [value or "" for name, value in tags.attributes if name in ("href", "xlink:href")]
    assert references
    assert all(each.startswith("#") for each in references)


def test_every_curve_the_run_has_is_drawn_in_the_page_colours(full_run: Path) -> None:
    page = page_of(full_run)
    titles = re.findall(r"<figcaption><strong>(.*?)</strong>", page)
    assert titles == [
        "Success",
        "Turns",
        "Reward",
        "Reward part: efficiency",
        "Reward part: format",
        "Reward part: outcome",
        "Format compliance",
        "Entropy",
        "KL to the reference",
        "Groups without spread",
        "Time",
        "SFT loss",
    ]
    assert page.count("<svg") == len(titles)
    assert "var(--accent)" in page
    assert "#0102" not in page


def test_ten_episodes_are_replayed_failures_first(full_run: Path) -> None:
    page = page_of(full_run)
    verdicts = re.findall(r'<summary>\s*<span class="badge \w+">(\w+)</span>', page)
    assert verdicts == ["failed"] * 7 + ["solved"] * 3
    assert page.count('<pre class="action">') > 20
    assert "milestone: opened" in page
    assert "invalid: " in page


def test_the_notes_name_groups_without_spread_and_milestones(full_run: Path) -> None:
    page = page_of(full_run).replace("\xa0", " ")
    assert "In 37 % of groups all attempts earned the same reward" in page
    lead = (solved(full_run, "rl") - solved(full_run, "teacher")) / 0.6
    assert f"The policy beats the teacher it first imitated by {lead:.0f} points." in page
    failed = 60 - solved(full_run, "rl")
    assert f"{failed} of 60 stored episodes of rl failed: {failed} by a wrong ending." in page


def test_writing_a_report_twice_gives_the_same_bytes(full_run: Path) -> None:
    assert page_of(full_run) == page_of(full_run)


def test_what_a_model_wrote_is_shown_and_never_run(hostile_run: Path) -> None:
    page = page_of(hostile_run)
    tags = Tags(page)
    assert not {"script", "img"} & set(tags.tags)
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;" in page
    assert "{{ 7 * 7 }}" in page
    assert "not scored" in page


def test_an_empty_run_has_a_page(tmp_path: Path) -> None:
    run = new_run(tmp_path / "empty")
    page = page_of(run.path)
    assert "Nothing has been collected, trained or evaluated in this run yet." in page
    assert "<table" not in page
    assert "<svg" not in page


def test_a_run_that_only_collected_shows_what_it_collected(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    evaluate(run, "teacher", 0.25, mode="scripted", count=5)
    groups = read_trajectory_file(run.trajectory_files("eval-teacher")[0])
    write_trajectory_file(run.path / "trajectories/collect/update-0.parquet", groups)
    (run.path / "eval/teacher.json").unlink()
    (run.path / "trajectories/eval-teacher/scripted.parquet").unlink()
    page = page_of(run.path).replace("\xa0", " ")
    assert re.search(
        r"<h1>5 episodes collected, \d+ % of them solved; nothing has been evaluated yet.</h1>", page
    )
    assert page.count('<details class="episode">') == 5
    assert run_summary(run.path) == {"seconds": None, "peak_memory_mb": None, "world": "orders"}


def test_evaluations_without_most_of_their_values_still_make_a_page(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    run.write_eval("rl", {"stage": "rl", "success": None})
    run.write_eval("odd", {"success": 1.0})
    run.append_metrics({"stage": "rl", "update": 0, "success/mean": None})
    page = page_of(run.path)
    assert "Other evaluations" in page
    assert RunFolder.open(run.path).read_evals().keys() == {"odd", "rl"}


def test_torn_metrics_are_left_out_and_said_to_be(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    run.append_metrics({"stage": "rl", "update": 0, "success/mean": 0.5})
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write('{"stage": "rl", "upd')
    assert "1 row of metrics could not be read and are left out." in page_of(run.path)


def test_without_matplotlib_the_page_says_what_is_missing(full_run: Path) -> None:
    program = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from palestra.viewer import write_report; print(write_report(sys.argv[1]))"
    )
    subprocess.run([sys.executable, "-c", program, str(full_run)], check=True, capture_output=True)
    page = (full_run / "report.html").read_text(encoding="utf-8")
    assert "The curves are not drawn: that needs matplotlib" in page
    assert "<svg" not in page
    assert "<h2>Episodes</h2>" in page


def test_the_viewer_never_loads_torch() -> None:
    program = "import sys, palestra.viewer, palestra.evaluation; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_alarms_and_changes_are_told_in_sentences(hostile_run: Path) -> None:
    run = RunFolder.open(hostile_run)
    fell = "success fell from 80% to 20%"
    alarm = {"stage": "rl", "update": 7, "symptom": "success fell back", "evidence": fell}
    run.append_alarm(alarm | {"cause": "the learning rate is too high", "remedy": "lower rl.learning_rate"})
    change = {"stage": "rl", "update": 7, "setting": "rl.learning_rate", "before": 0.003, "after": 0.0015}
    run.append_change(change | {"reason": f"fell_back: {fell}"})
    text = " ".join(re.sub(r"<[^>]+>", "", page_of(hostile_run)).split())
    assert f"Alarm, rl update 7: success fell back: {fell}. Likely the learning rate is too high." in text
    assert f"Changed, rl update 7: rl.learning_rate 0.003 to 0.0015, fell_back: {fell}." in text
