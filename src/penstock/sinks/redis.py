"""The sink `Redis`: upserts by key into hashes, texts or JSON texts. Tasks, or the driver; see `upsert`.

Fences keep a task or a driver that was presumed dead from writing old values to Redis:

    _penstock:<job>:<sink>      "<run> <batch>", the newest that has written
    _penstock:<job>             "<run> 0", the newest run in which any sink has written at once
    _penstock:<job>/staged      the same for rows that are written with the checkpoint

Each call reads two of them under WATCH and writes in the same MULTI. An older run is refused; a process that was frozen between the
two steps finds that a key has changed. There is one fence per sink, not one per value, so that values are exactly what the user asked for.

The two keys of the job cover a sink whose uid changed: a task of an older run, which used the old uid, is refused as well. There are two
because a run repeats what an older run promised, and may already have written at once by then. For staged rows this cannot happen: a run
commits its own staged rows only with a checkpoint that supersedes the older promise.

A prepared batch has the column of keys first, then whether the key is deleted, then the values. Numbers are written in
digits (a boolean is 1 or 0; NaN and the infinities are nan, inf and -inf), times in ISO 8601, decimals with all digits, bytes as they
are, lists and structs as JSON. Redis has no null: a null field is removed from its hash, and a null text is deleted with its key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from string import Formatter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.config import Duration, seconds
from penstock.errors import BadRecordError, ConfigError, CorruptStateError, FencedError, UnavailableError
from penstock.lazy_imports import optional_package
from penstock.sinks.bad_rows import refuse_large, refuse_null_keys, value_bytes
from penstock.sinks.json_text import json_lines, unsupported_in_json
from penstock.sinks.sqlite_table import storage_batch, storage_class
from penstock.sinks.upsert import AT_ONCE, KeyedWriter, RowOrigin, UpsertSink
from penstock.state.ddl import spark_type


class KeyTemplate:
    """A text such as 'views:{app}' with columns in braces; '{{' stands for a brace."""

    def __init__(self, template: str) -> None:
        if not isinstance(template, str):
            raise ConfigError(f"key must be a text such as 'views:{{app}}', not {template!r}", key=template)
        self.template = template
        try:
            self.parts = list(Formatter().parse(template))
        except ValueError as error:
            raise ConfigError(f"key {template!r} cannot be parsed: {error}", key=template) from error
        self.columns = [column for _, column, _, _ in self.parts if column is not None]
        odd = any(spec or conversion for _, _, spec, conversion in self.parts)
        if not self.columns or "" in self.columns or odd:
            raise ConfigError(
                f"key {template!r} must have at least one column name in braces, and nothing else in them, such as 'views:{{app}}'",
                key=template,
            )

    def check(self, schema: pa.Schema) -> None:
        """Refuse columns that are missing or cannot be part of a key."""
        for name in self.columns:
            check_column("key", name, schema)
            kind = schema.field(name).type
            if storage_class(kind) not in {"INTEGER", "TEXT"} or pa.types.is_nested(kind):
                raise ConfigError(
                    f"column {name!r} of type {spark_type(kind)} cannot be part of the key {self.template!r}: cast it to "
                    "a string or a whole number",
                    column=name,
                )

    def texts(self, stored: pa.RecordBatch) -> pa.Array:
        """Return the key of each row; a null in it is refused."""
        refuse_null_keys(stored, self.columns, repr(self.template))
        pieces: list[pa.Array | pa.Scalar] = []
        for literal, column, _, _ in self.parts:
            pieces.append(pa.scalar(literal, pa.large_string()))
            if column is not None:
                pieces.append(stored.column(column).cast(pa.large_string()))
        return pc.binary_join_element_wise(*pieces, pa.scalar("", pa.large_string()))


class RedisForm:
    """The columns that are written and their form: `kind` is 'hash', 'text' or 'json'."""

    def __init__(self, kind: str, columns: Sequence[str] | None) -> None:
        self.kind = kind
        self.columns = columns
        """None means all columns except those of the key and `delete_when`."""

    def written(self, names: Sequence[str], taken: set[str]) -> list[str]:
        """Return the names of the columns to write."""
        if self.columns is not None:
            return list(self.columns)
        return [name for name in names if name not in taken]

    def check(self, schema: pa.Schema, taken: set[str]) -> None:
        """Refuse columns that are missing or cannot be written."""
        columns = self.written(schema.names, taken)
        if not columns:
            raise ConfigError(
                "there is no column left to write: all are part of the key", columns=schema.names
            )
        for name in columns:
            check_column("what is written", name, schema)
            part = unsupported_in_json(schema.field(name).type)
            if part is not None:
                raise ConfigError(
                    f"column {name!r} cannot be written to Redis: there is no form for {part}; cast or drop it before write_to",
                    column=name,
                )

    def values(self, batch: pa.RecordBatch, stored: pa.RecordBatch, taken: set[str]) -> pa.RecordBatch:
        """Return the values to write: one column for each field, or a single column."""
        columns = self.written(batch.schema.names, taken)
        if self.kind == "json":
            lines = json_lines(batch.select(columns)).split(b"\n")[: batch.num_rows]
            return pa.RecordBatch.from_arrays([pa.array(lines, pa.large_binary())], names=["json"])
        return stored.select(columns)


def stored_as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert every column to integers, floating point numbers, text or bytes."""
    try:
        return storage_batch(batch, knows_nan=True)
    except BadRecordError as error:
        raise BadRecordError(
            f"a row cannot be written to Redis: {error.__cause__ or error}", **error.facts
        ) from error


def check_column(part: str, name: str, schema: pa.Schema) -> None:
    """Refuse a name that is not exactly one column."""
    if schema.names.count(name) != 1:
        raise ConfigError(
            f"{part} names the column {name!r}, but the columns are {schema.names}",
            column=name,
            columns=schema.names,
        )


PREFIX = "_penstock:"
_NUMBERS = re.compile(rb"(\d+) (\d+)")
_SHOWN = 100


def write_fenced(
    client: Any, origin: RowOrigin, fill: Callable[[Any], None], *, changed: type[Exception]
) -> None:
    """Run the commands of `fill` in one MULTI, unless a newer origin has written. `changed` is what redis-py raises when a fence moved."""
    fences = _fences(origin)
    own = (origin.run, origin.batch)
    while True:
        with client.pipeline(transaction=True) as pipeline:
            pipeline.watch(*fences)
            found = {name: _read(name, pipeline.get(name)) for name in fences}
            for newest in found.values():
                if newest is not None and newest > own:
                    raise _fenced(list(fences), own, newest)
            pipeline.multi()
            for name, reached in fences.items():
                if found[name] != reached:
                    pipeline.set(name, f"{reached[0]} {reached[1]}")
            fill(pipeline)
            try:
                pipeline.execute()
            except changed:
                continue  # another writer moved a fence meanwhile; fences only move forward
            return


def _fences(origin: RowOrigin) -> dict[str, tuple[int, int]]:
    """Return the fences, and their values after this origin has written."""
    job = f"{PREFIX}{origin.job}"
    of_run = f"{job}/staged" if origin.staged else job
    return {f"{job}:{origin.sink}": (origin.run, origin.batch), of_run: (origin.run, 0)}


def check_fence(client: Any, *, changed: type[Exception]) -> None:
    """Run the same commands on a key that expires after a millisecond, so that missing rights are found before the query starts.

    The key of another check may expire under WATCH. The server has accepted all commands then, too.
    """
    with client.pipeline(transaction=True) as pipeline:
        pipeline.watch(f"{PREFIX}check")
        pipeline.get(f"{PREFIX}check")
        pipeline.multi()
        pipeline.set(f"{PREFIX}check", "", px=1)
        with suppress(changed):
            pipeline.execute()


def _read(name: str, found: bytes | None) -> tuple[int, int] | None:
    if found is None:
        return None
    numbers = _NUMBERS.fullmatch(found)
    if numbers is None:
        raise CorruptStateError(
            f"nothing was written to Redis: the key {name!r} holds {found[:_SHOWN]!r}, not the run and batch that wrote last; if no other "
            "start of the job is running, delete the key",
            key=name,
        )
    return int(numbers[1]), int(numbers[2])


def _fenced(names: Sequence[str], own: tuple[int, int], newest: tuple[int, int]) -> FencedError:
    by = f"run {newest[0]}, batch {newest[1]}" if newest[1] else f"run {newest[0]}"
    of_sink, of_run = names
    return FencedError(
        f"nothing was written to Redis: {by} of the job has already written, and this is run {own[0]}, batch {own[1]}, which was presumed "
        f"dead; if this run is the newest because the job's storage was restored from an older copy, delete the keys {of_sink!r} and "
        f"{of_run!r}",
        key=of_sink,
        run=own[0],
        newest_run=newest[0],
    )


ROWS_PER_CALL = 500
LONGEST_VALUE_BYTES = 512 << 20
"""The default of proto-max-bulk-len on a server."""


class Redis(UpsertSink):
    """Writes keys of a Redis or Valkey server. Writing the same rows twice does no harm.

    `key` is a text with columns in braces, such as "views:{app}". The value is a hash with the columns `fields` (by default
    all that are not in the key), or the column `value` as a text, or the columns `json` as a JSON object. `expire` gives each
    written key that time to live. A row whose boolean column `delete_when` is true deletes its key. `visible` is "at once" or
    "with the checkpoint"; the second needs `staging`, a folder that the driver and all executors share.
    """

    def __init__(
        self,
        address: str,
        *,
        key: str,
        fields: Sequence[str] | None = None,
        value: str | None = None,
        json: Sequence[str] | None = None,
        expire: Duration | None = None,
        delete_when: str | None = None,
        visible: str = AT_ONCE,
        staging: str | os.PathLike[str] | None = None,
        timeout: Duration = "10s",
    ) -> None:
        writer = RedisWriter(
            RedisServer(address, seconds("timeout", timeout, exclusive=True)),
            KeyTemplate(key),
            _form(fields, value, json),
            expire_ms=_milliseconds(expire),
            delete_when=delete_when,
        )
        super().__init__(writer, visible=visible, staging=staging)


class RedisServer:
    """The address of the server; its password is never shown."""

    def __init__(self, address: str, timeout_s: float) -> None:
        redis = _package()
        try:
            settings = redis.connection.parse_url(address)
        except (ValueError, AttributeError, TypeError):
            # The message of the parser may hold a part of the password.
            raise ConfigError(
                "address is not the address of a Redis server: use redis://[user:password@]host:port/database, rediss://... or "
                "unix://path; a special character in a password is written as %XX"
            ) from None
        self._address = address
        self._timeout_s = timeout_s
        self._password: str | None = settings.get("password")
        place = settings.get("path") or f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}"
        self.shown = f"{place}, database {settings.get('db', 0)}"

    @contextmanager
    def client(self) -> Iterator[Any]:
        """Open a client, and translate its errors into those of Penstock."""
        redis = _package()
        try:
            with redis.Redis.from_pool(redis.ConnectionPool(**self._settings(redis))) as client:
                yield client
        except redis.exceptions.RedisError as error:
            raise self._translated(redis, error) from error

    def _settings(self, redis: Any) -> dict[str, Any]:
        """Return the settings of the address, with responses as bytes, because the fence reads them."""
        retry = redis.retry.Retry(redis.backoff.NoBackoff(), 1)  # Penstock retries by itself
        timeouts = {"socket_timeout": self._timeout_s, "socket_connect_timeout": self._timeout_s}
        return {
            **timeouts,
            **redis.connection.parse_url(self._address),
            "decode_responses": False,
            "retry": retry,
        }

    def _translated(self, redis: Any, error: Exception) -> Exception:
        text = self._without_password(str(error))
        refused = (
            redis.exceptions.AuthenticationError,
            redis.exceptions.AuthorizationError,
            redis.exceptions.NoPermissionError,
        )
        if isinstance(error, refused):
            return ConfigError(
                f"the Redis server at {self.shown} refuses this user or password: {text}; check them and the rights of the user (besides "
                f"the keys that it writes, the sink needs WATCH, GET, MULTI, SET and EXEC on the keys {PREFIX}*)",
                server=self.shown,
            )
        if "DB index" in text:
            return ConfigError(
                f"the Redis server at {self.shown} has no such database: {text}; use another number at the end of the address",
                server=self.shown,
            )
        if "WRONGTYPE" in text:
            return BadRecordError(
                f"a key on the Redis server at {self.shown} holds a value of another kind: {text}; delete it, or choose other keys",
                server=self.shown,
            )
        return UnavailableError(
            f"the Redis server at {self.shown} cannot be used now: {text}; check the server and the network",
            server=self.shown,
            cause=text,
        )

    def _without_password(self, text: str) -> str:
        return text.replace(self._password, "***") if self._password else text


class RedisWriter(KeyedWriter):
    """Writes rows in one form of value; see `Redis`."""

    fenced = True

    def __init__(
        self,
        server: RedisServer,
        key: KeyTemplate,
        form: RedisForm,
        *,
        expire_ms: int | None,
        delete_when: str | None,
    ) -> None:
        self._server = server
        self._key = key
        self._form = form
        self._expire_ms = expire_ms
        self._delete_when = delete_when
        self._taken = {*key.columns, *([delete_when] if delete_when else [])}

    def __repr__(self) -> str:
        return f"Redis({self._server.shown!r}, key={self._key.template!r})"

    def check(self, schema: pa.Schema) -> None:
        """Refuse columns that do not fit, and a server that refuses the login."""
        self._key.check(schema)
        self._form.check(schema, self._taken)
        if self._delete_when is not None:
            check_column("delete_when", self._delete_when, schema)
            kind = schema.field(self._delete_when).type
            if not pa.types.is_boolean(kind):
                raise ConfigError(
                    f"delete_when names {self._delete_when!r}, which is {spark_type(kind)}, not boolean; cast it before write_to",
                    column=self._delete_when,
                )
        with self._server.client() as client:
            client.ping()
            check_fence(client, changed=_package().exceptions.WatchError)

    def prepare(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Make keys and values; the docstring of this module says in which columns."""
        stored = stored_as_text(batch)
        keys = self._key.texts(stored)
        if self._delete_when is None:
            deleted = pa.repeat(pa.scalar(value=False), batch.num_rows)
        else:
            deleted = batch.column(self._delete_when).fill_null(fill_value=False)
        values = self._form.values(batch, stored, self._taken)
        refuse_large(value_bytes(values), LONGEST_VALUE_BYTES, "a value in Redis")
        return pa.RecordBatch.from_arrays(
            [keys, deleted, *values.columns], names=["", "", *values.schema.names]
        )

    def upsert(self, rows: pa.Table, origin: RowOrigin) -> None:
        """Write the last row of each key, some hundred keys per call; each key changes atomically."""
        keys, deleted, *columns = (column.to_pylist() for column in rows.columns)
        last = list({key: number for number, key in enumerate(keys)}.values())

        def fill(pipeline: Any, numbers: Sequence[int]) -> None:
            for number in numbers:
                if deleted[number]:
                    pipeline.delete(keys[number])
                else:
                    values = [column[number] for column in columns]
                    self._write(pipeline, keys[number], rows.column_names[2:], values)

        changed = _package().exceptions.WatchError
        with self._server.client() as client:
            for start in range(0, len(last), ROWS_PER_CALL):
                some = partial(fill, numbers=last[start : start + ROWS_PER_CALL])
                write_fenced(client, origin, some, changed=changed)

    def _write(self, pipeline: Any, key: str, names: Sequence[str], values: Sequence[Any]) -> None:
        if self._form.kind == "hash":
            self._write_hash(pipeline, key, dict(zip(names, values, strict=True)))
        elif values[0] is None:
            pipeline.delete(key)
        else:
            pipeline.set(key, values[0], px=self._expire_ms)

    def _write_hash(self, pipeline: Any, key: str, fields: dict[str, Any]) -> None:
        present = {name: value for name, value in fields.items() if value is not None}
        absent = [name for name in fields if name not in present]
        if present:
            pipeline.hset(key, mapping=present)
        if absent:
            pipeline.hdel(key, *absent)
        if self._expire_ms is not None:
            pipeline.pexpire(key, self._expire_ms)


def _package() -> Any:
    return optional_package("redis", needed_by="sinks.Redis", extra="redis")


def _form(fields: Sequence[str] | None, value: str | None, json: Sequence[str] | None) -> RedisForm:
    given = [
        name
        for name, setting in (("fields", fields), ("value", value), ("json", json))
        if setting is not None
    ]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} exclude each other: give one of them", settings=given)
    if value is not None:
        return RedisForm("text", [value])
    if json is not None:
        return RedisForm("json", _names("json", json))
    return RedisForm("hash", None if fields is None else _names("fields", fields))


def _names(setting: str, names: Sequence[str]) -> list[str]:
    if isinstance(names, str) or not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{setting} must be a list of column names, not {names!r}", setting=setting)
    return list(names)


def _milliseconds(expire: Duration | None) -> int | None:
    return None if expire is None else int(seconds("expire", expire, minimum_s=0.001) * 1000)
