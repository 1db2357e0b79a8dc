"""Alerts: follow a failing service to its root cause, apply the one right remedy, verify, resolve.

The one surprising choice: a symptom in the logs can have two causes, and only one more look (deploys or
metrics) tells them apart; every remedy counts, so trying them all cannot succeed.
"""

import itertools
from dataclasses import dataclass
from random import Random
from typing import ClassVar, Literal

from palestra.envs import Case, CaseEnv, Plan, ToolError, call, key, tool
from palestra.envs.builtin import words

CAUSES = {
    "bad_deploy": ("crashes", "rollback"),
    "memory_leak": ("crashes", "restart"),
    "overload": ("slow", "scale"),
    "stale_cache": ("slow", "clear_cache"),
    "disk_full": ("disk errors", "failover"),
}
"""Each cause with what the logs say and the remedy."""
Cause = Literal["bad_deploy", "memory_leak", "overload", "stale_cache", "disk_full"]
LEVELS = ("high", "low")


@dataclass
class Service:
    """One service: whom it calls in vain, its last deploy and its load."""

    calls: list[str]
    version: int
    age: str
    cpu: str
    misses: str


@dataclass
class Outage(Case):
    """An outage: what is alerted, where it comes from and why; with ``lag`` it recovers late."""

    alerted: str
    root: str
    cause: str
    lag: bool
    services: dict[str, Service]
    recovered: bool = False

    def path(self) -> list[str]:
        """The services whose logs lead to the root, healthy ones named before a failing one included."""
        steps = [self.alerted]
        while steps[-1] != self.root:
            below = self.services[steps[-1]].calls or self.services[steps[-2]].calls
            steps.append(next(name for name in below if name not in steps))
        return steps

    def plan(self) -> Plan:
        """Read logs down to the root, tell its causes apart, remedy it, probe until healthy, resolve."""
        root, (symptom, remedy) = self.root, CAUSES[self.cause]
        looks = [call("logs", service=name) for name in self.path()]
        if symptom != "disk errors":
            looks.append(call("deploys" if symptom == "crashes" else "metrics", service=root))
        deed = call("fix", service=root, remedy=remedy)
        if remedy == "rollback":
            deed = call("rollback", service=root, version=f"v{self.services[root].version - 1}")
        checks = [] if self.recovered else [call("probe")]
        return Plan(looks, [deed], call("resolve", service=root, cause=self.cause), checks)

    def informed(self) -> bool:
        """The root's own logs and what tells its causes apart suffice, however they were found."""
        return all(key(look) in self.seen for look in self.plan().lookups if self.root in key(look).split())


class Alerts(CaseEnv[Outage]):
    """Find the root cause of an alert, apply the right remedy and verify it."""

    instructions = "Follow logs to the root. Crashes: see deploys. Slow: see metrics. Fix, probe, resolve."
    deed_tools = ("rollback", "fix")
    closing_tool = "resolve"
    kind_field = "cause"
    milestones: ClassVar = {**CaseEnv.milestones, "recovered": Outage.checked}

    def generate(self, rng: Random, difficulty: int) -> Outage:
        """Level 1: up to one call deep; 2: up to two, late recovery; 3: healthy services are blamed too."""
        depth = rng.randint(difficulty // 3, min(difficulty, 2))
        names, cause = rng.sample(words.SERVICES, depth + 2 + difficulty), rng.choice(list(CAUSES))
        chain, others, services = names[: depth + 1], names[depth + 1 :], {}
        for name in sorted(names):
            age, cpu, misses = (rng.choice(pair) for pair in (("3 minutes", "40 days"), LEVELS, LEVELS))
            services[name] = Service([], rng.randint(2, 99), age, cpu, misses)
        for upper, lower in itertools.pairwise(chain):
            blamed = difficulty == 3 and rng.random() < 0.5
            services[upper].calls = rng.sample([lower, others.pop()], 2) if blamed else [lower]
        root = services[chain[-1]]
        root.age = "3 minutes" if cause == "bad_deploy" else "40 days"
        root.cpu, root.misses = LEVELS if cause == "overload" else LEVELS[::-1]
        return Outage(chain[0], chain[-1], cause, difficulty > 1 and rng.random() < 0.3, services)

    def observe(self, state: Outage) -> str:
        """The alert."""
        return f"Alert: {state.alerted} is failing."

    def _service(self, name: str) -> Service:
        if name not in self.state.services:
            raise ToolError(f"{name} is unknown")
        return self.state.services[name]

    @tool
    def logs(self, service: str) -> str:
        """Errors of a service."""
        calls = self._service(service).calls
        own = CAUSES[self.state.cause][0] if service == self.state.root else "no errors"
        return f"{service}: timeout calling {', '.join(calls)}" if calls else f"{service}: {own}"

    @tool
    def metrics(self, service: str) -> str:
        """Load of a service."""
        return f"{service}: cpu {self._service(service).cpu}, cache misses {self._service(service).misses}"

    @tool
    def deploys(self, service: str) -> str:
        """Last deploy."""
        found = self._service(service)
        return f"{service}: v{found.version} came {found.age} ago, before it v{found.version - 1}"

    @tool
    def rollback(self, service: str, version: str) -> str:
        """Undo a deploy."""
        return f"{service}: was v{self._service(service).version}, now {version}"

    @tool
    def fix(self, service: str, remedy: Literal["restart", "scale", "clear_cache", "failover"]) -> str:
        """Act on a service."""
        self._service(service)
        return f"{service}: {remedy} done"

    @tool
    def probe(self) -> str:
        """Whether the alert is over."""
        state = self.state
        if key(state.plan().deeds[0]) not in state.deeds:
            return f"{state.alerted}: failing"
        state.recovered, state.lag = not state.lag, False
        return f"{state.alerted}: {'healthy' if state.recovered else 'recovering'}"

    @tool
    def resolve(self, service: str, cause: Cause) -> str:
        """Close the alert."""
        return f"resolved: {service} {cause}"
