"""The credentials of a connection: from the options, and from environment variables that the options name.

A variable is read by the process that connects: the driver's when it plans, an executor's in a task. So no secret
is in a plan or in a serialized task. An error names the option, the variable and the process, never a value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..net.auth import Authenticator, RawCredentials
from .options import ConnectionOptions, Secret

# The process that connects, as errors name it.
PLANNER = "the process of the driver that plans"
TASK = "the process of the executor that runs the task"
CALLER = "the process that calls connection()"

# The keyword of connect(), the option that names a variable, and what its text is converted by.
_VARIABLES: tuple[tuple[str, str, str, Callable[[str], str]], ...] = (
    ("user_credentials", "credentialsEnv", "credentials_env", RawCredentials),
    ("password", "passwordEnv", "password_env", str),
    ("token", "tokenEnv", "token_env", str),
    ("nkeys_seed_str", "nkeySeedEnv", "nkey_seed_env", str.strip),
)


def identity_of(options: ConnectionOptions, environment: Mapping[str, str], process: str) -> dict[str, Any]:
    """The credentials as keywords of connect(). Raises ValueError for a variable that has none."""
    identity: dict[str, Any] = {
        "user": revealed(options.user),
        "password": revealed(options.password),
        "token": revealed(options.token),
        "user_credentials": options.credentials,
        "nkeys_seed": options.nkey_seed_file,
        "nkeys_seed_str": revealed(options.nkey_seed),
    }
    for keyword, option, attribute, convert in _VARIABLES:
        variable = getattr(options, attribute)
        if variable is not None:
            identity[keyword] = convert(environment.get(variable, ""))
            problem = _problem(keyword, identity[keyword]) if variable in environment else "is not set"
            if problem:
                what = f"the environment variable {variable!r} {problem} in {process}"
                raise ValueError(f"option {option!r}: {what}")
    return identity


def revealed(secret: Secret | None) -> str | None:
    return None if secret is None else secret.value


def _problem(keyword: str, text: str) -> str:
    """Why `text` cannot be used; empty when it can."""
    if not text:
        return "is empty"
    if keyword in ("user_credentials", "nkeys_seed_str"):
        try:
            Authenticator(**{keyword: text})  # type: ignore[arg-type]
        except ValueError:
            what = "the content of a .creds file" if keyword == "user_credentials" else "the nkey seed of a user"
            return f"does not hold {what}"
    return ""
