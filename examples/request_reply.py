"""Core NATS: a service that replies to requests, and its client."""

from __future__ import annotations

from _server import server_url

from jetstream_sync import NoRespondersError, connect


def main() -> None:
    with server_url() as url, connect(url) as nc:
        nc.subscribe("greet.*", queue="greeters", cb=lambda msg: msg.respond(b"hello, " + msg.data))
        print(nc.request("greet.en", b"Ada").data.decode())
        try:
            nc.request("no.service.here", b"?")
        except NoRespondersError as error:
            print(error)


if __name__ == "__main__":
    main()
