"""HTML in which every text is escaped: elements, and what the results command prints as tables."""

from html import escape

from fairseq_lrpe.experiments.formats import TEXTS, Bold, Part


class Markup(str):
    """HTML that may stand in a page as it is; any other text is escaped."""

    __slots__ = ()


def tag(name: str, *content: str | None, **attributes: str | None) -> Markup:
    """Returns an element with its content; an attribute ``class_`` is called class, and None is left out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{given}>{joined(*content)}</{name}>")


def joined(*content: str | None) -> Markup:
    """Returns several pieces one after another, each on a line of its own."""
    pieces = (piece if isinstance(piece, Markup) else escape(piece) for piece in content if piece is not None)
    return Markup("\n".join(pieces))


def part(one: Part) -> Markup:
    """Returns a part of what the results command prints."""
    if isinstance(one, str):
        return tag("p", one)
    title, header, rows = one
    return grid(title, header, rows)


def grid(title: str, header: list[str], rows: list[list[str]], classes: str = "") -> Markup:
    """Returns a table in a box that scrolls by itself; ``classes`` are its columns', else by their names."""
    kinds = classes.split() or [column_class(name) for name in header]
    lines, before = [], None
    for row in rows:
        cells = (
            tag("td", tag("b", cell) if isinstance(cell, Bold) else cell, class_=kind)
            for cell, kind in zip(row, kinds, strict=True)
        )
        is_new = header[0] == "attention" and before is not None and row[0] != before
        lines.append(tag("tr", *cells, class_="group" if is_new else None))
        before = row[0]
    head = tag(
        "tr", *(tag("th", name, scope="col", class_=kind) for name, kind in zip(header, kinds, strict=True))
    )
    kind = "rows" if header[0] == "attention" else None
    table = tag("table", tag("thead", head), tag("tbody", *lines), class_=kind, aria_label=title or None)
    # Not a caption, which would be as narrow as the table.
    return joined(tag("p", title, class_="title") if title else None, tag("div", table, class_="box"))


def column_class(name: str) -> str | None:
    if name in ("changes", "state"):
        return "wrap"
    return "text" if name in TEXTS else "paper" if name.endswith("(paper)") else None
