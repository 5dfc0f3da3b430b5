"""Keeping a training run alive with systemd: units made from a run description."""
