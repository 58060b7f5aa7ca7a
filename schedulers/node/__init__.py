"""The node backend: a launcher that speaks to agents over NATS, and the agent itself."""
