"""Where each setting of a connection comes from: argument, URL, environment, or a context of the `nats` CLI.

An argument of connect() comes before a parameter of the URL, that before the environment, and that before the
context. Credentials are one setting: what the highest level has of them switches off those of the levels below,
except that a user and a password may come from two levels. The same holds for a client certificate and its key.

Pure: the environment and the reader of files are passed in. No error and no repr shows the value of a setting.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from ..errors import did_you_mean
from .servers import ServerAddress, parse_server, redact, unique

DEFAULT_URL = "nats://127.0.0.1:4222"
ARGUMENT = "an argument"
URL = "the URL"

ReadFile = Callable[[str], str]
"""Reads a text file; raises OSError."""


class Setting(NamedTuple):
    """A value and where it comes from. Its repr does not show the value, which may be a secret."""

    value: Any
    source: str

    def __repr__(self) -> str:
        return f"<a setting from {self.source}>"


Level = dict[str, Setting]


class Settings(NamedTuple):
    """What connect() is to use: keywords with their values, and what the log says of their sources."""

    values: dict[str, Any]
    sources: dict[str, str]
    unused: dict[str, str]
    """Credentials and TLS files that a higher level has switched off, and where they come from."""

    def __repr__(self) -> str:
        return f"<settings: {self}>"

    def __str__(self) -> str:
        """Which settings come from where, without their values."""
        used = ", ".join(f"{name} from {source}" for name, source in sorted(self.sources.items()))
        unused = ", ".join(f"{name} from {source}" for name, source in sorted(self.unused.items()))
        return f"{used}; not used: {unused}" if unused else used


def resolve(given: Mapping[str, Any], environ: Mapping[str, str], read: ReadFile) -> Settings:
    """The settings of a connection; `given` has the arguments of connect() that are not None.

    Raises ValueError or TypeError for malformed URLs and parameters, a context that cannot be read, and settings
    of one level that contradict each other.
    """
    arguments = {name: Setting(value, ARGUMENT) for name, value in given.items() if name != "servers"}
    environment = _environment(environ)
    context = _context(environ["NATS_CONTEXT"], environ, read) if environ.get("NATS_CONTEXT") else {}
    fallback = context.pop("servers", Setting(DEFAULT_URL, "the default"))
    servers = environment.pop("servers", fallback)
    if "servers" in given:
        servers = Setting(given["servers"], ARGUMENT)
    addresses, parameters = _from_source(servers)
    levels = [arguments, parameters, environment, context]
    if servers is fallback:  # the context's URL ranks with the context
        levels = [arguments, environment, parameters, context]
    chosen: Level = {}
    for level in reversed(levels):
        chosen |= {name: one for name, one in level.items() if name not in _CREDENTIALS | _TLS}
    in_urls = any(address.user is not None or address.password is not None for address in addresses)
    chosen |= _credentials(levels, parameters if in_urls else None)
    chosen |= _tls(levels)
    used = set(map(id, chosen.values()))
    lower = (item for level in levels for item in level.items() if item[0] in _CREDENTIALS | _TLS)
    unused = {name: one.source for name, one in lower if id(one) not in used}
    sources = {name: one.source for name, one in chosen.items()} | {"servers": servers.source}
    values = {name: one.value for name, one in chosen.items()} | {"servers": addresses}
    return Settings(values, sources, unused)


# --- URLs -----------------------------------------------------------------------------------------------------


def url_list(servers: object) -> list[str]:
    """The URLs of `servers`: one, several separated by commas, or an iterable. Raises TypeError, ValueError."""
    if not isinstance(servers, Iterable):
        raise TypeError(f"servers must be a URL or a list of URLs, not {type(servers).__name__}")
    urls = servers.split(",") if isinstance(servers, str) else list(servers)
    for url in urls:
        if not isinstance(url, str):
            raise TypeError(f"servers must be URLs (str), not {type(url).__name__}")
    urls = [url.strip() for url in urls if url.strip()]
    if not urls:
        raise ValueError("servers must name at least one URL")
    return urls


def _from_source(servers: Setting) -> tuple[tuple[ServerAddress, ...], Level]:
    """_read_urls(), whose errors name where the URLs come from if not from an argument."""
    try:
        return _read_urls(servers)
    except ValueError as refused:
        if servers.source == ARGUMENT:
            raise
        text = str(refused)
    raise ValueError(f"{servers.source}: {text}")


def _read_urls(servers: Setting) -> tuple[tuple[ServerAddress, ...], Level]:
    """The addresses of URLs and their parameters, which hold for the whole connection: URLs must agree on them."""
    source = URL if servers.source == ARGUMENT else f"the URL of {servers.source}"
    addresses: list[ServerAddress] = []
    parameters: Level = {}
    for url in url_list(servers.value):
        base, mark, query = url.partition("?")
        if not mark:
            addresses.append(parse_server(url))
            continue
        if "@" in query:
            raise ValueError(
                f"not a server URL: {redact(url)!r} (an @ behind a question mark: write %3F for a question mark "
                "in a user or password, %40 for an @ in a parameter)"
            )
        if re.search(r"[\x00-\x20\x7f#]", query):
            raise ValueError(f"the parameters of {redact(base)!r} contain a # or a blank: percent-encode it")
        addresses.append(parse_server(base))
        for name, value in map(_parameter, filter(None, query.split("&"))):
            if parameters.setdefault(name, Setting(value, source)).value != value:
                raise ValueError(f"the parameter {name} is given twice in server URLs, with different values")
    return unique(addresses), parameters


def _parameter(part: str) -> tuple[str, Any]:
    """A parameter of a URL, percent-decoded and converted. No error shows a value, nor what may be one."""
    name, equals, text = part.partition("=")
    # A part that is no name may be a piece of a password.
    if re.fullmatch("[a-z_]{1,40}", name) is None or not equals:
        raise ValueError("a parameter of a server URL must have the form name=value")
    if name not in PARAMETERS:
        raise ValueError(f"a server URL has the unknown parameter {name!r}{_hint(name)}")
    try:
        return name, PARAMETERS[name](unquote(text, errors="strict"))
    except ValueError as refused:  # UnicodeDecodeError among them, whose text may show a secret
        error = str(refused) if type(refused) is ValueError else "must be UTF-8, percent-encoded"
    raise ValueError(f"the parameter {name} of a server URL {error}")


def _hint(name: str) -> str:
    if name in NOT_IN_URLS:
        return ": give it to connect() as an argument"
    return did_you_mean(name, PARAMETERS) or f"; known are: {', '.join(sorted(PARAMETERS))}"


_FLAGS = {**dict.fromkeys(("true", "1", "yes", "on"), True), **dict.fromkeys(("false", "0", "no", "off"), False)}


def _text(text: str) -> str:
    if not text:
        raise ValueError("must not be empty")
    return text


def _flag(text: str) -> bool:
    if text.lower() not in _FLAGS:
        raise ValueError("must be true or false")
    return _FLAGS[text.lower()]


def _integer(text: str) -> int:
    if re.fullmatch("-?[0-9]{1,18}", text) is None:
        raise ValueError("must be a whole number")
    return int(text)


def _number(text: str) -> float:
    if re.fullmatch(r"-?([0-9]{1,18}\.?[0-9]{0,18}|\.[0-9]{1,18})", text) is None:
        raise ValueError("must be a number")
    return float(text)


PARAMETERS: dict[str, Callable[[str], Any]] = {
    "name": _text,
    "user": _text,
    "password": str,
    "token": _text,
    "user_credentials": _text,
    "nkeys_seed": _text,
    "nkeys_seed_str": _text,
    "tls": _flag,
    "tls_ca": _text,
    "tls_cert": _text,
    "tls_key": _text,
    "tls_hostname": _text,
    "tls_handshake_first": _flag,
    "connect_timeout": _number,
    "allow_reconnect": _flag,
    "max_reconnect_attempts": _integer,
    "retry_on_failed_connect": _flag,
    "reconnect_time_wait": _number,
    "reconnect_time_wait_max": _number,
    "reconnect_jitter": _number,
    "dont_randomize": _flag,
    "ignore_discovered_servers": _flag,
    "ping_interval": _number,
    "max_outstanding_pings": _integer,
    "pending_size": _integer,
    "drain_timeout": _number,
    "inbox_prefix": _text,
    "no_echo": _flag,
}
"""The keywords of connect() that may be parameters of a URL, and what converts their text."""

NOT_IN_URLS = {
    "servers",
    "user_jwt_cb",
    "signature_cb",
    "error_cb",
    "disconnected_cb",
    "reconnected_cb",
    "closed_cb",
    "discovered_server_cb",
    "lame_duck_mode_cb",
    "reconnect_to_server_handler",
}


# --- the environment ------------------------------------------------------------------------------------------

_VARIABLES = {
    "NATS_URL": "servers",
    "NATS_USER": "user",
    "NATS_PASSWORD": "password",
    "NATS_TOKEN": "token",
    "NATS_CREDS": "user_credentials",
    "NATS_NKEY": "nkeys_seed",
    "NATS_CA": "tls_ca",
    "NATS_CERT": "tls_cert",
    "NATS_KEY": "tls_key",
}
_SEED = re.compile(r"S[A-Z2-7]{57}")


def _context(name: str, environ: Mapping[str, str], read: ReadFile) -> dict[str, Setting]:
    from .context import load_context  # where there is one: most programs need none of it

    return {name: Setting(*pair) for name, pair in load_context(name, environ, read).items()}


def _environment(environ: Mapping[str, str]) -> Level:
    """The settings of the environment. A variable that is empty counts as not set."""
    level: Level = {}
    for variable, name in _VARIABLES.items():
        value = environ.get(variable)
        if value and name == "nkeys_seed" and _SEED.fullmatch(value.strip()):
            name = "nkeys_seed_str"  # the variable holds the seed itself and not the path of a file
        if value:
            level[name] = Setting(value, variable)
    return level


# --- what belongs together ------------------------------------------------------------------------------------

_PAIR = {"user", "password"}
_SIGNED = {"user_credentials", "nkeys_seed", "nkeys_seed_str", "user_jwt_cb", "signature_cb"}
_CREDENTIALS = {*_PAIR, "token", *_SIGNED}
_CERTIFICATE = {"tls_cert", "tls_key"}
_TLS = {"tls", "tls_ca", *_CERTIFICATE}


def _of(level: Level, names: set[str]) -> Level:
    return {name: setting for name, setting in level.items() if name in names}


def _credentials(levels: list[Level], with_userinfo: Level | None) -> Level:
    """Those of the highest level that has some. `with_userinfo`: the level of URLs with a user before the `@`."""
    chosen: Level = {}
    for level in levels:
        offered = _of(level, _CREDENTIALS)
        if level is with_userinfo:
            if offered and not chosen:
                names = " and ".join(sorted(offered))
                raise ValueError(f"a server URL has credentials before its @ and as parameters: {names}")
            break
        if not chosen:
            _check_contradictions(offered)
            chosen = offered
        elif set(chosen) < _PAIR:
            chosen |= _rest_of_pair(chosen, offered)
    return chosen


def _rest_of_pair(chosen: Level, offered: Level) -> Level:
    """The user or the password that is missing; not a password that stands beside another user."""
    user, password = offered.get("user"), offered.get("password")
    if "user" not in chosen:
        return {} if user is None else {"user": user}
    if password is None or (user is not None and user.value != chosen["user"].value):
        return {}
    return {"password": password}


def _check_contradictions(offered: Level) -> None:
    """Arguments are checked, too, where they are used; this says which variables or parameters contradict."""
    plain = [name for name in ("token", "user", "password") if name in offered]
    signed = [name for name in ("user_credentials", "nkeys_seed", "nkeys_seed_str") if name in offered]
    for names in (plain if "token" in offered else [], signed):
        sources = {offered[name].source for name in names}
        if len(names) > 1 and ARGUMENT not in sources:
            shown = " and ".join(f"{name} (from {offered[name].source})" for name in names)
            raise ValueError(f"{shown} contradict each other: give one of them")


def _tls(levels: list[Level]) -> Level:
    """The settings of TLS. A level that has an SSLContext, or that has TLS switched off, ends those below it."""
    chosen: Level = {}
    for level in levels:
        files = _of(level, _TLS - {"tls"})
        if chosen.keys() & _CERTIFICATE:
            files = _of(files, {"tls_ca"})
        chosen |= {name: one for name, one in files.items() if name not in chosen}
        switch = level.get("tls")
        if switch is None:
            continue
        chosen.setdefault("tls", switch)
        if switch.value is not True:
            break
    return chosen
