"""Every fault that the daemon must stand, and the tests that inject it. The list is that of the
specification; a line without a test that exists fails here."""

from __future__ import annotations

import re

import pytest
from daemon_harness import ROOT

E2E = "tests/e2e/"
UNIT = "tests/unit/"
FAULTS: dict[str, list[str]] = {
    "kill -9 of the client at random points": [
        E2E + "test_daemon_disk_faults.py::test_clients_killed_at_any_moment_leave_nothing",
        E2E + "test_daemon_faults.py::test_a_killed_client_frees_its_request",
        E2E + "test_daemon_faults.py::test_a_client_killed_while_its_prompt_is_read_frees_it",
    ],
    "kill -9 of the daemon at random points": [
        E2E + "test_daemon_disk_faults.py::test_a_daemon_killed_at_any_moment_is_replaced",
        E2E + "test_daemon_spine_cache.py::test_a_daemon_that_is_killed_leaves_no_half_of_a_file",
        E2E + "test_daemon_control.py::test_a_killed_daemon_is_replaced_by_the_next",
    ],
    "client stops reading": [
        E2E + "test_daemon_faults.py::test_a_stopped_client_is_cancelled_and_disturbs_nobody",
        E2E
        + "test_daemon_faults.py::test_a_client_that_does_not_acknowledge_is_paused_at_its_window",
        E2E + "test_daemon_crowded.py::test_a_client_that_does_not_read_does_not_hold_up_the_end",
    ],
    "garbage, truncated, deeply nested, wrong-typed messages": [
        E2E + "test_daemon_faults.py::test_bad_messages_cost_their_sender_one_error_each",
        UNIT + "protocol/hostile_test.cc::EveryTruncationOfEveryMessageIsRefused",
        UNIT + "protocol/hostile_test.cc::DeepNestingIsCutShort",
        UNIT + "protocol/hostile_test.cc::FieldsOfEveryTypeEverywhere",
    ],
    "oversized messages": [
        E2E + "test_daemon_faults.py::test_an_oversized_message_ends_its_senders_connection_only",
        UNIT + "protocol/hostile_test.cc::LengthsThatNobodySentTakeNoMemory",
    ],
    "two daemons racing": [
        E2E + "test_daemon_boot.py::test_of_many_that_race_one_serves",
        E2E + "test_daemon_boot.py::test_a_live_socket_is_never_stolen",
    ],
    "stale socket": [E2E + "test_daemon_boot.py::test_a_stale_socket_is_replaced"],
    "socket directory with wrong owner or mode": [
        E2E + "test_daemon_boot.py::test_bad_socket_folders_are_refused_with_the_reason",
    ],
    "model file missing": [
        E2E + "test_daemon_models.py::test_bad_models_are_errors_with_a_remedy",
    ],
    "model file truncated while in use": [
        E2E + "test_daemon_models.py::test_a_model_truncated_while_loaded_does_not_hurt_the_daemon",
        E2E + "test_daemon_disk_faults.py::test_a_file_that_changes_while_it_is_read_is_an_error",
        E2E + "test_daemon_disk_faults.py::test_no_model_file_is_mapped",
    ],
    "model file replaced": [
        E2E + "test_daemon_models.py::test_a_replaced_file_is_a_new_model",
        E2E + "test_daemon_disk_faults.py::"
        "test_a_file_replaced_while_it_is_read_counts_from_the_next_run_on",
        UNIT + "daemon/model_registry_test.cc::AChangedFileIsANewModelAndRunningRequestsKeepTheOld",
    ],
    "model file unreadable": [
        E2E + "test_daemon_disk_faults.py::test_a_model_that_cannot_be_read_fails_alone",
    ],
    "disk full while saving": [
        E2E + "test_daemon_disk_faults.py::test_a_disk_that_is_full_leaves_no_half_of_a_model",
        E2E + "test_daemon_disk_faults.py::test_a_small_disk_that_fills_up",
        E2E + "test_daemon_disk_faults.py::test_prepared_weights_that_cannot_be_kept_do_no_harm",
    ],
    "state file torn in the middle, flipped bits": [
        E2E + "test_daemon_spine_cache.py::test_a_damaged_file_is_replaced",
        UNIT + "pack/pack_hostile_test.cc::TornPacksAreRefused",
        UNIT + "pack/pack_hostile_test.cc::ABitFlippedAnywhereIsSeen",
        UNIT + "format/spine_cache_test.cc::DamageIsFound",
        UNIT + "format/spine_cache_test.cc::AFileThatIsCutWhileItIsReadIsAnError",
    ],
    "clock jumps": [E2E + "test_daemon_disk_faults.py::test_a_clock_that_jumps_disturbs_nothing"],
    "RLIMIT_NOFILE low": [
        E2E + "test_daemon_guards.py::test_two_thousand_connections_under_a_low_limit",
        E2E + "test_daemon_guards.py::test_no_descriptor_left_at_all_is_survived",
    ],
    "RLIMIT_AS low": [
        E2E + "test_daemon_disk_faults.py::"
        "test_a_low_limit_of_memory_ends_requests_and_not_the_daemon",
    ],
    "200 clients connecting and vanishing": [
        E2E + "test_daemon_faults.py::test_two_hundred_clients_come_and_vanish",
    ],
    "an hour of mixed load with flat memory": [
        E2E + "test_daemon_soak.py::test_a_long_time_of_mixed_load",  # MK_SOAK_SECONDS=3600
    ],
    "interrupted and short system calls": [
        E2E + "test_daemon_disk_faults.py::test_interrupted_and_short_reads_change_nothing",
    ],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_has_a_test(fault: str) -> None:
    assert FAULTS[fault]
    for place in FAULTS[fault]:
        path, name = place.split("::")
        text = (ROOT / path).read_text()
        assert re.search(rf"^(def {name}\(|TEST(_F|_P)?\(\w+, {name}\))", text, re.M), place
