"""Attempts with token ids, made by hand, for tests of preferences."""

from palestra.types import Facts, StopReason, Task, Trajectory, TrajectoryGroup, Turn

TASK = Task(id="w/train/1", env="w", split="train", seed=1, prompt="hi", content_hash="one")


def attempt(name: str, *turns: tuple[tuple[int, ...], ...], reward=0.0, success=False, task=TASK):
    """Turns as (action ids, observation ids), with the context's ids at the end where it was written anew."""
    made = tuple(
        Turn(
            str(action),
            str(seen),
            Facts(),
            action_ids=action,
            sampled_logprobs=(-0.5,) * len(action),
            observation_ids=seen,
            prompt_ids=context[0] if context else (),
        )
        for action, seen, *context in turns
    )
    return Trajectory(
        name, task, (), made, StopReason.terminated, success, prompt_ids=(2, 3, 4), reward=reward
    )


def group(*attempts: Trajectory, name: str = "rl/1/0") -> TrajectoryGroup:
    return TrajectoryGroup(name, attempts[0].task, attempts)
