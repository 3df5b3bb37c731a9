"""Addresses of storages that are no folder of this machine: what may be in them, and above all what may not. Both."""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.errors import ConfigError

_AUTHORITY = {
    "s3": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*"),
    "gs": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*"),
    "az": re.compile(r"[$A-Za-z0-9][A-Za-z0-9-]*"),
    "hdfs": re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._-]*(?::\d+)?)?"),
}
"""What comes after the two slashes: a bucket, a container, or a name node. The one of HDFS may be missing: then `fs.defaultFS` is meant."""

REMOTE_SCHEMES = frozenset(_AUTHORITY)
_FORMS = {
    "s3": "s3://bucket/path",
    "gs": "gs://bucket/path",
    "az": "az://container/path",
    "hdfs": "hdfs://namenode:8020/path",
}
_FORBIDDEN = re.compile(r"[?#\\\x00-\x1f\x7f]")


@dataclass(frozen=True)
class RemotePlace:
    """A folder in a store. What a person wrote is taken as it is: nothing is escaped or unescaped."""

    scheme: str
    bucket: str
    folder: str
    """Without slashes at its ends; '' for the whole bucket."""

    @property
    def uri(self) -> str:
        """The address."""
        return f"{self.scheme}://{self.bucket}{f'/{self.folder}' if self.folder else ''}"

    def key(self, name: str) -> str:
        """The full name of a file."""
        return f"{self.folder}/{name}" if self.folder else name


def place_of(uri: str) -> RemotePlace:
    """Read an address; raises `ConfigError` for one that names no place, or has more in it."""
    scheme, _, rest = uri.partition("://")
    bucket, _, folder = rest.partition("/")
    refuse_userinfo(uri)
    folder = folder.rstrip("/")
    if _FORBIDDEN.search(rest) or any(part in ("", ".", "..") for part in folder.split("/") if folder):
        problem = "it must be a plain path, without '?', '#', '..' and empty parts; settings come from the environment"
    elif not _AUTHORITY[scheme].fullmatch(bucket) or (scheme == "hdfs" and not folder):
        problem = "that names no place"
    else:
        return RemotePlace(scheme, bucket, folder)
    raise ConfigError(f"storage {uri!r}: {problem}; write {_FORMS[scheme]}", storage=uri)


def refuse_userinfo(uri: str) -> None:
    """Refuse an address with a user or a password in it, without repeating it: addresses are shown, logged and stored."""
    scheme, slashes, rest = uri.partition("://")
    userinfo, at, _ = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")
    if slashes and at and (":" in userinfo or scheme in REMOTE_SCHEMES):
        raise ConfigError(
            f"the storage address {scheme}://... has a user name or a key before its '@', and addresses are shown and stored: leave it "
            "out; credentials come from the environment or the platform",
            scheme=scheme,
        )
