"""The JetStream API: requests, configurations, messages, publishing."""
