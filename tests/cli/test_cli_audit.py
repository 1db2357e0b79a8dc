"""``palestra audit``: what it prints and how it exits."""

import json


def test_a_sound_world_exits_with_0(palestra):
    done = palestra("audit", "orders", "--tasks", "8", "--episodes", "60")
    assert done.code == 0, done.out
    assert "orders: Nothing found" in done.out
    assert "17 checks in" in done.out


def test_findings_exit_with_1_and_show_what_was_done(palestra, tmp_path):
    page, data = tmp_path / "a.html", tmp_path / "a.json"
    world = "palestra.audit.examples:PaidRepetition"
    done = palestra("audit", world, "--html", str(page), "--json", str(data))
    assert done.code == 1
    assert "do it again" in done.out
    assert '> {"tool_name": "read", "parameters": {"source": "archive"}}' in done.out
    assert page.exists()
    assert json.loads(data.read_text())["world"] == world


def test_a_world_that_is_not_there_exits_with_2(palestra):
    done = palestra("audit", "nowhere.py:X")
    assert done.code == 2
    assert "no file nowhere.py" in done.err
