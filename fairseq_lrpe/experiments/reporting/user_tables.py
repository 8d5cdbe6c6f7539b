"""Tables of the user on pages that show all tables."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fairseq_lrpe.experiments.definition.config_files import own_tables
from fairseq_lrpe.utils.errors import UserError


@contextmanager
def left_out_if_invalid(name: str) -> Iterator[None]:
    """Ends the block with a message on standard error if it cannot load the table ``name`` of the user.

    The table may need another extension than those that are imported, or belong to another program.
    """
    try:
        yield
    except UserError as error:
        if name not in own_tables():
            raise
        print(f"the table {name} is left out: {error}", file=sys.stderr)
