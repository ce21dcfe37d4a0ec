"""A context of the `nats` command line tool: a JSON file with the settings of one system. NATS_CONTEXT names it.

Pure: the environment and the reader of files are passed in. Errors name the file and the field, never a value.
"""

from __future__ import annotations

import base64
import binascii
import json
import os.path
import re
from collections.abc import Callable, Mapping
from typing import Any

from .auth import RawCredentials

# What would change how the connection is made, and is not supported: better refused than left out.
_UNSUPPORTED = ("nsc", "socks_proxy", "windows_cert_store")
_REFERENCE = re.compile(r"(file|env|op|nsc)://(.*)", re.IGNORECASE | re.DOTALL)
_DATA = re.compile(r"data:[^,]*;base64,(.*)", re.IGNORECASE | re.DOTALL)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


def load_context(name: str, environ: Mapping[str, str], read: Callable[[str], str]) -> dict[str, tuple[Any, str]]:
    """The settings of the context `name`, which may be a path, with their source."""
    path = _path(name, environ)
    context = _Context(path, _fields(path, read), environ, read)
    return {keyword: (value, f"the context {path!r}") for keyword, value in context.settings().items()}


def _path(name: str, environ: Mapping[str, str]) -> str:
    """The file of a context: a path, or a name below the configuration directory."""
    if "/" in name or "\\" in name or name.endswith(".json"):
        return _expanded(name, environ)
    folder = environ.get("XDG_CONFIG_HOME") or os.path.join(_home(environ), ".config")
    return os.path.join(folder, "nats", "context", f"{name}.json")


def _home(environ: Mapping[str, str]) -> str:
    return environ.get("HOME") or os.path.expanduser("~")


def _expanded(path: str, environ: Mapping[str, str]) -> str:
    """`path` with its variables, and its home directory, as the `nats` tool reads it."""
    path = _VARIABLE.sub(lambda found: environ.get(found[1] or found[2], ""), path)
    return _home(environ) + path[1:] if path == "~" or path.startswith(("~/", "~\\")) else path


def _fields(path: str, read: Callable[[str], str]) -> dict[str, Any]:
    try:
        text, error = read(path), ""
    except OSError as failed:
        error = failed.strerror or type(failed).__name__
    except ValueError:  # not UTF-8, or a NUL in the path; the text of the error would show the contents
        error = "it is not a text file"
    if error:
        raise ValueError(f"cannot read the context {path!r} (NATS_CONTEXT): {error}")
    try:
        fields = json.loads(text)
    except ValueError as failed:  # not chained: it has the whole text
        place = (getattr(failed, "lineno", 0), getattr(failed, "colno", 0))
        fields = None
    else:
        place = (1, 1)
    if not isinstance(fields, dict):
        raise ValueError(f"the context {path!r} is not a JSON object (line {place[0]}, column {place[1]})")
    return fields


class _Context:
    def __init__(
        self, path: str, fields: dict[str, Any], environ: Mapping[str, str], read: Callable[[str], str]
    ) -> None:
        self._path = path
        self._fields = fields
        self._environ = environ
        self._read = read

    def settings(self) -> dict[str, Any]:
        """Keywords of connect() and their values."""
        for field in _UNSUPPORTED:
            if self._text(field):
                raise self._error(field, "is not supported")
        settings: dict[str, Any] = {
            "servers": self._text("url"),
            "token": self._secret("token"),
            "tls_ca": self._file("ca"),
            "tls_cert": self._file("cert"),
            "tls_key": self._file("key"),
            "inbox_prefix": self._text("inbox_prefix"),
            **self._credentials(),
        }
        first = self._fields.get("tls_first")
        if first is not None and not isinstance(first, bool):
            raise self._error("tls_first", "must be true or false")
        settings["tls_handshake_first"] = first
        return {name: value for name, value in settings.items() if value}

    def _credentials(self) -> dict[str, Any]:
        """Of several kinds the `nats` tool uses the first, in this order."""
        if self._text("user"):
            return {"user": self._text("user"), "password": self._secret("password")}
        if self._text("creds"):
            text = self._contents("creds")
            return {"user_credentials": self._file("creds") if text is None else RawCredentials(text)}
        if self._text("nkey"):
            text = self._contents("nkey")
            return {"nkeys_seed": self._file("nkey")} if text is None else {"nkeys_seed_str": text}
        jwt, seed = self._secret("user_jwt"), self._secret("user_seed")
        if not jwt:
            return {}
        if not seed:
            raise self._error("user_jwt", "needs user_seed")
        return {"user_credentials": credentials_text(jwt, seed)}

    def _error(self, field: str, what: str) -> ValueError:
        return ValueError(f"the field {field!r} of the context {self._path!r} {what}")

    def _text(self, field: str) -> str:
        value = self._fields.get(field)
        if value is not None and not isinstance(value, str):
            raise self._error(field, "must be a string")
        return value or ""

    def _file(self, field: str) -> str:
        """A path, maybe as file://…"""
        text = self._text(field)
        reference = _REFERENCE.fullmatch(text)
        if _DATA.fullmatch(text) or (reference is not None and reference[1].lower() != "file"):
            raise self._error(field, "must be the path of a file")
        return _expanded(text if reference is None else reference[2], self._environ)

    def _secret(self, field: str) -> str:
        """A value that stands there itself, or in what it refers to."""
        text = self._text(field)
        reference = _REFERENCE.fullmatch(text)
        if reference is not None and reference[1].lower() == "file":
            path, contents = self._file(field), ""
            try:
                contents = self._read(path).rstrip("\r\n")
            except (OSError, ValueError):
                pass  # and not from here: the error must not carry the contents
            if not contents:
                raise self._error(field, f"refers to {path!r}, which cannot be read or is empty")
            return contents
        contained = self._contents(field)
        return text if contained is None else contained.rstrip("\r\n")

    def _contents(self, field: str) -> str | None:
        """What env://NAME or data:;base64,… holds; None when the field is something else."""
        text = self._text(field)
        data, reference = _DATA.fullmatch(text), _REFERENCE.fullmatch(text)
        if data is not None:
            try:
                return base64.b64decode(data[1], validate=True).decode()
            except (binascii.Error, ValueError):
                pass
            raise self._error(field, "is not base64 of a text")
        if reference is None or reference[1].lower() == "file":
            return None
        if reference[1].lower() != "env":
            raise self._error(field, f"has the scheme {reference[1].lower()}://, which is not supported")
        contents = self._environ.get(reference[2])
        if not contents:
            raise self._error(field, "refers to an environment variable that is not set")
        return contents


def credentials_text(jwt: str, seed: str) -> RawCredentials:
    """The text of a credentials file with this JWT and seed."""
    return RawCredentials(
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
