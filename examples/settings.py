"""Connect with settings from the URL, the environment and a context of the `nats` CLI."""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from pathlib import Path

from jetstream_sync import AuthorizationError, connect
from jetstream_sync.testing import LocalServer

# At DEBUG the log says where each setting comes from, without its value.
logging.basicConfig(stream=sys.stdout, format="  log: %(message)s")
logging.getLogger("jetstream_sync.connection").setLevel(logging.DEBUG)

config = "authorization { user: shop, password: example-password }"
with LocalServer(jetstream=False, config=config) as server, tempfile.TemporaryDirectory() as folder:
    print("parameters of the URL")
    with connect(f"{server.url}?user=shop&password=example-password&name=shop&connect_timeout=2") as nc:
        print(f"connected to {nc.connected_url}")

    print("environment")
    os.environ.update({"NATS_URL": server.url, "NATS_USER": "shop", "NATS_PASSWORD": "example-password"})
    with connect(name="shop") as nc:
        print(f"connected to {nc.connected_url}")

    # An argument wins over the environment, and credentials of a higher level switch off those of lower ones.
    try:
        connect(token="not-the-password")
    except AuthorizationError as error:
        print(f"refused: {error}")

    print("context of the nats CLI")
    for variable in ("NATS_URL", "NATS_USER", "NATS_PASSWORD"):
        del os.environ[variable]
    context = Path(folder) / "shop.json"
    context.write_text(json.dumps({"url": server.url, "user": "shop", "password": "example-password"}))
    os.environ["NATS_CONTEXT"] = str(context)  # or the name of a context in ~/.config/nats/context
    with connect() as nc:
        print(f"connected to {nc.connected_url}")
