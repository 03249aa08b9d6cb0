"""The pod of a Job: a process of this machine that gets the container's arguments, variables and files."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Object = dict[str, Any]
_ANNOTATION = re.compile(r"metadata\.annotations\['(.+)'\]")


class JobPod:
    """A pod with one container.

    Args:
        job: Manifest of the Job.
        folder: Folder for the files that are mounted.
        program: Program that stands in for the image's command, before the container's arguments.
        environment: Variables that it gets beside the container's own values.
        waiting: Why it never starts, such as `ErrImagePull`; empty: it starts.
    """

    def __init__(
        self, job: Object, folder: Path, program: Sequence[str] = (), environment: Mapping[str, str] | None = None,
        waiting: str = "",
    ) -> None:  # fmt: skip
        self.job, self.template = str(job["metadata"]["name"]), job["spec"]["template"]
        self.name, self.waiting = f"{self.job}-x7k2p", waiting
        self.lines: list[bytes] = []
        self.cut_after: int | None = None
        """Number of lines after which the connection of whoever follows the log is lost, once."""
        self.is_evicted = False
        self._is_deleted = False
        self._changed = threading.Condition()
        self._process: subprocess.Popen[bytes] | None = None
        if not waiting:
            container = self.template["spec"]["containers"][0]
            arguments = [self._mounted(text, folder) for text in container["command"][1:]]
            variables = {item["name"]: item["value"] for item in container["env"] if "value" in item}
            self._process = subprocess.Popen(
                [*program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder,
                env={**os.environ, **variables, **(environment or {})},
            )  # fmt: skip
            self._reader = threading.Thread(target=self._read, daemon=True)
            self._reader.start()

    def _mounted(self, argument: str, folder: Path) -> str:
        """Return an argument with the place of a mounted file here; the file is written as the downward API does."""
        (mount,) = (
            mount for mount in self.template["spec"]["containers"][0]["volumeMounts"] if mount["name"] == "spec"
        )
        if not argument.startswith(mount["mountPath"]):
            return argument
        (volume,) = (volume for volume in self.template["spec"]["volumes"] if volume["name"] == "spec")
        for item in volume["downwardAPI"]["items"]:
            match = _ANNOTATION.fullmatch(item["fieldRef"]["fieldPath"])
            assert match is not None
            (folder / item["path"]).write_text(self.template["metadata"]["annotations"][match[1]])
        return argument.replace(mount["mountPath"], str(folder))

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout as log:
            for line in log:
                with self._changed:
                    self.lines.append(line)
                    self._changed.notify_all()
        self._process.wait()
        with self._changed:
            self._changed.notify_all()

    @property
    def code(self) -> int | None:
        """Exit code of the container; None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def is_gone(self) -> bool:
        """Whether the pod was deleted and has ended."""
        return self._is_deleted and (self._process is None or self.code is not None)

    def end(self) -> None:
        """Delete the pod: its container gets SIGTERM."""
        self._is_deleted = True
        if self._process is not None and self.code is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the container without a word."""
        if self._process is not None:
            self._process.kill()
            self._reader.join(30)

    def follow(self) -> Iterator[bytes | None]:
        """Yield the lines of the log while it grows; None where the connection is cut."""
        number = 0
        while True:
            with self._changed:
                if len(self.lines) == number and self.code is None:
                    self._changed.wait(1)
                new_lines = self.lines[number:]
            for line in new_lines:
                if self.cut_after is not None and number >= self.cut_after:
                    self.cut_after = None
                    yield None
                    return
                yield line
                number += 1
            if self.code is not None and not self._reader.is_alive() and number == len(self.lines):
                return

    def as_object(self) -> Object:
        """Return the pod as the API answers it."""
        state: Object = {"running": {}}
        phase = "Running"
        if self.waiting:
            state, phase = {"waiting": {"reason": self.waiting, "message": "not found: manifest unknown"}}, "Pending"
        elif self.code is not None:
            code = 128 - self.code if self.code < 0 else self.code
            state, phase = {"terminated": {"exitCode": code}}, "Failed" if code else "Succeeded"
        status: Object = {"phase": phase}
        if self.is_evicted:
            status |= {"phase": "Failed", "reason": "Evicted"}
        else:
            container = {"name": "command", "image": "", "imageID": "", "ready": True, "restartCount": 0}
            status["containerStatuses"] = [{**container, "state": state}]
        return {"metadata": {"name": self.name, "namespace": "ml"}, "status": status}
