"""Consuming: fetch, next, messages, consume, ordered consumers, push and pull subscriptions."""
