"""``palestra chat``: a policy in a world, with a person who may answer in the world's place."""

import builtins

import pytest


@pytest.fixture
def typed(monkeypatch):
    """Lines to type; after the last the input ends."""

    def type_in(*lines: str) -> None:
        left = list(lines)

        def read(*_):
            if not left:
                raise EOFError
            return left.pop(0)

        monkeypatch.setattr(builtins, "input", read)

    return type_in


def test_an_empty_line_lets_the_world_answer(palestra, typed):
    typed("", "")
    done = palestra("chat", "nano", "--world", "orders", "--seed", "3")
    assert done.code == 0, done.err
    assert "Ticket from" in done.out
    assert '"error"' in done.out or "order " in done.out


def test_what_is_typed_is_told_to_the_policy_and_the_world_stays(palestra, typed):
    typed("order 12: item lamp, paid 45, parcel P7", "")
    done = palestra("chat", "nano", "--world", "orders", "--seed", "3")
    assert done.code == 0, done.err


def test_one_can_just_talk(palestra, typed):
    typed("hello", "again")
    done = palestra("chat", "nano", "--system", "Answer.", "--temperature", "1")
    assert done.code == 0, done.err


def test_without_a_world_weights_say_what_is_missing(palestra):
    done = palestra("chat", "nano")
    assert done.code == 2
    assert "such as --world orders" in done.err
    assert palestra("chat", "nano", "--world", "orders", "--system", "x").code == 2
