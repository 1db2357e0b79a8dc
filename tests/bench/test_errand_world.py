"""The world of the context benchmark: sound, long, and with its secret told early."""

from pathlib import Path

from palestra.audit import AuditSettings, audit
from palestra.envs import check_env, make_env, run_oracle

NAME = f"{Path(__file__).parents[2] / 'bench' / 'errand_world.py'}:Errands"


def errands():
    return make_env(NAME)


def test_it_keeps_the_contract_and_has_no_holes():
    check_env(errands())
    result = audit(errands, "errands", settings=AuditSettings(tasks=8, episodes=60))
    assert result.findings == (), [finding.symptom for finding in result.findings]


def test_it_is_long_and_its_code_is_told_at_the_start_and_needed_at_the_end():
    world = errands()
    for seed in range(8):
        calls = run_oracle(world, world.make_task(seed))
        assert len(calls) >= 12
