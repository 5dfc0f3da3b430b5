"""The figures of the daemon, each against its bar; tests/bench/daemon prints them."""
