#!/bin/sh
set -eu
cat > /tmp/restore.py <<'PY'
"""Replay the maintainer's decisions upon a release."""

import mailbox
import re
import shutil
from email.header import decode_header, make_header
from email.utils import parseaddr, parsedate_to_datetime
from pathlib import Path

ROOT = Path("/app/restored")
WORDS = {"Applied, thanks.": 1, "Reverted.": -1}


class Mail:
    def __init__(self, message):
        self.id = message["Message-ID"].strip()
        self.parent = (message["In-Reply-To"] or "").strip()
        self.sender = parseaddr(str(make_header(decode_header(message["From"]))))[1].lower()
        self.subject = str(make_header(decode_header(message["Subject"])))
        self.date = parsedate_to_datetime(message["Date"])
        self.text = message.get_payload(decode=True).decode(message.get_content_charset() or "utf-8")

    @property
    def number(self):
        """Return a patch's number in its series, 1 when it stands alone, None when it is no patch."""
        tag = re.match(r"\[PATCH([^\]]*)\]", self.subject)
        if not tag:
            return None
        place = re.search(r"(\d+)/\d+", tag[1])
        return int(place[1]) if place else 1


def decisions(mails):
    """Yield (patch mail, 1 or -1) in the order of time."""
    by_id = {mail.id: mail for mail in mails}
    hers = [mail for mail in mails if mail.sender == "rita@pocketlog.example"]
    for mail in sorted(hers, key=lambda mail: mail.date):
        for line in mail.text.splitlines():
            way = WORDS.get(line.strip())
            about = by_id.get(mail.parent)
            while about is not None and about.number is None:
                about = by_id.get(about.parent)
            if way is None or about is None:
                continue
            series = [about]
            if about.number == 0:
                series = [other for other in mails if other.parent == about.id and other.number]
            for patch in sorted(series, key=lambda patch: patch.number)[::way]:
                yield patch, way


def files(text):
    """Yield (old name, new name, mode, hunks) of a patch; a hunk is (old line, new line, old lines, new lines)."""
    lines = iter(text[text.index("\ndiff --git ") + 1 :].splitlines(keepends=True))
    line = next(lines, "")
    while line.startswith("diff --git "):
        old, new = re.match(r"diff --git a/(.+) b/(.+)\n", line).groups()
        mode, hunks = None, []
        line = next(lines, "")
        while line and not line.startswith(("diff --git ", "-- \n")):
            if line.startswith("new file mode"):
                old, mode = None, int(line.split()[-1], 8) & 0o777
            elif line.startswith("deleted file mode"):
                new, mode = None, int(line.split()[-1], 8) & 0o777
            elif line.startswith("@@"):
                hunk, line = read_hunk(line, lines)
                hunks.append(hunk)
                continue
            line = next(lines, "")
        yield old, new, mode, hunks


def read_hunk(line, lines):
    """Return a hunk and the line behind it."""
    start, count, new_start, new_count = re.match(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", line).groups()
    left = [int(count or 1), int(new_count or 1)]
    sides, last = ([], []), ()
    line = next(lines, "")
    while any(left) or line.startswith("\\"):
        if line.startswith("\\"):
            for side in last:
                sides[side][-1] = sides[side][-1].rstrip("\n")
        else:
            last = {" ": (0, 1), "-": (0,), "+": (1,)}[line[0]]
            for side in last:
                sides[side].append(line[1:])
                left[side] -= 1
        line = next(lines, "")
    return (int(start), int(new_start), *sides), line


def change(content, hunks):
    """Return a file's lines after its hunks."""
    shift = 0
    for old_line, _, old, new in hunks:
        wanted = max(old_line - 1, 0) + shift
        places = [at for at in range(len(content) - len(old) + 1) if content[at : at + len(old)] == old]
        at = min(places, key=lambda at: abs(at - wanted))
        content = content[:at] + new + content[at + len(old) :]
        shift = at - max(old_line - 1, 0) + len(new) - len(old)
    return content


def apply(text, way):
    for old, new, mode, hunks in files(text):
        if way < 0:
            old, new = new, old
            hunks = [(new_line, old_line, after, before) for old_line, new_line, before, after in hunks]
        content, kept = [], mode or 0o644
        if old:
            source = ROOT / old
            content = source.read_bytes().decode().splitlines(keepends=True)
            kept = source.stat().st_mode & 0o777
            source.unlink()
            for directory in source.parents:
                if directory == ROOT or any(directory.iterdir()):
                    break
                directory.rmdir()
        if new:
            target = ROOT / new
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes("".join(change(content, hunks)).encode())
            target.chmod(kept)


shutil.copytree("/app/release", ROOT)
mails = [Mail(message) for message in mailbox.mbox("/app/list.mbox")]
for patch, way in decisions(mails):
    print("apply" if way > 0 else "undo", patch.subject)
    apply(patch.text, way)
PY
python3 /tmp/restore.py
