"""`ServerSettings`: how a server answers, apart from where it listens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fileio.options import Secret
from objcat.catalog.names import check_name
from objcat.common.validation import seconds, whole_number
from objcat.errors import InvalidInput

TOKEN_CHARACTERS_MIN = 16
"""A shorter token could be guessed."""
CREDENTIALS_S_MIN, CREDENTIALS_S_MAX = 900, 43_200
"""What STS and Azure take: a quarter of an hour to half a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Settings of a server of the REST catalog.

    Args:
        tokens: bearer tokens, of which a request needs one. Empty: anybody who reaches the server may read the catalog.
        root_namespace: the namespace in which tables without one are shown.
        cache_s: how many seconds names and the newest slots of mirrors may be old. 0: ask the store at every request.
        mirrors: whether to bring the mirrors of a table up to its newest slot before the table is loaded.
        mirror_s: how many seconds a load waits for that. Then it answers with the last mirrored slot.
        request_s: how many seconds a request may take.
        body_s: how many seconds the body of a request may take.
        requests_max: how many requests may be under way at once.
        body_bytes_max: the largest body of a request.
        client_properties: properties for clients, beside those that follow from the options of the store.
        credentials_s: for how many seconds credentials of the store are valid that clients ask for. 0: none are given out.
        credentials_role: on S3, the ARN of the role whose rights these credentials have at most.
    """

    tokens: tuple[Secret, ...] = ()
    root_namespace: str = "default"
    cache_s: float = 1.0
    mirrors: bool = False
    mirror_s: float = 10.0
    request_s: float = 30.0
    body_s: float = 10.0
    requests_max: int = 256
    body_bytes_max: int = 1024 * 1024
    client_properties: Mapping[str, str] = field(default_factory=dict)
    credentials_s: int = 0
    credentials_role: str | None = None

    def __post_init__(self) -> None:
        """Raises InvalidInput for a setting that does not fit."""
        if "." in check_name(self.root_namespace, what="namespace"):
            raise InvalidInput(f"The namespace of tables without one cannot be {self.root_namespace!r}. Give a name without a dot.")
        if any(len(token.reveal()) < TOKEN_CHARACTERS_MIN for token in self.tokens):
            raise InvalidInput(f"A token has fewer than {TOKEN_CHARACTERS_MIN} characters. Make one with `openssl rand -hex 32`.")
        for what in ("cache_s", "mirror_s", "request_s", "body_s"):
            seconds(getattr(self, what), what=what)
        if self.mirrors and self.mirror_s >= self.request_s:
            raise InvalidInput(
                f"A load may wait {self.mirror_s} seconds for a mirror, and a request may take {self.request_s} in all. Let it wait less."
            )
        if self.credentials_s and not CREDENTIALS_S_MIN <= self.credentials_s <= CREDENTIALS_S_MAX:
            raise InvalidInput(
                f"Credentials cannot be valid for {self.credentials_s} seconds. Choose {CREDENTIALS_S_MIN} to {CREDENTIALS_S_MAX}."
            )
        if self.credentials_role is not None and not self.credentials_s:
            raise InvalidInput("There is a role for credentials, but none are given out. Say for how long they are valid, too.")
        for what in ("requests_max", "body_bytes_max"):
            whole_number(getattr(self, what), what=what, least=1)
