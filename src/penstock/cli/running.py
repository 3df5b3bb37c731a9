"""`penstock run`: a job in the foreground. Driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.cli.failures import ended_by_ctrl_c
from penstock.cli.job_file import as_its_own_program, load_job
from penstock.cli.stated_job import refuse_early
from penstock.dashboard.serving import bind, check_installed
from penstock.dashboard.ui_options import UiOptions
from penstock.savepoint.manifest import read_manifest
from penstock.start_options import asked_on_the_command_line
from penstock.storage import open_storage
from penstock.supervise.program import keep_to_oneself


def run_file(
    file: Path,
    name: str | None,
    *,
    arguments: Sequence[str] = (),
    available_now: bool,
    restore: int | None,
    takeover: bool,
    drop_state: tuple[str, ...] = (),
    drop_sources: tuple[str, ...] = (),
    rename: Mapping[str, str] | None = None,
    positions: Mapping[str, object] | None = None,
    drain: bool = False,
    savepoint: str | None = None,
    claim: bool = False,
    ui: str | bool | None = None,
    ui_token: str | None = None,
    ui_read_only: bool = False,
) -> None:
    """Run the job of a file until it ends, as `Job.run` does; what is to be said names the options of the command line."""
    keep_to_oneself()
    with asked_on_the_command_line(), as_its_own_program(file, arguments):
        if ui is not None:  # no need to start Spark to find out that nobody can be shown anything
            check_installed()
            bind(UiOptions.checked(ui, ui_token, read_only=ui_read_only)).close()
        if not takeover:
            refuse_early(file)
        if savepoint is not None and not claim:  # one that was claimed may be gone
            read_manifest(open_storage(savepoint))  # no need to start Spark to find out that it is none
        with ended_by_ctrl_c():
            job = load_job(file, name)
        job.run(
            available_now=available_now,
            restore=restore,
            takeover=takeover,
            drop_state=drop_state,
            drop_sources=drop_sources,
            rename=rename,
            positions=positions,
            drain=drain,
            savepoint=savepoint,
            claim=claim,
            ui=ui,
            ui_token=ui_token,
            ui_read_only=ui_read_only,
        )
