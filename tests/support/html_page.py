"""The contents of HTML pages."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """The contents of a page: ``tables`` of rows of cells, ``texts`` by tag, ``tags`` with attributes."""

    VOID = ("meta", "br", "wbr", "input")

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts, self.tables, self.bold = [], [], {}, [], set()
        self.feed(text)
        self.close()
        assert not self.open, "an element is not closed"

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        data = data.replace("\u00a0", " ")
        if not self.open:
            return
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] += data.strip()
            if self.open[-1] == "b":
                self.bold.add(data)
        self.texts.setdefault(self.open[-1], []).append(data)

    def table(self, *header):
        """Returns the rows of the first table with this header."""
        return next(rows for rows in self.tables if rows[0] == list(header))[1:]

    def text(self):
        return " ".join(" ".join(text) for tag, text in self.texts.items() if tag not in ("script", "style"))
