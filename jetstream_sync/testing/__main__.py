"""`python -m jetstream_sync.testing`: a JetStream server in the foreground, until Ctrl-C."""

from __future__ import annotations

import argparse
import errno
import signal
import sys
import time

from jetstream_sync.testing.server import LocalServer

_WATCH_INTERVAL = 0.2


def main(arguments: list[str] | None = None) -> int:
    """Run the server until SIGINT or SIGTERM. Returns the exit code: 0, or 1 when the server could not run."""
    options = _parser().parse_args(arguments)
    # The handlers raise instead of setting an event: that interrupts the start-up as well, and takes no lock.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with LocalServer(port=options.port, store_dir=options.store_dir) as server:
            _serve(server, is_temporary=options.store_dir is None)
    except KeyboardInterrupt:
        return 0
    except (OSError, RuntimeError) as error:
        print(_explain(error, options.port), file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jetstream_sync.testing",
        description="Run a NATS server with JetStream on this machine until Ctrl-C.",
    )
    parser.add_argument("--port", type=int, default=4222, help="port for clients, 0 for any (default: 4222)")
    parser.add_argument("--store-dir", help="where streams are kept (default: temporary, removed at the end)")
    return parser


def _serve(server: LocalServer, *, is_temporary: bool) -> None:
    """Print where the server is, and watch it. Ends only by an exception."""
    fate = "temporary, removed at the end" if is_temporary else "kept"
    print(f"JetStream is ready at {server.url} (Ctrl-C ends it)")
    print(f"Streams are stored in {server.store_dir} ({fate})", flush=True)
    while server.is_running:
        time.sleep(_WATCH_INTERVAL)
    raise RuntimeError(f"the server ended by itself; its log ends:\n{server.log_tail()}")


def _explain(error: Exception, port: int) -> str:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return f"Port {port} is taken: another server may be running there. Choose another with --port."
    return str(error)


if __name__ == "__main__":
    sys.exit(main())
