"""A module whose import fails, as a user's may."""

raise SystemExit("not today")
