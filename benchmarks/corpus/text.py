"""Invented prose, code and tool output, from a seed."""

from __future__ import annotations

import random


def _vocabulary(size: int = 3000) -> list[str]:
    """Return pronounceable words: text made of them compresses about like real logs."""
    rng = random.Random("vocabulary")
    onsets = ["b", "c", "d", "f", "g", "h", "l", "m", "n", "p", "r", "s", "t", "v", "w", "br", "cl", "st", "tr", "pl"]
    vowels = ["a", "e", "i", "o", "u", "ea", "ou"]
    codas = ["", "", "n", "r", "s", "t", "ll", "nd"]
    words: set[str] = set()
    while len(words) < size:
        syllables = rng.randint(1, 3)
        words.add("".join(rng.choice(onsets) + rng.choice(vowels) + rng.choice(codas) for _ in range(syllables)))
    return sorted(words)


WORDS = _vocabulary()


class Text:
    """The prose and tool output of one rollout."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def word(self) -> str:
        return self.rng.choice(WORDS)

    def prose(self, n_bytes: int) -> str:
        words: list[str] = []
        length = 0
        while length < n_bytes:
            words.append(self.word())
            length += len(words[-1]) + 1
        return " ".join(words)[: max(n_bytes, 1)].strip().capitalize() + "."

    def tool_output(self, n_bytes: int) -> str:
        """Return lines as a listing, a source file, a test runner or a program's log has them."""
        make = self.rng.choice((self._listing, self._source, self._tests, self._log))
        lines: list[str] = []
        length = 0
        while length < n_bytes:
            lines.append(make())
            length += len(lines[-1]) + 1
        return "\n".join(lines)[: max(n_bytes, 1)]

    def _path(self) -> str:
        parts = [self.word() for _ in range(self.rng.randint(1, 3))]
        return "src/" + "/".join(parts) + self.rng.choice((".py", ".rs", ".md", ".json"))

    def _listing(self) -> str:
        rng = self.rng
        size, day, hour, minute = rng.randint(80, 99999), rng.randint(1, 28), rng.randint(0, 23), rng.randint(0, 59)
        return f"-rw-r--r-- 1 agent agent {size:>6} Jan {day:>2} {hour:02}:{minute:02} {self._path()}"

    def _source(self) -> str:
        rng = self.rng
        name, arg, other = self.word(), self.word(), self.word()
        # All are made before one is taken: what the seed gives next does not depend on the choice.
        lines = (
            f"def {name}_{arg}({arg}, *, {other}=None):",
            f'    """{self.prose(40)}"""',
            f'    if {arg} is not None and {other}.get("{name}") != {rng.randint(0, 999)}:',
            f"        return self._{name}[{arg!r}] + {rng.random():.4f}",
            f"\t{name} = {arg}.{other}({rng.randint(0, 64)})  # {self.prose(24)}",
            "",
        )
        return rng.choice(lines)

    def _tests(self) -> str:
        rng = self.rng
        verdict = rng.choice(("PASSED", "PASSED", "PASSED", "FAILED", "SKIPPED"))
        return f"{self._path()}::test_{self.word()}_{self.word()} {verdict} [{rng.randint(0, 100):>3}%]"

    def _log(self) -> str:
        rng = self.rng
        clock = f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}.{rng.randint(0, 999):03}"
        level = rng.choice(("INFO", "DEBUG", "WARN"))
        return f"2026-01-05T{clock}Z {level} {self.word()}.{self.word()} id={rng.getrandbits(48):012x} {self.prose(48)}"
