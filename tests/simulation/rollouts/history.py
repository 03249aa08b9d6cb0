"""The scenario of one simulated rollout, drawn from a seed or written in a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from random import Random


class Fault(StrEnum):
    """Fault at one call of a controller to the store, the servers, the registry or the clock."""

    KILL = "kill"
    """The controller is killed before the call; the next one resumes."""
    KILL_AFTER = "kill after"
    """The controller is killed after the call took effect."""
    KILL_THEN_ROLL_BACK = "kill, then roll back"
    """The controller is killed, and the next command is `make rollback`."""
    KILL_THEN_PROMOTE = "kill, then promote"
    """The controller is killed, and the next command is `make promote`."""
    STACK_DOWN = "stack down"
    """The controller is killed together with all servers, which restart by themselves."""
    FAIL = "fail"
    """The call fails without effect."""
    FAIL_AFTER = "fail after"
    """The call takes effect, but its answer is lost."""
    OUTAGE = "outage"
    """This and the next five calls of the kind fail."""
    SIGNAL = "signal"
    """The controller gets SIGTERM."""
    ROLL_BACK = "roll back"
    """Another process sends the command rollback."""
    PROMOTE = "promote"
    """Another process sends the command promote."""
    TAMPER = "tamper"
    """The candidate's served files are replaced at the next wait."""
    RIVAL = "rival"
    """Another process tries to become the controller."""


@dataclass(frozen=True)
class History:
    """One scenario; a simulation of it is deterministic."""

    steps: tuple[int, ...] = (5, 50, 100)
    """Steps of the rollout, in percent."""
    first: bool = False
    """The candidate is the first model."""
    champion: bool = True
    """The champion alias points to the serving version; for a first model to that model, as after its blessing."""
    serving: bool = True
    """The former version serves when the rollout begins; else it has to be started first."""
    bad_from: int | None = None
    """Step at which the analysis rolls the candidate back; None: the candidate is good."""
    slow: bool = False
    """The candidate fails the load test."""
    holds: int = 0
    """Number of analyses that hold at each step."""
    commands: tuple[str, ...] = ("canary",)
    """Commands in order: canary, promote, rollback."""
    faults: tuple[tuple[int, Fault], ...] = ()
    """Faults with the number of their call, from 1, over all controllers."""

    @classmethod
    def seeded(cls, seed: int) -> History:
        """Return a history drawn from a seed."""
        random = Random(seed)
        steps = random.choice([(5, 50, 100), (10, 100), (50, 100), (1, 5, 25, 100)])
        faults = {
            random.randint(1, 140): random.choice([*Fault, *_OFTEN])
            for _ in range(random.choice((0, 1, 1, 2, 2, 3, 5)))
        }
        if random.random() < 0.1:  # rare by chance: files replaced before a resumed controller checks them
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

    def shrink(self, still_fails: Callable[[History], bool]) -> History:
        """Return a minimal history that still fails.

        Args:
            still_fails: Whether a history breaks the same rule.
        """
        best, previous = self, None
        while best != previous:
            previous = best
            for simpler in best._simpler_histories():
                if still_fails(simpler):
                    best = simpler
                    break
        return best

    def _simpler_histories(self) -> Iterator[History]:
        for number in range(len(self.faults)):
            yield replace(self, faults=self.faults[:number] + self.faults[number + 1 :])
        if len(self.commands) > 1:
            yield replace(self, commands=self.commands[:-1])
            yield replace(self, commands=self.commands[1:])
        default = History()
        for field in fields(self):
            if field.name != "faults" and getattr(self, field.name) != getattr(default, field.name):
                yield replace(self, **{field.name: getattr(default, field.name)})
        for number, (at, kind) in enumerate(self.faults):
            if kind not in {Fault.KILL, Fault.FAIL}:
                for simpler_fault in (Fault.KILL, Fault.FAIL):
                    yield self._with_fault(number, (at, simpler_fault))
            if at > 1 and all(at - 1 != number_before for number_before, _ in self.faults):
                yield self._with_fault(number, (at - 1, kind))

    def _with_fault(self, number: int, fault: tuple[int, Fault]) -> History:
        return replace(self, faults=tuple(sorted((*self.faults[:number], fault, *self.faults[number + 1 :]))))

    def as_test(self, name: str, comment: str) -> str:
        """Return the source of a test that simulates it."""
        default = History()
        arguments = [
            f"{field.name}={_literal(getattr(self, field.name))}"
            for field in fields(self)
            if getattr(self, field.name) != getattr(default, field.name)
        ]
        return (
            f"def test_{name}() -> None:\n    # {comment}\n    assert play(History({', '.join(arguments)})) is None\n"
        )


_OFTEN = (Fault.KILL, Fault.KILL_AFTER, Fault.FAIL, Fault.OUTAGE)
_COMMANDS = (
    *[("canary",)] * 6, ("promote",), ("canary", "rollback"), ("canary", "rollback", "rollback"),
    ("canary", "canary"), ("promote", "rollback"),
)  # fmt: skip


def _literal(value: object) -> str:
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return "(" + "".join(f"({at}, Fault.{kind.name}), " for at, kind in value).rstrip() + ")"
    return repr(value)
