"""The connection: sockets, threads, reconnects, subscriptions and requests."""
