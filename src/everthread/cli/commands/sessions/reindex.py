"""`everthread sessions reindex`: rebuild the search index."""

from __future__ import annotations

import click

from everthread.cli.context import CliContext, common_options
from everthread.cli.output import Result, render
from everthread.domain.text_format import pluralize


@click.command("reindex")
@common_options
def reindex_sessions(cli: CliContext, as_json: bool) -> None:
    """Rebuild the search index from the stored messages.

    Needed only if the doctor finds damage of the index. Other processes can go on: the messages are indexed in small
    batches. If it is interrupted, the next search indexes the rest.

    \b
    Examples:
      everthread sessions reindex
    """
    count = cli.read_existing(lambda runtime: runtime.lifecycle.rebuild_search_index())
    render(Result({"messages": count}, f"Indexed {pluralize(count, 'message')}."), as_json)
