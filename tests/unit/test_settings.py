"""Where settings come from: arguments, URLs, environment, contexts of the `nats` CLI. No files, no environment."""

from __future__ import annotations

import base64
import inspect
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given as given_by_hypothesis
from hypothesis import strategies as st

from jetstream_sync import connect
from jetstream_sync.net.auth import RawCredentials
from jetstream_sync.net.settings import NOT_IN_URLS, PARAMETERS, Settings, resolve

SECRET = "S3cretXyzzy"
SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"

Files = Mapping[str, str]


def reader(files: Files) -> Any:
    def read(path: str) -> str:
        try:
            return files[path]
        except KeyError:
            raise FileNotFoundError(2, "No such file or directory", path) from None

    return read


def settle(
    given: dict[str, Any] | None = None, environ: dict[str, str] | None = None, files: Files | None = None
) -> Settings:
    return resolve(given or {}, {"HOME": "/home/ann", **(environ or {})}, reader(files or {}))


def urls(settings: Settings) -> list[str]:
    return [address.url for address in settings.values["servers"]]


def others(settings: Settings) -> dict[str, Any]:
    return {name: value for name, value in settings.values.items() if name != "servers"}


def in_context(**fields: Any) -> dict[str, Any]:
    """Arguments of settle() with a context of these fields."""
    return {"environ": {"NATS_CONTEXT": "shop"}, "files": {CONTEXT: json.dumps(fields)}}


CONTEXT = "/home/ann/.config/nats/context/shop.json"


# --- URLs -----------------------------------------------------------------------------------------------------


def test_nothing_set_is_the_local_server() -> None:
    """Without a setting the default port of this machine is used, and nothing else is set."""
    settings = settle()
    assert urls(settings) == ["nats://127.0.0.1:4222"]
    assert others(settings) == {}
    assert settings.sources == {"servers": "the default"}


@pytest.mark.parametrize("servers", ["a:1,b:2", " a:1 , b:2 ", "a:1,,b:2,", ["a:1", "b:2"], ("a:1", "b:2")])
def test_servers_in_every_form(servers: Any) -> None:
    """A comma-separated string and any iterable of URLs are the same list."""
    assert urls(settle({"servers": servers})) == ["nats://a:1", "nats://b:2"]


@pytest.mark.parametrize(
    ("servers", "error"), [(5, TypeError), ([b"a"], TypeError), ("", ValueError), ([], ValueError)]
)
def test_servers_that_are_none(servers: Any, error: type[Exception]) -> None:
    """Anything but URLs is refused, and so is an empty list."""
    with pytest.raises(error, match="servers"):
        settle({"servers": servers})


def test_parameters_are_the_keywords_of_connect() -> None:
    """Every keyword of connect() is a parameter, or is known not to be one; there is no other."""
    assert set(PARAMETERS) | NOT_IN_URLS == set(inspect.signature(connect).parameters)
    assert not set(PARAMETERS) & NOT_IN_URLS


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", {}),
        ("&", {}),
        ("name=shop", {"name": "shop"}),
        ("name=a%20b%26c%3Dd+e", {"name": "a b&c=d+e"}),
        ("name=%C3%BC", {"name": "ü"}),
        ("name=a=b", {"name": "a=b"}),
        (
            "tls_ca=/etc/ca.pem&user_credentials=/run/x.creds&connect_timeout=2&name=shop",
            {"tls_ca": "/etc/ca.pem", "user_credentials": "/run/x.creds", "connect_timeout": 2.0, "name": "shop"},
        ),
        ("tls_cert=a&tls_key=b", {"tls_cert": "a", "tls_key": "b"}),
        ("connect_timeout=0.5&ping_interval=.5", {"connect_timeout": 0.5, "ping_interval": 0.5}),
        ("pending_size=-1&max_reconnect_attempts=7", {"pending_size": -1, "max_reconnect_attempts": 7}),
        ("no_echo=true&tls=1&dont_randomize=Yes", {"no_echo": True, "tls": True, "dont_randomize": True}),
        ("allow_reconnect=false&tls=off", {"allow_reconnect": False, "tls": False}),
        ("user=ann&password=p%40ss%3F", {"user": "ann", "password": "p@ss?"}),
        ("user=ann&password=", {"user": "ann", "password": ""}),
        ("token=t", {"token": "t"}),
        ("name=a&name=a", {"name": "a"}),
    ],
)
def test_parameters_of_a_url(query: str, expected: dict[str, Any]) -> None:
    """They are percent-decoded and converted to what the keyword takes; a plus sign stays."""
    settings = settle({"servers": f"tls://host?{query}"})
    assert others(settings) == expected
    assert urls(settings) == ["tls://host:4222"]
    assert {settings.sources[name] for name in expected} <= {"the URL"}


@pytest.mark.parametrize("form", ["nats://h/?name=x", "h?name=x", "nats://u:p@h:4222?name=x", "[::1]?name=x"])
def test_parameters_follow_every_form_of_url(form: str) -> None:
    """With and without scheme, port, slash, and a user before the host."""
    assert others(settle({"servers": form})) == {"name": "x"}


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        ("a?name=x,b", {"name": "x"}),
        ("a,b?name=x", {"name": "x"}),
        (["a?name=x", "b?name=x"], {"name": "x"}),
        (["a?name=x", "b?no_echo=1"], {"name": "x", "no_echo": True}),
        (["a?connect_timeout=2", "b?connect_timeout=2.0"], {"connect_timeout": 2.0}),
    ],
)
def test_parameters_of_several_urls_hold_for_all(servers: Any, expected: dict[str, Any]) -> None:
    """A connection has one set of options: it does not matter at which URL they stand."""
    assert others(settle({"servers": servers})) == expected


@pytest.mark.parametrize("servers", ["a?name=x,b?name=y", "a?name=x&name=y", ["a?tls=1", "b?tls=0"]])
def test_urls_that_disagree_are_refused(servers: Any) -> None:
    """Two values of one parameter are a mistake, whichever of them is meant."""
    with pytest.raises(ValueError, match="given twice"):
        settle({"servers": servers})


BAD_QUERIES = [
    ("pasword={s}", "did you mean password?"),
    ("tls_caa={s}", "did you mean tls_ca?"),
    ("xyz={s}", "known are: allow_reconnect, "),
    ("error_cb={s}", "give it to connect"),
    ("servers={s}", "give it to connect"),
    ("{s}", "name=value"),
    ("{s}={s}", "name=value"),
    ("name", "name=value"),
    ("connect_timeout={s}", "connect_timeout of a server URL must be a number"),
    ("connect_timeout=inf", "must be a number"),
    ("connect_timeout=1e3", "must be a number"),
    ("connect_timeout=", "must be a number"),
    ("pending_size={s}", "must be a whole number"),
    ("pending_size=1.5", "must be a whole number"),
    ("no_echo={s}", "must be true or false"),
    ("name=", "must not be empty"),
    ("tls_ca=", "must not be empty"),
    ("password={s}%FF", "percent-encoded"),
    ("password={s}@x", "behind a question mark"),
    ("password=x@{s}", "behind a question mark"),
    ("{s}@x", "behind a question mark"),
    ("password={s}&x@y", "behind a question mark"),
    ("password={s}#f", "percent-encode"),
    ("password={s} x", "percent-encode"),
    ("password={s}%0a&name=a\nb", "percent-encode"),
    ("password={s}&token={s}", "contradict"),
    ("token={s}&user_credentials=a&nkeys_seed=b", "contradict"),
]


@pytest.mark.parametrize(("query", "text"), BAD_QUERIES)
@pytest.mark.parametrize("base", ["nats://host", "tls://ann:{s}@host:1/", "nats://ann:{s}"])
def test_bad_parameters_are_refused_without_their_values(base: str, query: str, text: str) -> None:
    """The error names the parameter at most, never its value nor the credentials of the URL."""
    url = f"{base}?{query}".format(s=SECRET)
    with pytest.raises(ValueError) as caught:
        settle({"servers": url})
    assert SECRET not in str(caught.value)
    assert caught.value.__context__ is None or SECRET not in str(caught.value.__context__)
    if base == "nats://host":
        assert text in str(caught.value)


@pytest.mark.parametrize("url", [" ", ",", "http://h", "nats://h?bogus=1", "nats://h:port"])
def test_bad_url_of_the_environment_is_named(url: str) -> None:
    """The program has no URL in its source that one could look at."""
    with pytest.raises(ValueError, match=r"^NATS_URL: "):
        settle({}, {"NATS_URL": url})


@pytest.mark.parametrize("url", ["nats://{s}?x@h", "nats://{s}?tls=1&x@h", "nats://ann:{s}?4@h", "nats://h?x@{s}"])
def test_question_mark_in_a_user_or_password_shows_no_part_of_it(url: str) -> None:
    with pytest.raises(ValueError, match="behind a question mark") as caught:
        settle({"servers": url.format(s="4711")})
    assert "4711" not in str(caught.value)


@given_by_hypothesis(st.text(max_size=30))
def test_any_url_is_understood_or_a_value_error(text: str) -> None:
    """Whatever stands behind the question mark."""
    try:
        settle({"servers": [f"nats://h?{text}"]})
    except ValueError:
        pass


# --- environment ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("NATS_USER", "ann", {"user": "ann"}),
        ("NATS_TOKEN", "t", {"token": "t"}),
        ("NATS_CREDS", "/x.creds", {"user_credentials": "/x.creds"}),
        ("NATS_NKEY", "/x.nk", {"nkeys_seed": "/x.nk"}),
        ("NATS_NKEY", SEED, {"nkeys_seed_str": SEED}),
        ("NATS_CA", "/ca.pem", {"tls_ca": "/ca.pem"}),
        ("NATS_CERT", "/c.pem", {"tls_cert": "/c.pem"}),
        ("NATS_KEY", "/k.pem", {"tls_key": "/k.pem"}),
        ("NATS_USER", "", {}),
        ("NATS_CREDS", "", {}),
        ("NATS_OTHER", "x", {}),
    ],
)
def test_environment(variable: str, value: str, expected: dict[str, Any]) -> None:
    """Each variable is one keyword; an empty one counts as not set. The source is the variable."""
    settings = settle(environ={variable: value})
    assert others(settings) == expected
    assert all(settings.sources[name] == variable for name in expected)


def test_url_of_the_environment() -> None:
    """NATS_URL may name several servers, and have parameters."""
    settings = settle(environ={"NATS_URL": "nats://a?name=x,b:2"})
    assert urls(settings) == ["nats://a:4222", "nats://b:2"]
    assert others(settings) == {"name": "x"}
    assert settings.sources == {"servers": "NATS_URL", "name": "the URL of NATS_URL"}


# --- precedence -----------------------------------------------------------------------------------------------


def test_argument_then_url_then_environment_then_context() -> None:
    """Each setting comes from the highest level that has it."""
    settings = settle(
        {"servers": "nats://h?tls_ca=/url&inbox_prefix=url&name=url", "name": "argument"},
        {"NATS_CA": "/env", "NATS_CERT": "/env", "NATS_URL": "nats://env?no_echo=1", "NATS_CONTEXT": "shop"},
        {CONTEXT: json.dumps({"ca": "/ctx", "inbox_prefix": "ctx", "url": "nats://ctx", "tls_first": True})},
    )
    assert urls(settings) == ["nats://h:4222"]
    assert others(settings) == {
        "name": "argument",
        "tls_ca": "/url",
        "inbox_prefix": "url",
        "tls_cert": "/env",
        "tls_handshake_first": True,
    }
    assert settings.sources["name"] == "an argument"
    assert settings.sources["tls_cert"] == "NATS_CERT"
    assert settings.sources["tls_handshake_first"] == f"the context {CONTEXT!r}"


def test_parameters_of_the_contexts_url_rank_below_the_environment() -> None:
    """They belong to the context; those of NATS_URL rank above the other variables."""
    context = in_context(url="nats://ctx?tls_ca=/ctx&name=ctx", ca="/field")
    settings = settle(None, {**context["environ"], "NATS_CA": "/env"}, context["files"])
    assert others(settings) == {"tls_ca": "/env", "name": "ctx"}
    settings = settle(None, {"NATS_CA": "/env", "NATS_URL": "nats://h?tls_ca=/url"})
    assert others(settings) == {"tls_ca": "/url"}


PAIR = {"user": "ann", "password": "p"}
CREDENTIALS: list[tuple[dict[str, Any], str, dict[str, str], dict[str, Any], dict[str, Any]]] = [
    # arguments, URL, environment, context → what is used
    ({}, "h", {"NATS_USER": "ann", "NATS_PASSWORD": "p"}, {}, PAIR),
    ({"user": "ann"}, "h", {"NATS_PASSWORD": "p"}, {}, PAIR),
    ({"password": "p"}, "h", {"NATS_USER": "ann"}, {}, PAIR),
    ({"user": "ann"}, "h", {"NATS_USER": "bob", "NATS_PASSWORD": "bobs"}, {}, {"user": "ann"}),
    ({"user": "ann"}, "h", {"NATS_USER": "ann", "NATS_PASSWORD": "p"}, {}, PAIR),
    ({"user": "ann"}, "h", {"NATS_TOKEN": "t"}, {}, {"user": "ann"}),
    ({"user": "ann"}, "h", {"NATS_CREDS": "c"}, {"password": "p"}, {"user": "ann"}),
    ({"user": "ann"}, "h?password=p", {"NATS_PASSWORD": "q"}, {}, PAIR),
    ({"token": "t"}, "h", {"NATS_USER": "ann", "NATS_PASSWORD": "p"}, {}, {"token": "t"}),
    ({"token": "t"}, "ann:p@h", {}, {}, {"token": "t"}),
    ({"user_credentials": "c"}, "h", PAIR and {"NATS_USER": "ann"}, {}, {"user_credentials": "c"}),
    ({"nkeys_seed": "n"}, "h?nkeys_seed_str=x", {"NATS_NKEY": "y"}, {}, {"nkeys_seed": "n"}),
    ({}, "h?token=t", {"NATS_CREDS": "c"}, {"nkey": "n"}, {"token": "t"}),
    ({}, "ann:p@h", {"NATS_TOKEN": "t"}, {"creds": "c"}, {}),
    ({}, "tok@h", {"NATS_CREDS": "c"}, {}, {}),
    ({}, "h", {"NATS_CREDS": "c"}, {"user": "ann", "password": "p"}, {"user_credentials": "c"}),
    ({}, "h", {}, {"user": "ann", "password": "p"}, PAIR),
    ({}, "h", {"NATS_USER": "ann", "NATS_CREDS": "c"}, {}, {"user": "ann", "user_credentials": "c"}),
]


@pytest.mark.parametrize(("arguments", "url", "environ", "context", "used"), CREDENTIALS)
def test_credentials_are_those_of_the_highest_level(
    arguments: dict[str, Any],
    url: str,
    environ: dict[str, str],
    context: dict[str, Any],
    used: dict[str, Any],
) -> None:
    """Other kinds of lower levels are switched off; a user and a password may come from two levels."""
    settings = settle(
        {**arguments, "servers": url}, {**environ, "NATS_CONTEXT": "shop"}, {CONTEXT: json.dumps(context)}
    )
    assert others(settings) == used


def test_credentials_in_the_contexts_url_rank_with_the_context() -> None:
    """A variable comes before the user in the URL of a context."""
    context = in_context(url="nats://ann:p@ctx", token="t")
    settings = settle(None, {**context["environ"], "NATS_CREDS": "c"}, context["files"])
    assert others(settings) == {"user_credentials": "c"}
    assert "token" in settings.unused
    assert others(settle(**in_context(url="nats://ann:p@ctx"))) == {}


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"NATS_TOKEN": SECRET, "NATS_USER": "ann"}, ["NATS_TOKEN", "NATS_USER"]),
        ({"NATS_TOKEN": SECRET, "NATS_PASSWORD": SECRET}, ["NATS_TOKEN", "NATS_PASSWORD"]),
        ({"NATS_CREDS": "c", "NATS_NKEY": SEED}, ["NATS_CREDS", "NATS_NKEY"]),
    ],
)
def test_variables_that_contradict_each_other_are_named(environ: dict[str, str], named: list[str]) -> None:
    """The error names the variables and not their values."""
    with pytest.raises(ValueError, match="contradict") as caught:
        settle(environ=environ)
    assert all(name in str(caught.value) for name in named)
    assert SECRET not in str(caught.value)
    assert SEED not in str(caught.value)
    # An argument settles it.
    assert others(settle({"token": "t"}, environ)) == {"token": "t"}


def test_credentials_twice_in_a_url_are_refused() -> None:
    """Before the @ and as parameters: one of them is a mistake."""
    with pytest.raises(ValueError, match="parameters: token") as caught:
        settle({"servers": f"nats://ann:{SECRET}@h?token={SECRET}"})
    assert SECRET not in str(caught.value)


CONTEXT_OF_TLS = object()
TLS: list[tuple[dict[str, Any], str, dict[str, str], dict[str, Any]]] = [
    ({"tls_cert": "c"}, "h", {"NATS_KEY": "k", "NATS_CERT": "d"}, {"tls_cert": "c"}),
    ({"tls_ca": "a"}, "h", {"NATS_KEY": "k", "NATS_CERT": "c"}, {"tls_ca": "a", "tls_cert": "c", "tls_key": "k"}),
    ({"tls": True}, "h", {"NATS_CA": "a"}, {"tls": True, "tls_ca": "a"}),
    ({"tls": False}, "h", {"NATS_CA": "a"}, {"tls": False}),
    ({"tls": CONTEXT_OF_TLS}, "h?tls_ca=a", {"NATS_CERT": "c"}, {"tls": CONTEXT_OF_TLS}),
    ({}, "h?tls=false", {"NATS_CA": "a"}, {"tls": False}),
    ({"tls_ca": "a"}, "h?tls=false", {"NATS_CERT": "c"}, {"tls_ca": "a", "tls": False}),
]


@pytest.mark.parametrize(("arguments", "url", "environ", "used"), TLS)
def test_tls_settings_that_belong_together(
    arguments: dict[str, Any], url: str, environ: dict[str, str], used: dict[str, Any]
) -> None:
    """A certificate and its key are of one level; a context of OpenSSL, or no TLS, ends the levels below."""
    assert others(settle({**arguments, "servers": url}, environ)) == used


# --- contexts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"NATS_CONTEXT": "shop"}, "/home/ann/.config/nats/context/shop.json"),
        ({"NATS_CONTEXT": "shop", "XDG_CONFIG_HOME": "/cfg"}, "/cfg/nats/context/shop.json"),
        ({"NATS_CONTEXT": "/a/b.json"}, "/a/b.json"),
        ({"NATS_CONTEXT": "b.json"}, "b.json"),
        ({"NATS_CONTEXT": "./b"}, "./b"),
        ({"NATS_CONTEXT": "~/b.json"}, "/home/ann/b.json"),
    ],
)
def test_where_a_context_is(environ: dict[str, str], path: str) -> None:
    """A name is looked up in the configuration directory; what has a slash or ends in .json is a path."""
    settings = settle(environ=environ, files={path: '{"url": "nats://ctx"}'})
    assert urls(settings) == ["nats://ctx:4222"]
    assert settings.sources == {"servers": f"the context {path!r}"}


def data(text: str) -> str:
    return "data:;base64," + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"description": "x", "color_scheme": "y", "future": [1]}, {}),
        ({"token": "t", "user": "", "creds": ""}, {"token": "t"}),
        ({"user": "ann", "password": "p"}, PAIR),
        ({"user": "ann", "creds": "c"}, {"user": "ann"}),
        ({"user": "ann", "password": "env://PW"}, {"user": "ann", "password": "from-env"}),
        ({"user": "ann", "password": "file:///pw"}, {"user": "ann", "password": "from-file"}),
        ({"token": data("t\n")}, {"token": "t"}),
        ({"creds": "~/x.creds"}, {"user_credentials": "/home/ann/x.creds"}),
        ({"creds": "$DIR/x.creds"}, {"user_credentials": "/dir/x.creds"}),
        ({"creds": "file://${DIR}/x.creds"}, {"user_credentials": "/dir/x.creds"}),
        ({"creds": data("text")}, {"user_credentials": RawCredentials("text")}),
        ({"creds": "env://PW"}, {"user_credentials": RawCredentials("from-env")}),
        ({"nkey": "/x.nk"}, {"nkeys_seed": "/x.nk"}),
        ({"nkey": data(SEED)}, {"nkeys_seed_str": SEED}),
        (
            {"ca": "/ca", "cert": "/cert", "key": "~/key"},
            {"tls_ca": "/ca", "tls_cert": "/cert", "tls_key": "/home/ann/key"},
        ),
        ({"inbox_prefix": "_ME", "tls_first": True}, {"inbox_prefix": "_ME", "tls_handshake_first": True}),
        ({"tls_first": False, "nsc": "", "socks_proxy": ""}, {}),
    ],
)
def test_fields_of_a_context(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    """Each field is a keyword; ~ and variables are expanded, and references followed, as the `nats` tool does."""
    environ = {"NATS_CONTEXT": "shop", "DIR": "/dir", "PW": "from-env"}
    files = {CONTEXT: json.dumps(fields), "/pw": "from-file\n"}
    assert others(settle(environ=environ, files=files)) == expected


def test_jwt_and_seed_of_a_context() -> None:
    """They become the text of a credentials file."""
    settings = settle(**in_context(user_jwt="eyJ.x.y", user_seed=SEED))
    text = str(settings.values["user_credentials"])
    assert "eyJ.x.y" in text
    assert SEED in text
    assert SEED not in repr(settings.values)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a JSON object"),
        (f'{{"password": "{SECRET}"', "line 1, column"),
        (f'["{SECRET}"]', "not a JSON object"),
        (f'"{SECRET}"', "not a JSON object"),
        (f'{{"password": "{SECRET}", "user": 5}}', "'user'"),
        (f'{{"user": "ann", "password": ["{SECRET}"]}}', "'password'"),
        (f'{{"tls_first": "{SECRET}"}}', "'tls_first'"),
        (f'{{"nsc": "{SECRET}"}}', "'nsc'"),
        (f'{{"socks_proxy": "{SECRET}"}}', "'socks_proxy'"),
        (f'{{"creds": "op://{SECRET}"}}', "op://"),
        (f'{{"creds": "data:;base64,{SECRET}!"}}', "base64"),
        (f'{{"token": "env://{SECRET}"}}', "not set"),
        (f'{{"user_jwt": "{SECRET}"}}', "user_seed"),
        (f'{{"ca": "env://{SECRET}"}}', "path"),
        (f'{{"url": "nats://ann:{SECRET}@h:x"}}', "not a server URL"),
        (f'{{"url": "nats://h?password={SECRET}&x=1"}}', "unknown parameter"),
        (f'{{"user": "ann", "token": "{SECRET}"}}', "contradict"),
    ],
)
def test_bad_contexts_are_refused_without_their_contents(text: str, says: str) -> None:
    """The error names the file, and the field if it is one, but no value."""
    with pytest.raises(ValueError) as caught:
        settle(environ={"NATS_CONTEXT": "shop"}, files={CONTEXT: text})
    assert says in str(caught.value)
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value.__context__)


def test_context_that_is_not_there() -> None:
    """NATS_CONTEXT asks for it, so it is an error, which names the file."""
    with pytest.raises(ValueError, match=r"context/shop\.json.*No such file"):
        settle(environ={"NATS_CONTEXT": "shop"})


# --- what is shown ----------------------------------------------------------------------------------------------


def test_summary_names_sources_and_no_values() -> None:
    """What the log says: each setting with its source, and what a higher level has switched off."""
    settings = settle(
        {"name": "shop", "servers": f"nats://h?token={SECRET}"},
        {"NATS_USER": SECRET, "NATS_PASSWORD": SECRET, "NATS_CA": SECRET},
    )
    assert str(settings) == (
        "name from an argument, servers from an argument, tls_ca from NATS_CA, token from the URL; "
        "not used: password from NATS_PASSWORD, user from NATS_USER"
    )
    assert SECRET not in repr(settings)
