"""Which data files may go. Planned whole before the first deletion; pure.

The listing must be older than the set of live files: a file that appears in between is not in the listing,
and one that was listed and then committed is in the set.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from penstock.dataplane import paths
from penstock.dataplane.disk import is_temp


def plan_cleanup(
    listed: Sequence[str],
    live: Collection[str],
    leases: Mapping[str, int],
    batches: Collection[str],
    generation: int,
) -> list[str]:
    """Return the listed data files that nothing needs and nobody is writing.

    Kept: live files; files of a higher generation; of each lease at work in this generation, the newest files
    of each kind, since their last frames may be named by a report that is on its way; of each batch being
    written, every file; names we did not give.

    Args:
        leases: the leases held now and how many tasks each serves. Each task has at most one report on its
            way and begins at most one new file with it, so that one file more than tasks is kept.
        batches: prefixes (up to the underscore) of the writers of batches under way.
    """
    parsed = {
        name: file for name in listed if not is_temp(name) and (file := paths.parse_data(name)) is not None
    }
    newest: dict[tuple[str, str], int] = {}
    for file in parsed.values():
        if file.generation == generation and file.writer in leases:
            key = (file.writer, file.kind)
            newest[key] = max(newest.get(key, 0), file.number)
    dead = []
    for name, file in parsed.items():
        last = newest.get((file.writer, file.kind))
        recent = last is not None and file.number >= last - leases[file.writer]
        batched = file.writer.partition("_")[0] in batches
        writing = file.generation == generation and (recent or batched)
        if name not in live and file.generation <= generation and not writing:
            dead.append(name)
    return sorted(dead)
