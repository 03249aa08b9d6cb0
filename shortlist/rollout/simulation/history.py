"""What happens in one simulated rollout: a few plain values, from a seed or written in a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from random import Random


class Fault(StrEnum):
    """What happens at one call that a controller makes: to the store, the servers, the registry or the clock."""

    KILL = "kill"
    """The controller dies before the call; the next one goes on."""
    KILL_AFTER = "kill after"
    """It dies when the call has done its work."""
    KILL_THEN_ROLL_BACK = "kill, then roll back"
    """It dies, and the next command is `make rollback`."""
    KILL_THEN_PROMOTE = "kill, then promote"
    """It dies, and the next command is `make promote`."""
    STACK_DOWN = "stack down"
    """It dies together with all servers, which start again by themselves."""
    FAIL = "fail"
    """The call does nothing and says so."""
    FAIL_AFTER = "fail after"
    """The call has done its work, but its answer is lost."""
    OUTAGE = "outage"
    """This and the next five calls of the kind fail."""
    SIGNAL = "signal"
    """SIGTERM."""
    ROLL_BACK = "roll back"
    """Another process orders a rollback."""
    PROMOTE = "promote"
    """Another process orders a promotion."""
    TAMPER = "tamper"
    """The files that the candidate is served from are swapped at the next wait."""
    RIVAL = "rival"
    """Another process tries to become the controller."""


@dataclass(frozen=True)
class History:
    """One history; the same one always plays in the same way."""

    steps: tuple[int, ...] = (5, 50, 100)
    """Of the rollout."""
    first: bool = False
    """The candidate is the first model ever."""
    champion: bool = True
    """The registry calls the version that serves champion; of a first model: calls that one so, as blessing it did."""
    serving: bool = True
    """The former version serves when it begins; else it only should."""
    bad_from: int | None = None
    """Step at which the judge says that the candidate is bad; None: it is good."""
    slow: bool = False
    """The candidate does not stand the declared load."""
    holds: int = 0
    """Looks at each step before the judge has seen enough."""
    commands: tuple[str, ...] = ("canary",)
    """What is asked for, one after the other: canary, promote, rollback."""
    faults: tuple[tuple[int, Fault], ...] = ()
    """By the number of the call, from 1, over all controllers."""

    @classmethod
    def seeded(cls, seed: int) -> History:
        """Return a history that a seed gives."""
        random = Random(seed)
        steps = random.choice([(5, 50, 100), (10, 100), (50, 100), (1, 5, 25, 100)])
        faults = {
            random.randint(1, 140): random.choice([*Fault, *_OFTEN])
            for _ in range(random.choice((0, 1, 1, 2, 2, 3, 5)))
        }
        if random.random() < 0.1:  # rare by chance, and what a controller that goes on has to find
            at = random.randint(15, 80)
            faults |= {at: Fault.TAMPER, at + random.randint(3, 18): Fault.KILL}
        first = random.random() < 0.15
        if first and random.random() < 0.5:
            faults |= {random.randint(20, 40): Fault.KILL_THEN_ROLL_BACK}
        return cls(
            steps=steps,
            first=first,
            champion=random.random() < 0.85,
            serving=random.random() < 0.85,
            bad_from=random.randrange(len(steps)) if random.random() < 0.3 else None,
            slow=random.random() < 0.06,
            holds=random.choice((0, 0, 1, 2)),
            commands=random.choice(_COMMANDS),
            faults=tuple(sorted(faults.items())),
        )

    def shrunk(self, still_fails: Callable[[History], bool]) -> History:
        """Return a history with as little in it as possible that still fails.

        Args:
            still_fails: Whether one does, in the same way.
        """
        best, before = self, None
        while best != before:
            before = best
            for simpler in best._simpler():
                if still_fails(simpler):
                    best = simpler
                    break
        return best

    def _simpler(self) -> Iterator[History]:
        for number in range(len(self.faults)):
            yield replace(self, faults=self.faults[:number] + self.faults[number + 1 :])
        if len(self.commands) > 1:
            yield replace(self, commands=self.commands[:-1])
            yield replace(self, commands=self.commands[1:])
        plain = History()
        for field in fields(self):
            if field.name != "faults" and getattr(self, field.name) != getattr(plain, field.name):
                yield replace(self, **{field.name: getattr(plain, field.name)})
        for number, (at, kind) in enumerate(self.faults):
            if kind not in {Fault.KILL, Fault.FAIL}:
                for plainer in (Fault.KILL, Fault.FAIL):
                    yield self._with(number, (at, plainer))
            if at > 1 and all(at - 1 != other for other, _ in self.faults):
                yield self._with(number, (at - 1, kind))

    def _with(self, number: int, fault: tuple[int, Fault]) -> History:
        return replace(self, faults=tuple(sorted((*self.faults[:number], fault, *self.faults[number + 1 :]))))

    def as_test(self, name: str, why: str) -> str:
        """Return the text of a test that plays it."""
        plain = History()
        said = [
            f"{field.name}={_text(getattr(self, field.name))}"
            for field in fields(self)
            if getattr(self, field.name) != getattr(plain, field.name)
        ]
        return f"def test_{name}() -> None:\n    # {why}\n    assert play(History({', '.join(said)})) is None\n"


_OFTEN = (Fault.KILL, Fault.KILL_AFTER, Fault.FAIL, Fault.OUTAGE)
_COMMANDS = (
    *[("canary",)] * 6, ("promote",), ("canary", "rollback"), ("canary", "rollback", "rollback"),
    ("canary", "canary"), ("promote", "rollback"),
)  # fmt: skip


def _text(value: object) -> str:
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return "(" + "".join(f"({at}, Fault.{kind.name}), " for at, kind in value).rstrip() + ")"
    return repr(value)
