"""The NATS client protocol without I/O: no socket, ssl, threading or time in here."""
