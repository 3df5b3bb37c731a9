"""Lines of the user's code: where an exception went through it, and from where it called Penstock. Both."""

from __future__ import annotations

import inspect
import linecache
import re
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType

import msgspec

from penstock.wording import storable

_OWN = str(Path(__file__).resolve().parent)
_SPARK = re.compile(r"(?:(?:site|dist)-packages|/python|pyspark\.zip|py4j-[\w.-]+\.zip)/(?:pyspark|py4j)/")
_INSTALLED = tuple(
    path.rstrip("/") + "/"
    for path in {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_PACKAGES = re.compile(r"/(?:site|dist)-packages/|/lib/python3[^/]*/")
"""On any machine."""
_MOST_CHARACTERS = 120

_NAMES = (
    r"password|passwd|passphrase|(?<![a-z])(?:db|user)?pass(?:code)?(?![a-z_])|pwd|(?<![a-z])pw(?![a-z_])|secret|token|credential"
    r"|(?:api|access|account|private|shared|storage|encryption)[-_.]?key|authorization|cookie|\bsas\b|signature|\bsig\b"
)
_QUOTE = r"""(?:\\{0,9}["']|%2[27])"""
"""A quote. It may be escaped, as in JSON within JSON, or percent-encoded."""
_GIVES = (
    rf"""{_QUOTE}\s{{0,9}},\s{{0,9}}(?=[bfru]{{0,2}}{_QUOTE})"""
    rf"""|{_QUOTE}?\]?\s{{0,9}}(?::\s?[\w.\[\]| ]{{1,40}}=(?!=)|=>|[=:]|%3[AD])\s{{0,9}}"""
)
"""Between a name and its value: `name=`, `"name": `, `name: str = `, `"name" => `, or `"name", ` as in `option("name", "value")`."""
_VALUE = (
    r"""(?:(?P<escaped>\\{1,9}["']|%2[27])(?:(?!(?P=escaped)).)*|(?P<quote>["'])(?:\\.|(?P=quote){2}|(?!(?P=quote)).)*"""
    r"""|\w{0,40}(?:\{[^}\n]*\}|\[[^\]\n]*\]|\([^)\n]*\))"""
    r"""|(?!-----BEGIN)(?:(?:Bearer|Basic|Digest|Token)\s{1,9})?(?:[^"',;&)\s]|[,;&)](?!$|[\s"',;&)\]}]|[\w.-]{1,40}[=:]))*)"""
)
"""A value: in quotes, in brackets, or up to a blank or a separator after which something else begins."""
_SECRET = re.compile(
    r"""(//[^:/@\s"']{0,200}(?::|%3A)|%2F%2F[^@\s"'%]{0,200}%3A)[^\s"']{0,1000}(?:["']\w[^\s"'@]{0,200})?(@|%40)"""
    rf"""|((?:{_NAMES})[\w.-]{{0,40}}(?:{_GIVES})(?:[bfru]{{1,2}}(?=["']))?|--[\w-]{{0,40}}(?:{_NAMES})[\w-]{{0,40}}\s{{1,9}}"""
    rf"""|(?:password|identified\s{{1,9}}by)\s{{1,9}}(?=["'])){_VALUE}"""
    r"""|(\b(?:Bearer|Basic|Digest)\s{1,9}|https?://(?=[^:/@\s"']{8,200}@))[\w.~+/=-]{8,}"""
    r"""|(-----BEGIN [\w ]{0,40}PRIVATE KEY-----)(?s:.*?)(?=-----END|\Z)""",
    re.IGNORECASE,
)
"""In a text: what follows the user in an address, or the name of a password, key or token; and private keys."""

AT = "  at: "
"""How a note begins that names a place."""


class Place(msgspec.Struct, frozen=True):
    """A line of the user's program."""

    file: str
    line: int
    function: str = ""
    text: str = ""
    """What stands there; '' where the file cannot be read."""

    def __str__(self) -> str:
        inside = f", in {self.function}" if self.function and not self.function.startswith("<") else ""
        return f"{self.file}:{self.line}{inside}{f': {self.source}' if self.source else ''}"

    @property
    def short(self) -> str:
        """The file name without its folder, and the line."""
        return f"{Path(self.file).name}:{self.line}"

    @property
    def source(self) -> str:
        """What stands there, read here if it could not be read where the place was found."""
        return self.text or _source(self.file, self.line)


def place_in_user_code(traceback: TracebackType | None) -> Place | None:
    """The last line of the user's program that an exception went through; None when it met none, or only installed packages."""
    own = [one for one in user_frames(traceback) if not _is_installed(one[0].f_code.co_filename)]
    return place_of_frame(*own[-1]) if own else None


def user_frames(traceback: TracebackType | None) -> list[tuple[FrameType, int]]:
    """The frames of a traceback that are neither of Penstock nor of Spark, outermost first, with their lines."""
    found = []
    while traceback is not None:
        if not _is_ours(traceback.tb_frame.f_code.co_filename):
            found.append((traceback.tb_frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    return found


def calling_place() -> Place | None:
    """The line of the user's program that called Penstock just now."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - what `inspect.currentframe` does, on any Python that has frames
    while frame is not None and _is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else place_of_frame(frame, frame.f_lineno)


def place_of_frame(frame: FrameType, line: int) -> Place:
    """Where a frame is, or was when an exception left it."""
    file = frame.f_code.co_filename
    return Place(file, line, frame.f_code.co_name, _source(file, line))


def place_of_function(function: Callable[..., object]) -> Place | None:
    """Where a function or method begins; None if it is not written in Python."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return None
    return Place(
        code.co_filename, code.co_firstlineno, code.co_name, _source(code.co_filename, code.co_firstlineno)
    )


def _source(file: str, line: int) -> str:
    text = without_secrets(linecache.getline(file, line).strip())
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


def _is_ours(file: str) -> bool:
    return file.startswith(_OWN) or _SPARK.search(file) is not None


def _is_installed(file: str) -> bool:
    return file.startswith(("<frozen", *_INSTALLED)) or _PACKAGES.search(file) is not None


_FRAME = re.compile(r'^ *File "(.+)", line (\d+), in (.+)$', re.MULTILINE)


def place_in_text(text: str) -> Place | None:
    """The same as `place_in_user_code`, of a traceback that arrived as text."""
    frames = [Place(file, int(line), function) for file, line, function in _FRAME.findall(text)]
    own = [one for one in frames if not _is_ours(one.file) and not _is_installed(one.file)]
    return own[-1] if own else None


def without_secrets(text: str) -> str:
    """The same text, with dots in place of passwords and the like, as far as they can be told by what stands before them."""
    return _SECRET.sub(_masked, text)


def safe_text(text: str) -> str:
    """A text of others as logs and storage take it: without secrets, and encodable."""
    return without_secrets(storable(text))


def _masked(found: re.Match[str]) -> str:
    before = found[1] or found[3] or found[6] or found[7]
    return f"{before}{found['quote'] or found['escaped'] or ''}...{found[2] or ''}"
