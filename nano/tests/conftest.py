"""Tests run on one thread: small tensors gain nothing from more, and results stay the same."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from nano.tests.healing import heal_base, heal_data

__all__ = ["heal_base", "heal_data"]  # fixtures

torch.set_num_threads(1)
