"""The controller: what wires the log, the schedulers and the edges into one running service."""
