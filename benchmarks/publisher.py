"""The publisher process: sends what the measured client asks for, so that both clients face the same one.

python -m benchmarks.publisher <server url>
"""

from __future__ import annotations

import sys

import jetstream_sync

from .scenarios import CORE_SUBJECT, CREDIT_SUBJECT, SUBJECT


def main(url: str) -> None:
    nc = jetstream_sync.connect(url, name="publisher")
    sub = nc.subscribe(CREDIT_SUBJECT)
    nc.flush()
    print("ready", flush=True)
    payload = b"x" * 128
    frame = b"PUB %b 128\r\n%b\r\n" % (CORE_SUBJECT.encode(), payload)
    for message in sub:
        if message.data == b"one":
            nc.publish(SUBJECT, payload)
        else:
            # Many frames in one write: the publisher must not be what limits the rate.
            for _ in range(int(message.data) // 100):
                nc._outbox.publish(frame * 100, 0)
                nc._outbox.wait_for_room()


if __name__ == "__main__":
    main(sys.argv[1])
