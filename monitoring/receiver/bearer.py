"""The bearer tokens that callers must show, any of several while one is being replaced."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Final

from shortlist.contracts import ShortlistError
from shortlist.storage.storage_config import address

_SCHEME: Final = "bearer "
_SHORTEST: Final = 16
"""Characters; a shorter one can be guessed."""


class Bearer:
    """Tokens from a file or an environment variable, one a line.

    A file is read anew for every request: Kubernetes writes a changed Secret into it, and no restart is needed.

    Args:
        file: Where the tokens are; None: in the variable.
        variable: Environment variable that holds them, where no file is given.

    Raises:
        ShortlistError: There is none, or one is too short. No message shows a token.
    """

    def __init__(self, file: Path | None, variable: str = "SHORTLIST_WEBHOOK_TOKEN") -> None:
        self._file = file
        self._variable = variable
        self.check()

    def check(self) -> None:
        """Raise `ShortlistError` when the tokens cannot be read."""
        self._digests()

    def admits(self, header: str | None) -> bool:
        """Return whether an Authorization header holds one of the tokens; it takes as long for every wrong one.

        Raises:
            ShortlistError: The tokens cannot be read.
        """
        known = self._digests()
        if header is None or not header.lower().startswith(_SCHEME):
            return False
        shown = _digest(header[len(_SCHEME) :].strip())
        found = False
        for digest in known:  # to the end, whichever it is
            found |= hmac.compare_digest(digest, shown)
        return found

    def _digests(self) -> tuple[bytes, ...]:
        where = f"{self._file}" if self._file is not None else f"the environment variable {self._variable}"
        tokens = [token for line in self._text().splitlines() if (token := line.strip())]
        if not tokens:
            raise ShortlistError(f"{where}: holds no bearer token; wanted one a line")
        if any(len(token) < _SHORTEST for token in tokens):
            raise ShortlistError(
                f"{where}: holds a bearer token below {_SHORTEST} characters; make one with: openssl rand -hex 32"
            )
        return tuple(map(_digest, tokens))

    def _text(self) -> str:
        if self._file is None:
            return address(self._variable, "webhook receiver")
        try:
            return self._file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ShortlistError(
                f"{self._file}: cannot be read ({type(error).__name__}); wanted bearer tokens"
            ) from None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
