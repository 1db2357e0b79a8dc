"""Sources, splits, the leak check and the weights."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from palestra.errors import ConfigError, WorldError
from palestra.tasks import (
    SPLIT_RANGES,
    GeneratedTasks,
    JsonlTasks,
    TaskSource,
    TaskWeights,
    check_leak,
    task_from_json,
    task_to_json,
    write_tasks,
)
from palestra.types import Split, Task


def make_task(seed: int, split: Split, kinds: int = 10**9) -> Task:
    content = f"{seed % kinds:064x}"
    return Task(f"w/{split}/{seed}", "w", split, seed, f"do {seed}", {"difficulty": 2}, ("a",), 3, content)


def few_kinds(seed: int, split: Split) -> Task:
    return make_task(seed, split, kinds=7)


def test_splits_never_share_a_seed() -> None:
    source: TaskSource = GeneratedTasks(make_task)
    rng = random.Random(0)
    seeds = {split: {t.seed for t in source.sample(split, 500, rng)} for split in SPLIT_RANGES}
    assert not seeds["train"] & seeds["test"]
    assert all(seed in SPLIT_RANGES[split] for split, drawn in seeds.items() for seed in drawn)
    with pytest.raises(ConfigError, match="share seeds"):
        GeneratedTasks(make_task, {"train": range(10), "test": range(9, 20)})


def test_take_is_always_the_same_and_sample_follows_its_rng() -> None:
    source = GeneratedTasks(make_task)
    assert [t.seed for t in source.take("test", 3)] == [2_000_000, 2_000_001, 2_000_002]
    assert source.sample("train", 5, random.Random(3)) == source.sample("train", 5, random.Random(3))
    assert source.sample("train", 5, random.Random(3)) != source.sample("train", 5, random.Random(4))
    stream = source.endless("train", random.Random(1))
    assert len({next(stream).id for _ in range(20)}) == 20


def test_leaked_tasks_are_found_and_skipped_in_order() -> None:
    source = GeneratedTasks(few_kinds)
    train, test = source.take("train", 4), source.take("test", 7)
    assert {t.content_hash for t in check_leak(train, test)} == {t.content_hash for t in train}
    clean = source.take("test", 5, exclude={t.content_hash for t in train})
    assert not check_leak(train, clean)
    assert [t.seed for t in clean] == sorted(t.seed for t in clean)


def test_a_world_with_too_few_problems_for_a_clean_split_is_refused() -> None:
    source = GeneratedTasks(few_kinds)
    with pytest.raises(WorldError, match="only 0 of 3"):
        source.take("test", 3, exclude={t.content_hash for t in source.take("train", 7)})


def test_tasks_without_a_hash_are_never_called_leaked() -> None:
    bare = Task("a/train/1", "a", "train", 1, "x")
    assert check_leak([bare], [bare]) == []


def test_an_absent_split_or_too_many_tasks_are_refused() -> None:
    source = GeneratedTasks(make_task, {"train": range(5)})
    with pytest.raises(ConfigError, match="no seeds"):
        source.take("test", 1)
    with pytest.raises(ConfigError, match="fewer"):
        source.sample("train", 6, random.Random(0))


def test_tasks_survive_a_file_unchanged(tmp_path: Path) -> None:
    tasks = [*GeneratedTasks(make_task).take("train", 3), Task("ü/test/1", "ü", "test", 1, "größe 💡\u2028x")]
    assert [task_from_json(task_to_json(task)) for task in tasks] == tasks
    write_tasks(tmp_path / "t.jsonl", tasks)
    source: TaskSource = JsonlTasks(tmp_path / "t.jsonl")
    assert source.take("train", 3) == tasks[:3]
    assert source.take("test", 1) == tasks[3:]
    assert source.take("train", 2, exclude={tasks[0].content_hash}) == tasks[1:3]
    assert len(source.sample("train", 2, random.Random(0))) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["t.jsonl"]


@pytest.mark.parametrize(
    "bad",
    [
        '{"id": "w/train/9", "env": "w", "spl',
        "[1]",
        '{"id": "x"}',
        '{"id": "x", "env": "w", "split": "dev", "seed": 1, "prompt": "p"}',
        '{"id": "x", "env": "w", "split": "test", "seed": "1", "prompt": "p"}',
        '{"id": "x", "env": "w", "split": "test", "seed": true, "prompt": "p"}',
        '{"id": "x", "env": "w", "split": "test", "seed": 1, "prompt": "p", "colour": 3}',
    ],
)
def test_a_record_that_cannot_be_read_is_named_and_left_out(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "t.jsonl"
    good = [task_to_json(task) for task in GeneratedTasks(make_task).take("train", 2)]
    path.write_text("\n".join([good[0], bad, "", good[1], good[0]]))
    with pytest.warns(UserWarning, match="task skipped") as caught:
        source = JsonlTasks(path)
    assert [str(w.message).split(": ")[0] for w in caught] == [f"{path}:2", f"{path}:5"]
    assert len(source.take("train", 2)) == 2


def test_a_record_torn_inside_a_character_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    good = task_to_json(make_task(1, "train")).encode()
    path.write_bytes(good + b"\n" + '{"id": "ü'.encode()[:-1])
    with pytest.warns(UserWarning, match=":2"):
        assert len(JsonlTasks(path).take("train", 1)) == 1


def test_a_missing_or_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no task file"):
        JsonlTasks(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match="no task"):
        JsonlTasks(tmp_path / "empty.jsonl")


def test_rarely_solved_tasks_come_more_often() -> None:
    tasks = GeneratedTasks(make_task).take("train", 2)
    weights = TaskWeights(tasks)
    assert weights.weight(tasks[0].id) == pytest.approx(0.6)
    weights.observe(tasks[0].id, 8, 8)
    weights.observe(tasks[1].id, 0, 8)
    assert weights.weight(tasks[0].id) == pytest.approx(0.1 + 1 - 9 / 10)
    assert weights.weight(tasks[1].id) == pytest.approx(0.1 + 1 - 1 / 10)
    rng = random.Random(0)
    drawn = [weights.next(rng).id for _ in range(600)]
    assert drawn.count(tasks[1].id) / 600 == pytest.approx(1.0 / 1.2, abs=0.05)


def test_weights_continue_from_their_state() -> None:
    tasks = GeneratedTasks(make_task).take("train", 5)
    weights = TaskWeights(tasks)
    weights.observe(tasks[3].id, 2, 4)
    weights.observe("elsewhere", 1, 1)
    resumed = TaskWeights(tasks)
    resumed.load(weights.state())
    one, other = random.Random(1), random.Random(1)
    assert [weights.next(one) for _ in range(20)] == [resumed.next(other) for _ in range(20)]
    with pytest.raises(ValueError, match="2 successes in 1"):
        weights.observe(tasks[0].id, 2, 1)
    with pytest.raises(ConfigError, match="different"):
        TaskWeights([tasks[0], tasks[0]])


def test_a_source_passes_over_what_is_not_to_be_kept() -> None:
    even = GeneratedTasks(make_task, keep=lambda task: task.seed % 2 == 0)
    assert [t.seed for t in even.take("train", 3)] == [0, 2, 4]
    drawn = even.sample("train", 50, random.Random(1))
    assert drawn == even.sample("train", 50, random.Random(1))
    assert all(task.seed % 2 == 0 for task in drawn)
    assert len({task.id for task in drawn}) == 50
    stream = even.endless("train", random.Random(1))
    assert all(next(stream).seed % 2 == 0 for _ in range(20))
    with pytest.raises(WorldError, match="of a kind that is wanted"):
        GeneratedTasks(make_task, keep=lambda task: False).sample("train", 1, random.Random(1))
