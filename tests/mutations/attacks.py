"""Attacks that earlier drafts of the protocol did not survive, and what finds each today: planted bugs by name, or plain tests.

A plain test is `path::function`. Rules of conflicts that no cell of the explorer needs are found by the model in
`tests/timeline/test_conflict_model.py`: it proves of every rule that a run goes wrong without it.
"""

from __future__ import annotations

from collections.abc import Mapping

CONFLICTS = "tests/timeline/test_conflicts.py::"
MODEL = "tests/timeline/test_conflict_model.py::test_a_run_goes_wrong_without_looking_at"
CHECKPOINTS = "tests/timeline/test_checkpoint.py::"
COMPACTION = "tests/services/test_compaction.py::"

NAMED_BUGS: Mapping[str, tuple[str, ...]] = {
    "own 412 taken as defeat": (
        "own failed condition taken as defeat",
        "own failed condition taken as defeat, and own entry not recognised",
    ),
    "no fence check": ("no fence check",),
    "rollback deletes before it claims": ("a rollback deletes before it claims",),
    "skip a slot without reading it": ("a slot skipped without reading who has it", "a slot skipped without reading its time"),
    "no overlap check after rebase": ("no overlap check",),
    "raw wall clock": ("raw wall clock",),
    "unknown taken as failed": ("an unknown outcome raised as refusal", "an unknown commit taken as failed, its files deleted"),
    "read-back 404 taken as failed": ("a read-back that finds nothing taken as failure",),
    "cleaner deletes in-flight files": ("cleaner deletes in-flight files",),
    "reader ignores retention": ("reader ignores retention",),
    "reader trusts the hint": (
        "reader trusts the hint",
        "reader trusts what the hint carries",
        "a hint is ahead of its log, and its last slot is not asked for",
    ),
    "a slot deleted after a checkpoint": ("a slot deleted after a checkpoint",),
    "tombstone without identity": ("tombstone without identity",),
    "own txn not searched in history": ("own txn not searched in history",),
    "compaction drops later blocks": ("compaction drops later blocks",),
    "compaction conflicts ignored": ("compaction conflicts ignored",),
    "split loses blocks": ("split loses blocks",),
    "insert-insert digest skipped": ("insert-insert digest skipped",),
    "checkpoint published before its shards": ("checkpoint published before its shards",),
    "savepoint ignored by cleaner": ("savepoint ignored by cleaner",),
    "restore racing a writer": ("restore racing a writer",),
}
"""Bugs that must be among those planted at least."""

ATTACKS: Mapping[str, tuple[str, ...]] = {
    "two first writes to one bucket": ("two first writes to one bucket", MODEL),
    "clustering or overwrite over a concurrent append": (f"{CONFLICTS}test_clustering_or_overwrite_over_a_concurrent_append", MODEL),
    "append, then split, then clustering of the children": (
        f"{CONFLICTS}test_append_then_split_then_clustering_of_the_children",
        "tests/services/test_splits.py::test_append_then_split_then_compaction_of_the_children",
        MODEL,
    ),
    "base files written for a stale bucket count": ("base files written for a stale bucket count",),
    "two read-modify-write deltas under snapshot isolation": (
        f"{CONFLICTS}test_two_read_modify_write_deltas_under_snapshot_isolation",
        MODEL,
    ),
    "a key moved by a global index while another upsert uses its old place": (
        f"{CONFLICTS}test_races_for_one_key_under_an_index",
        "insert-insert digest skipped",
        "a move that does not place its key",
        MODEL,
    ),
    "delete of a key and its index row racing an update": (f"{CONFLICTS}test_races_for_one_key_under_an_index", MODEL),
    "a zombie task attempt overwriting a committed file": (
        "tests/mutations/test_attacks.py::test_a_zombie_task_attempt_cannot_overwrite_a_committed_file",
    ),
    "two workers executing one compaction plan, the older last": ("two executors of one plan do not see each other",),
    "RESTORE or SAVEPOINT onto files that CLEAN is about to delete, and the reverse": (
        "a savepoint or a restore onto files that a clean is about to delete",
        "a clean that does not see what was saved meanwhile",
    ),
    "a smaller CLEAN bound after a larger": ("a smaller clean bound after a larger one",),
    "rollback of a txn whose commit was archived": ("own txn not searched in history",),
    "a zombie missing its fence because the tombstone kept the rollbacker's txn only": (
        "a tombstone that keeps the rollbacker's txn only",
    ),
    "acknowledging because slot n merely names the txn": ("acknowledged because a slot names the transaction",),
    "failed reported for a writer that is only stalled": (
        "an unknown commit taken as failed, its files deleted",
        "tests/explorer/test_regressions.py::test_a_commit_that_is_found_in_its_slot_is_not_failed_by_what_comes_after",
    ),
    "late update after a compacted delete": (f"{COMPACTION}test_late_update_after_a_compacted_delete",),
    "the same streaming batch from a zombie and a restarted driver": ("the same batch from a zombie and a restarted driver",),
    "checkpoint root published after its shards were collected": (
        f"{CHECKPOINTS}test_a_slow_publisher_below_the_clean_is_fenced_by_a_void_root",
        f"{CHECKPOINTS}test_a_publisher_above_the_clean_stands_on_nothing_that_is_collected",
    ),
    "re-use of unpublished shards": (
        f"{CHECKPOINTS}test_a_root_whose_answer_is_lost_for_good_is_not_stood_on",
        f"{CHECKPOINTS}test_what_a_dead_publisher_left_is_swept",
    ),
    "drop of a table while a writer commits": ("a drop that a writer does not mind",),
    "two changes of one schema with one field id": (f"{CONFLICTS}test_two_changes_of_one_schema_with_one_field_id",),
    "a RESTORE under a running writer": ("restore racing a writer",),
    "a RESTORE that forgets savepoints": ("a restore that forgets savepoints",),
    "a key moved while it is updated in place": (
        f"{CONFLICTS}test_races_for_one_key_under_an_index",
        "a move that leaves the row where it was",
        MODEL,
    ),
    "a tombstone that an index lookup does not see": (
        f"{CONFLICTS}test_races_for_one_key_under_an_index",
        "tests/timeline/test_conflict_model.py::test_two_operations_of_every_kind_in_all_orders",
    ),
    "bucket counts 1 and 2 for one first write": (f"{CONFLICTS}test_bucket_counts_1_and_2_for_one_first_write", MODEL),
    "a barrier and an older late row": (f"{COMPACTION}test_a_barrier_and_an_older_late_row",),
    "a rolled-back plan whose executor commits": ("a rolled-back plan whose executor commits",),
    "a restarted stream acknowledged by a batch that a RESTORE undid": (
        "tests/tables/test_exactly_once.py::test_a_stream_whose_commits_were_taken_back_is_told_so",
    ),
    "create in a namespace that is being dropped": ("a create in a namespace that is being dropped",),
    "a clock ten years ahead": (
        "tests/tables/test_intents.py::test_without_a_clock_in_the_store_one_that_is_ahead_is_recorded_and_the_others_follow",
        "raw wall clock",
    ),
    "two operations that draw one id": (
        "tests/tables/test_intents.py::test_of_two_operations_that_draw_one_id_only_one_takes_itself_for_committed",
    ),
    "mixed bucket counts under one BucketSpec": (
        f"{CONFLICTS}test_mixed_bucket_counts_under_one_bucket_spec",
        "tests/tables/test_manifest.py::test_a_table_is_read_the_same_in_the_middle_of_a_split",
    ),
}
"""Every attack is found by each of these."""
