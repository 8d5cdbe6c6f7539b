"""A table as its YAML file and the paper define it."""

from contextlib import contextmanager

from fairseq_lrpe.experiments.definition.config_files import config_path, tables
from fairseq_lrpe.experiments.definition.experiment import LISTING
from fairseq_lrpe.experiments.definition.table_settings import (
    SCALES,
    Paper,
    PaperTable,
    Row,
    TableSettings,
    read_model,
)
from fairseq_lrpe.utils.errors import UserError
from fairseq_lrpe.utils.files import display_path
from fairseq_lrpe.utils.suggest import choices


class TableSpec:
    """A table as its YAML file and the paper define it: settings, published numbers and rows."""

    def __init__(self, name: str):
        if name not in tables():
            listing = "`lrpe table` lists the tables"
            raise UserError(f"unknown table {name!r}{choices(name, tables(), listing)}")
        self.name = name
        self.path = config_path(f"tables/{name}")
        self.settings = read_model(self.path, TableSettings)
        self.source: str | None = None
        self.published = PaperTable()
        if self.settings.paper is not None:
            self._read_published()
        self.rows: list[Row] = [*self.published.rows, *self._rows_of_other(), *self.settings.rows]
        self._check_rows()
        if self.settings.baseline is not None:
            methods = dict.fromkeys(row.method for row in self.rows if row.method)
            self._check("baseline", "method", self.settings.baseline, methods)

    def _error(self, key, message):
        return UserError(f"{display_path(self.path)}: {key}: {message}")

    def _check(self, key, what, name, known):
        if name not in known:
            raise self._error(key, f"unknown {what} {name!r}{choices(name, known, LISTING)}")

    def _check_rows(self):
        """Raises UserError if two rows have the same attention and name."""
        names = set()
        for row in self.rows:
            if (row.attention, row.row) in names:
                raise self._error("rows", f"{row.attention} {row.row} is not unique: rename a row")
            names.add((row.attention, row.row))

    @contextmanager
    def _context(self, key):
        try:
            yield
        except UserError as error:
            raise self._error(key, error) from None

    def _read_published(self):
        paper = read_model(config_path(f"paper/{self.settings.paper}"), Paper)
        self.source = paper.source
        if self.settings.table is not None:
            self._check("table", "table", self.settings.table, paper.tables)
            self.published = paper.tables[self.settings.table]

    def _rows_of_other(self):
        name = self.settings.rows_of
        if name is None:
            return []
        others = tables()
        others.remove(self.name)
        self._check("rows_of", "table", name, others)
        self._check_chain(name)
        return [row.model_copy(update={"columns": None, "values": {}}) for row in TableSpec(name).rows]

    def _check_chain(self, name):
        """Raises UserError if the rows of the table ``name`` are, through other tables, those of this one."""
        chain_of_tables = [self.name]
        while name is not None:
            if name in chain_of_tables:
                names = " → ".join([*chain_of_tables, name])
                raise self._error("rows_of", f"{names}: give one of these tables rows of its own")
            chain_of_tables.append(name)
            path = config_path(f"tables/{name}")
            name = read_model(path, TableSettings).rows_of if path.is_file() else None

    @property
    def scales(self) -> list[str]:
        """The scales at which a column has an experiment."""
        columns = self.settings.columns.values()
        scales = []
        for scale in SCALES:
            if any(column.experiment_at(scale) for column in columns):
                scales.append(scale)
        return scales
