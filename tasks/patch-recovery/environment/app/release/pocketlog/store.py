"""Keep entries in a text file."""

from pathlib import Path

DEFAULT = Path("~/.pocketlog")


class Store:
    """The entries of one file."""

    def __init__(self, path=DEFAULT):
        self.path = Path(path).expanduser()
        self._cache = None

    def entries(self):
        """Return all entries as (time, text)."""
        if self._cache is None:
            self._cache = list(self._read())
        return self._cache

    def add(self, time, text):
        """Append an entry."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{time} {text}\n")
        self._cache = None

    def _read(self):
        if not self.path.exists():
            return
        for line in self.path.read_text(encoding="utf-8").splitlines():
            if not line or line.startswith("#"):
                continue
            time, _, text = line.partition(" ")
            yield time, text
