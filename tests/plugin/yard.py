"""A backend whose sandboxes outlive their process: a file in a yard that others use too stands for each.

The file `refuses` there keeps it from removing anything, `forgets` keeps a sandbox's own end from doing so,
`breaks` lets nobody know that one was made; `silent` keeps it from telling what is there.
"""

CONFTEST = """
import json
import time
from pathlib import Path

from pytest_benchflow.contracts import Remain
from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._labels import labels_for, owner_of
from pytest_benchflow.sandboxes.local import LocalBackend

YARD = Path(__file__).parent / "yard"


def free(path):
    if (YARD / "refuses").exists():
        raise SandboxError("the yard is closed")
    path.unlink(missing_ok=True)


class Yard(LocalBackend):
    name = "yard"
    dies_with_process = False
    place = str(YARD)

    async def create(self, spec):
        mark = YARD / f"{spec.id}.json"
        mark.write_text(json.dumps({"labels": labels_for(spec, owner_of("yard")), "created": time.time()}))
        if (YARD / "breaks").exists():
            raise SandboxError("no answer came")
        sandbox = await super().create(spec)
        stop = sandbox.stop

        async def stop_and_free():
            await stop()
            if not (YARD / "forgets").exists():
                free(mark)

        sandbox.stop = stop_and_free
        return sandbox

    def reap(self, scratch, place):
        try:
            free(YARD / f"{scratch.name}.json")
        except SandboxError:
            return False
        return True

    async def remains(self):
        if (YARD / "silent").exists():
            raise SandboxError("the yard does not answer")
        found = [(path, json.loads(path.read_text())) for path in sorted(YARD.glob("*.json"))]
        return [Remain(path.name, self.name, each["labels"], each["created"], about="a mark") for path, each in found]

    async def discard(self, name):
        free(YARD / name)


def pytest_benchflow_sandboxes():
    return {"yard": Yard()}
"""
