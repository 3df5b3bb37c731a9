"""Errors of object stores and of HDFS in a line: what happened, and what to do. Driver and executors.

The texts of obstore have forty lines, among them the address with its query, and what a server says about signatures; those of HDFS have
Java's trace. Only the code and the sentence of the server are taken from them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_CODE = re.compile(r"<Code>([^<]{1,80})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,200})</Message>")
_STATUS = re.compile(r"status code: (\d{3})")
_REASON = re.compile(r'(?:message|error): "([^"]{1,120})"')
_TIMED_OUT = re.compile(r"kind: Timeout|TimedOut|operation timed out")
_METADATA_SERVICE = re.compile(r"169\.254\.169\.254|metadata\.google\.internal")
_MISSING = frozenset({"", "NoSuchKey", "BlobNotFound", "404"})
"""What servers say of an object that is not there. An answer to HEAD has no code. Everything else that is missing is more than it."""

_BUCKET = "the bucket does not exist; check its name, or create it"
_DENIED = "permission denied; the credentials need the rights to read, write, delete and list objects there"
_CREDENTIALS = (
    "the credentials are refused; check them in the environment of the driver and of every executor"
)
_EXPIRED = "the credentials have expired; renew them"
_REGION = "the bucket is in another region; set its region, for S3 in AWS_REGION"
_CLOCK = "the clock of this machine differs too much from that of the store; set it"
_BUSY = "the store asks for fewer requests or is overloaded; this passes"
_TIMEOUT = "no answer in time; check the network and whether the store is up"
_NOT_FOUND = (
    "no credentials were found; set them in the environment, for S3 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a "
    "role"
)

_ADVICE = {
    "NoSuchBucket": _BUCKET,
    "ContainerNotFound": _BUCKET,
    "AccessDenied": _DENIED,
    "AllAccessDisabled": _DENIED,
    "AuthorizationPermissionMismatch": _DENIED,
    "AuthorizationFailure": _DENIED,
    "InvalidAccessKeyId": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "XAdminUserNotFound": _CREDENTIALS,
    "AuthenticationFailed": _CREDENTIALS,
    "InvalidToken": _CREDENTIALS,
    "ExpiredToken": _EXPIRED,
    "RequestTimeTooSkewed": _CLOCK,
    "PermanentRedirect": _REGION,
    "TemporaryRedirect": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "IllegalLocationConstraintException": _REGION,
    "301": _REGION,
    "401": _CREDENTIALS,
    "403": _DENIED,
    "SlowDown": _BUSY,
    "ServiceUnavailable": _BUSY,
    "ServerBusy": _BUSY,
    "TooManyRequests": _BUSY,
    "429": _BUSY,
    "503": _BUSY,
}
_FINAL = frozenset({_BUCKET, _DENIED, _CREDENTIALS, _EXPIRED, _REGION, _CLOCK, _NOT_FOUND})
"""Settings are wrong: nothing was stored, and another attempt would meet it again."""


@dataclass(frozen=True)
class StoreFailure:
    """What a call of obstore failed with."""

    code: str
    """Of the server, or the HTTP status; '' if there was no answer."""
    text: str
    denied: bool
    """Whether a setting, a right or a login is wrong, and the store itself works."""

    @property
    def is_missing_object(self) -> bool:
        """Whether an object is not there, and everything else is."""
        return self.code in _MISSING


def failure_of(error: BaseException) -> StoreFailure:
    """Read an error of obstore."""
    text = str(error)
    answer, _, details = text.partition("\n\nDebug source")
    status = _first(_STATUS, answer)
    code = _first(_CODE, answer) or ("" if status == "404" else status)
    if _METADATA_SERVICE.search(answer):
        return StoreFailure(code or "credentials", _NOT_FOUND, denied=True)
    if status:
        advice = _ADVICE.get(code) or _ADVICE.get(status)
        said = ": ".join(part for part in (code or status, _first(_MESSAGE, answer)) if part)
        shown = f"{advice} ({said})" if advice else f"the store answered {said}"
        return StoreFailure(code, shown, denied=advice in _FINAL)
    if "incorrectly configured region" in answer:  # of obstore itself, about a redirect
        return StoreFailure("redirect", _REGION, denied=True)
    if _TIMED_OUT.search(text):
        return StoreFailure("timeout", _TIMEOUT, denied=False)
    reason = _first(_REASON, details) or answer.splitlines()[0].rpartition(" - ")[2][:160]
    return StoreFailure(
        "unreachable",
        f"it cannot be reached ({reason}); check the network and the address of the store",
        denied=False,
    )


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""


# ── HDFS ───────────────────────────────────────────────────────────────────────────────────────

_RPC = re.compile(r'RPCError\("([\w.$]+)", "(.*)', re.DOTALL)
_HDFS_ADVICE = {
    "AccessControlException": "permission denied; let this user read and write there",
    "SafeModeException": "the name node is in safe mode; this passes when its data nodes have reported, or an operator has to look",
    "StandbyException": "no name node is active",
    "QuotaExceededException": "the quota of the folder is used up",
    "DSQuotaExceededException": "the quota of the folder is used up",
    "NSQuotaExceededException": "the quota of the folder is used up",
    "InvalidPathException": "HDFS allows no such name; a colon is not allowed",
}
_HDFS_WORDS = {
    "No NameNode hosts found": "no name node is known by this name; set HADOOP_CONF_DIR, or write hdfs://host:port/path",
    "No fs.defaultFS setting found": "no file system is set; set HADOOP_CONF_DIR, or write hdfs://host:port/path",
    "Connection refused": "the name node does not answer there; check host and port, and whether it is up",
    "failed to lookup address": "the host is unknown; check its name",
    "GSSAPI": "Kerberos refuses the login; get a ticket with kinit",
    "could only be written to 0": "no data node takes the file; see whether they are up, and have space",
}
_HDFS_SETTINGS = (
    "AccessControlException",
    "InvalidPathException",
    "No NameNode",
    "No fs.defaultFS",
    "GSSAPI",
)


def hdfs_failure_of(error: BaseException) -> tuple[str, bool]:
    """What happened and what to do, in a line without Java's trace; and whether a setting or a right is wrong."""
    text = str(error)
    found = _RPC.search(text)
    kind = found[1].rpartition(".")[2] if found else type(error).__name__
    said = (found[2] if found else text).split("\n")[0].split("\\n")[0].split('")')[0].strip()[:200]
    advice = _HDFS_ADVICE.get(kind) or next(
        (advice for words, advice in _HDFS_WORDS.items() if words in text), ""
    )
    denied = isinstance(error, PermissionError) or any(word in f"{kind} {text}" for word in _HDFS_SETTINGS)
    if isinstance(error, PermissionError):
        advice = _HDFS_ADVICE["AccessControlException"]
    return (f"{advice} ({said})" if advice else f"{kind}: {said}"), denied
