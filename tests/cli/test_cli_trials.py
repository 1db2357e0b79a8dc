"""``palestra eval`` under faults and on tiers."""


def test_every_kind_of_fault_and_every_tier_has_its_line(palestra):
    done = palestra("eval", "nano", "--world", "orders", "--tasks", "3", "--faults", "--tiers")
    assert done.code == 0, done.err
    for kind in ("delay", "timeout", "transient_error", "permanent_error", "changed_format", "stale_data"):
        assert f"│ {kind}" in done.out
    assert "1 new tasks" in done.out
    assert "2 changed surface" in done.out
    assert "0 seen tasks" not in done.out, "weights alone have seen no tasks"
