"""Every case of cases/*.toml as a test; see run_cases.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from run_cases import ROOT, Case, load_cases, run_case

BIN = Path(os.environ.get("MK_BIN", ROOT / "build" / "release" / "bin"))


@pytest.mark.parametrize("case", load_cases(), ids=lambda case: f"{case.file}: {case.name}")
def test_case(case: Case) -> None:
    run_case(case, BIN)
