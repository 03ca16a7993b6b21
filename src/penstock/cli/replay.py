"""`penstock replay`: a recorded run decided again by any policy. Reads the journal; changes nothing."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.cli.output import FOUND, USAGE, answer, check_writable, end_with, one_line_errors
from penstock.control.apply.codec import JournalError
from penstock.control.apply.journal import read_entries
from penstock.control.policy.registry import is_registered, make_policy
from penstock.control.replay import Replay, Tally, replay, replay_as_recorded
from penstock.words import counted, in_local_time


def run_replay(journal: Path, policy: str | None, json: str | None) -> int:
    """Print where decisions differ from the recorded ones; return 1 if any does."""
    with one_line_errors():
        check_writable(json)
        try:
            entries = read_entries(journal.read_bytes().splitlines())
            if not entries:
                end_with(f"{journal} holds no decision.", USAGE)
            found = (
                replay(entries, make_policy(policy))
                if policy
                else replay_as_recorded(entries, make_policy, is_registered)
            )
        except JournalError as error:
            end_with(f"{journal}: {error} It must be a file that a query's option `journal` wrote.", USAGE)
        if found.unregistered and not found.by_policy:
            end_with(f"{journal}: {_explain_unregistered(found)}", USAGE)
        answer(found, json, lambda console: _show(console, found))
    return FOUND if found.differences else 0


def _show(console: Console, found: Replay) -> None:
    if found.differences:
        table = Table("decision", "at", "recorded", "decided again", box=None, header_style="")
        for one in found.differences:
            at = f"{one.at_s:.1f} s" if one.unix_s is None else in_local_time(one.unix_s)
            table.add_row(str(one.number), at, escape(one.recorded), escape(one.decided))
        console.print(table)
    if len(found.by_policy) > 1:
        for tally in found.by_policy:
            console.print(_count(tally), highlight=False, markup=False)
    whole = Tally(
        "in all" if len(found.by_policy) > 1 else found.policy,
        found.decided,
        len(found.differences),
        found.skipped,
        found.actions_recorded,
        found.actions_decided,
    )
    console.print(_count(whole), highlight=False, markup=False)
    if found.missing_turns:
        console.print(
            f"The journal does not tell {counted(found.missing_turns, 'turn')}: a policy that remembers earlier turns may"
            " decide otherwise without them.",
            highlight=False,
            markup=False,
        )
    if found.unregistered:
        console.print(_explain_unregistered(found), highlight=False, markup=False)


def _explain_unregistered(found: Replay) -> str:
    """Say which turns were left out, and how to have them decided again."""
    told = ", ".join(f"{counted(turns, 'turn')} of '{name}'" for name, turns in found.unregistered.items())
    return (
        f"Skipped are {told}: no such policy is registered here. Call penstock.cli.main.app from a program that imports "
        "the module that registers it (docs/policies.md)."
    )


def _count(one: Tally) -> str:
    return (
        f"{one.policy}: {one.decided} decided again, {one.differing} differ; "
        f"{counted(one.actions_recorded, 'action')} recorded, {one.actions_decided} now; {one.skipped} skipped"
    )
