"""The bearer tokens of callers; several are valid while one is being replaced."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Final

from shortlist.contracts import ShortlistError
from shortlist.storage.storage_config import read_variable

_SCHEME: Final = "bearer "
_MIN_LENGTH: Final = 16
"""Fewest characters of a token; a shorter one could be guessed."""


class BearerTokens:
    """Tokens from a file or an environment variable, one per line.

    The file is read again for every request: Kubernetes writes a changed Secret into it, so no restart is needed.

    Args:
        file: File with the tokens; None: they are in the variable.
        variable: Environment variable with the tokens, where no file is given.

    Raises:
        ShortlistError: There is no token, or one is too short. No message shows a token.
    """

    def __init__(self, file: Path | None, variable: str = "SHORTLIST_WEBHOOK_TOKEN") -> None:
        self._file = file
        self._variable = variable
        self.check()

    def check(self) -> None:
        """Read the tokens once.

        Raises:
            ShortlistError: The tokens cannot be read.
        """
        self._digests()

    def is_authorized(self, header: str | None) -> bool:
        """Return whether an Authorization header holds one of the tokens, in constant time.

        Raises:
            ShortlistError: The tokens cannot be read.
        """
        digests = self._digests()
        if header is None or not header.lower().startswith(_SCHEME):
            return False
        given_digest = _digest(header[len(_SCHEME) :].strip())
        is_match = False
        for token_digest in digests:  # no early exit, for constant time
            is_match |= hmac.compare_digest(token_digest, given_digest)
        return is_match

    def _digests(self) -> tuple[bytes, ...]:
        source = f"{self._file}" if self._file is not None else f"the environment variable {self._variable}"
        tokens = [token for line in self._text().splitlines() if (token := line.strip())]
        if not tokens:
            raise ShortlistError(f"{source}: holds no bearer token; wanted one a line")
        if any(len(token) < _MIN_LENGTH for token in tokens):
            raise ShortlistError(
                f"{source}: holds a bearer token below {_MIN_LENGTH} characters; make one with: openssl rand -hex 32"
            )
        return tuple(map(_digest, tokens))

    def _text(self) -> str:
        if self._file is None:
            return read_variable(self._variable, "webhook receiver")
        try:
            return self._file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ShortlistError(
                f"{self._file}: cannot be read ({type(error).__name__}); wanted bearer tokens"
            ) from None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
