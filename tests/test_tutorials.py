"""The worlds that tutorials show are as sound, or as broken, as they say."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from palestra.audit import AuditSettings, audit
from palestra.envs import make_env
from palestra.pipeline import parse_config

TUTORIALS = Path(__file__).parents[1] / "docs" / "tutorials"


def test_the_agent_s_world_has_its_hole_and_the_remedy_closes_it(tmp_path: Path) -> None:
    page = (TUTORIALS / "what-broke-my-agent.md").read_text(encoding="utf-8")
    world, remedy = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (config,) = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    assert parse_config(config).world.name == yaml.safe_load(config)["world"]["name"] == "sources.py:Sources"
    (hole,) = re.findall(r"^    milestones: .*\n", world, flags=re.MULTILINE)
    found = {}
    for name, text in (("leaky", world), ("mended", world.replace(hole, remedy))):
        path = tmp_path / f"{name}.py"
        path.write_text(text, encoding="utf-8")
        made = f"{path}:Sources"
        result = audit(lambda made=made: make_env(made), name, settings=AuditSettings(tasks=8, episodes=100))
        found[name] = {finding.check for finding in result.findings}
    assert {"do it again", "search for exploits"} <= found["leaky"]
    assert found["mended"] == set()
