"""The API reference: Markdown pages made from the signatures and docstrings of the public names, without importing them. Needs griffe."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import griffe

GROUPS = {
    "Jobs and streams": (
        "Job JobHandle Status Progress Completed Guarantee Stream KeyedStream WindowedStream ConnectedStreams "
        "BroadcastConnectedStream ConnectedKeyedStreams BroadcastStream Written local_session show_progress"
    ),
    "Settings": (
        "Checkpointing Mode EXACTLY_ONCE AT_LEAST_ONCE AT_MOST_ONCE OnCancel RETAIN_ON_CANCELLATION DELETE_ON_CANCELLATION "
        "OnBadRecord Duration RestartStrategy exponential_delay fixed_delay failure_rate no_restart Storage LocalStorage "
        "StateBackend FilesystemBackend MemoryBackend RocksdbBackend"
    ),
    "Own code": (
        "KeyedProcess BatchProcess Process KeyedCoProcess WindowProcess Context Row Rows SideOutput Timer BatchKeys BatchRows "
        "BatchState BatchMap BatchList BatchColumns BatchTimers"
    ),
    "State": (
        "ValueState ListState MapState ReducingState AggregatingState AggregateFunction RawState OperatorListState BroadcastState "
        "TimeToLive"
    ),
    "Windows": "tumbling sliding session count TimeWindow",
    "Savepoints": "read_savepoint read_state write_savepoint rewrite_savepoint SavedState OperatorContents",
    "Monitoring and logs": "Listener Event OpenTelemetry log_as_json JsonLines LogFields",
}
"""Which page has which name. Errors have their own page; other names are on the page of their module, or on the index page."""
_CODE = re.compile(r"(`[^`]*`)")
_LONGEST_LINE = 100


@cache
def pages_of(source: Path) -> dict[str, str]:
    """The pages of the reference by file name, for the package `penstock` in a source folder."""
    package = griffe.load("penstock", search_paths=[source], resolve_aliases=True)
    order = {
        name: (title, place) for title, listed in GROUPS.items() for place, name in enumerate(listed.split())
    }
    by_title: dict[str, dict[str, griffe.Object]] = {title: {} for title in GROUPS}
    rest: dict[str, griffe.Object] = {}
    public = sorted(_public(package), key=lambda one: order.get(one[0].rpartition(".")[2], ("", 0))[1])
    for qualified, found in public:
        module, _, name = qualified.rpartition(".")
        title = "Errors" if name.endswith("Error") else order.get(name, (None, 0))[0]
        if title is None and module == "ps":
            rest[qualified] = found
        else:
            by_title.setdefault(title or module.rpartition(".")[2].capitalize(), {})[qualified] = found
    paths = {found.path for names in by_title.values() for found in names.values()}
    pages = {_file(title): _page(title, names, paths) for title, names in by_title.items() if names}
    return {"README.md": _index(pages, rest, paths), **pages}


def _public(package: griffe.Object) -> list[tuple[str, griffe.Object]]:
    """The names of the package, then those of its public modules that it does not have itself."""
    names = {f"ps.{name}": _own(package.members[name]) for name in sorted(_exports(package), key=str.lower)}
    found = {name: one for name, one in names.items() if not one.is_module}
    for path, module in names.items():
        if module.is_module:
            inside = {f"{path}.{name}": _own(module.members[name]) for name in _exports(module)}
            found |= {name: one for name, one in inside.items() if one not in found.values()}
    return list(found.items())


def write(source: Path, folder: Path) -> None:
    """Write the pages into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages_of(source).items():
        (folder / name).write_text(text, encoding="utf-8")


def _index(pages: dict[str, str], rest: dict[str, griffe.Object], paths: set[str]) -> str:
    lines = [
        "# API reference",
        "",
        "This reference is generated from the signatures and docstrings of the code. `ps` stands for `import penstock as ps`.",
        "",
    ]
    for file, text in pages.items():
        title = text.partition("\n")[0].removeprefix("# ")
        names = re.findall(r"^## `([^`]+)`", text, re.MULTILINE)
        lines += [f"- [{title}]({file}): {', '.join(f'`{name}`' for name in names)}"]
    for name, found in rest.items():
        lines += ["", *_entry(name, found, paths)]
    return "\n".join(lines) + "\n"


def _page(title: str, names: dict[str, griffe.Object], paths: set[str]) -> str:
    """A page with a section for each name. What a public base class describes is not repeated."""
    lines = [f"# {title}", ""]
    for name, found in names.items():
        lines += [*_entry(name, found, paths), ""]
    return "\n".join(lines)


def _entry(name: str, found: griffe.Object, paths: set[str]) -> Iterator[str]:
    """The section of one public name: its signature, its docstring and, for a class, its members."""
    yield f"## `{name}`"
    yield ""
    if isinstance(found, griffe.Class):
        yield from _class(name, found, paths)
    elif isinstance(found, griffe.Function):
        yield from _signature(name, found)
        yield from _docstring(found)
    else:
        yield from _block(f"{name} = {getattr(found, 'value', '')}")
        yield from _docstring(found)


def _class(name: str, found: griffe.Class, paths: set[str]) -> Iterator[str]:
    members = {**found.inherited_members, **found.members}
    described = {member for base in found.mro() if base.path in paths for member in base.members}
    start = members.get("__init__")
    bases = ", ".join(str(base) for base in found.bases)
    if bases:
        yield f"Bases: `{bases}`"
        yield ""
    if start is not None and start.is_function:
        yield from _signature(name, _own(start))
    elif any("dataclass" in str(one.value) for one in found.decorators) or "Struct" in bases:
        yield from _block(_call(name, [_field(one) for one in _fields(found)]))
    yield from _docstring(found)
    for member, one in members.items():
        if member.startswith("_") or member in described or one.is_module or one.is_class:
            continue
        yield from _member(found.name, member, _own(one))


def _member(owner: str, name: str, found: griffe.Object) -> Iterator[str]:
    if isinstance(found, griffe.Function):
        yield f"### `{owner}.{name}`"
        yield ""
        yield from _signature(name, found)
        yield from _docstring(found)
    elif isinstance(found, griffe.Attribute) and (found.docstring or "class-attribute" in found.labels):
        annotation = found.annotation
        value = None if str(found.value).startswith("field(") else found.value
        shown = (f": {annotation}" if annotation else "") + (f" = {value}" if value is not None else "")
        text = " ".join(_docstring(found)).strip()
        yield f"- `{name}{shown}`" + (f": {text}" if text else "")
        yield ""


def _fields(found: griffe.Object) -> Iterator[griffe.Attribute]:
    for name, one in found.members.items():
        is_field = isinstance(one, griffe.Attribute) and "property" not in one.labels
        if is_field and one.annotation is not None and not name.startswith("_"):
            yield one


def _field(one: griffe.Attribute) -> str:
    default = one.value
    if isinstance(default, griffe.ExprCall) and str(default.function) in ("field", "_option"):
        given = [arg for arg in default.arguments if isinstance(arg, griffe.ExprKeyword)]
        default = next((arg.value for arg in given if arg.name == "default"), "None")
    return f"{one.name}: {one.annotation}" + (f" = {default}" if default is not None else "")


def _signature(name: str, found: griffe.Object) -> Iterator[str]:
    if not isinstance(found, griffe.Function):
        return
    returns = f" -> {found.returns}" if found.returns is not None and found.name != "__init__" else ""
    yield from _block(_call(name, list(_parameters(found)), returns))


def _parameters(found: griffe.Function) -> Iterator[str]:
    """Each parameter as it stands in the source, without `self`; `*` before the first that is keyword-only."""
    for decorator in found.decorators:
        if str(decorator.value).startswith("_takes("):  # the fields of a class are its keyword arguments
            taken = _own(found.module[str(decorator.value)[len("_takes(") : -1]])
            yield from ("*", *(_field(one) for one in _fields(taken) if "init=False" not in str(one.value)))
            return
    starred = False
    for parameter in found.parameters:
        if parameter.name in {"self", "cls"}:
            continue
        kind = parameter.kind
        if kind is griffe.ParameterKind.keyword_only and not starred:
            starred = True
            yield "*"
        stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(
            kind, ""
        )
        starred = starred or stars == "*"
        annotation = f": {parameter.annotation}" if parameter.annotation is not None else ""
        default = f" = {parameter.default}" if parameter.default is not None and not stars else ""
        yield f"{stars}{parameter.name}{annotation}{default}"


def _call(name: str, parameters: list[str], returns: str = "") -> str:
    line = f"{name}({', '.join(parameters)}){returns}"
    if len(line) <= _LONGEST_LINE or not parameters:
        return line
    return "\n".join([f"{name}(", *(f"    {parameter}," for parameter in parameters), f"){returns}"])


def _block(code: str) -> Iterator[str]:
    yield from ("```python", code, "```", "")


def _docstring(found: griffe.Object) -> Iterator[str]:
    """The docstring as Markdown: what looks like HTML is text."""
    if found.docstring is None:
        return
    text = found.docstring.value.replace("::\n", ":\n")
    yield "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in _CODE.split(text))
    yield ""


def _exports(module: griffe.Object) -> list[str]:
    """The names in `__all__`, or where there is none, the classes that the module defines."""
    listed = getattr(module, "exports", None)
    if listed is not None:
        return [str(name) for name in listed]
    return [
        name
        for name, one in module.members.items()
        if not name.startswith("_") and isinstance(one, griffe.Class)
    ]


def _own(found: griffe.Object | griffe.Alias) -> griffe.Object:
    """The object itself, where an alias leads to it."""
    return found.final_target if isinstance(found, griffe.Alias) else found


def _file(title: str) -> str:
    return title.lower().replace(" ", "-") + ".md"
