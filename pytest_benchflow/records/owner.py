"""Tell whether a missing thing is the verifier's own or one that the agent had to make or keep."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from pytest_benchflow.records.missing import is_own_place

if TYPE_CHECKING:
    from pytest_benchflow.records.missing import Missing

# Without these no verifier that names them works, whatever the task was about.
_RUNNERS = re.compile(r"uvx?|pip3?|pytest|python3?|apt-get|curl|wget|rewardkit")
_RUNNER_MODULES = re.compile(r"pip|uv|_?pytest|pytest_\w+|pluggy|iniconfig")
# What is known everywhere is nobody's work, unless a task asks to install it.
_TOOLS = re.compile(
    r"conda|npm|npx|node|yarn|pnpm|bun|deno|jest|mocha|vitest|bats|tox|nox|jq|yq|bc|go|cargo|rustc|javac?|mvn|gradle"
    r"|ruby|bundle|rspec|perl|prove|Rscript|php|phpunit|dotnet|make|cmake|ctest|gcc|g\+\+|cc|clang|git|unzip|xxd|g?awk"
    r"|expect|xmllint|timeout|diff|cmp|file|lsof|pgrep|shellcheck"
)
_MODULES = re.compile(
    r"numpy|pandas|scipy|torch|torchvision|torchaudio|tensorflow|keras|jax|transformers|tokenizers|onnx|onnxruntime"
    r"|matplotlib|seaborn|plotly|sklearn|skimage|statsmodels|xgboost|lightgbm|numba|sympy|mpmath|networkx|cvxpy|casadi"
    r"|ortools|pulp|shapely|geopandas|astropy|rdkit|rdflib|nltk|spacy|rapidfuzz|Levenshtein|polars|pyarrow|duckdb"
    r"|requests|httpx|aiohttp|websockets?|grpc|flask|fastapi|uvicorn|starlette|django|sqlalchemy|psycopg2?|pymysql|pymongo"
    r"|boto3|botocore|paramiko|playwright|selenium|bs4|lxml|yaml|tomli?|orjson|ujson|msgpack|zstandard|jsonschema|pydantic"
    r"|jinja2|dateutil|pytz|tqdm|psutil|pexpect|hypothesis|freezegun|openpyxl|xlrd|xlsxwriter|docx|pptx|pypdf|PyPDF2|fitz"
    r"|pdfplumber|reportlab|PIL|cv2|imageio|librosa|soundfile|pydub|moviepy|mutagen|cryptography|Crypto|jwt|nbformat"
    r"|testthat|jsonlite|rspec|minitest|chai|mocha|jest|vitest|jsdom|puppeteer|supertest"
)
_PACKAGES = {"sklearn": "scikit-learn", "PIL": "pillow", "cv2": "opencv", "yaml": "pyyaml", "bs4": "beautifulsoup4"} | {
    name: f"python-{name}" for name in ("docx", "pptx", "dateutil")
}
_INSTALL = r"[Ii]nstall|[Ss]et(?:ting)?[ -]up|[Uu]pgrade|[Dd]owngrade"


@dataclass(frozen=True, slots=True)
class TaskText:
    """What a task says: it tells whose a missing thing is. Names are looked for as whole words.

    `asked` are its instructions, `made` its solutions and the names of its environment's files; `script` is test.sh
    with the texts beside it, None where the task is not at hand; `own_names` are the names of the files beside test.sh.
    """

    asked: str = ""
    made: str = ""
    script: str | None = None
    own_names: frozenset[str] = frozenset()

    def names(self, name: str) -> bool:
        """Tell whether the task speaks of a name: then it is the agent's to make, or was its to keep."""
        return _has_word(self.asked, name) or _has_word(self.made, name)

    def asks_for(self, name: str) -> bool:
        """Tell whether the task wants a well-known thing installed, in one line, or has a file of that name."""
        ordered = rf"(?:{_INSTALL})[^\n]{{0,300}}?(?<![\w-]){re.escape(name)}(?![\w-])"
        a_file = rf"(?:^|[\s`'\"(=])(?:~?/(?:[\w.-]+/)*{re.escape(name)}|{re.escape(name)}\.(?:py|m?js))(?![\w-])"
        return bool(re.search(ordered, self.asked) or re.search(a_file, self.asked))

    def speaks_of_tests(self) -> bool:
        """Tell whether the task is about tests, which the agent then has to write or to keep."""
        return re.search(r"\btests?\b|\btest_", self.asked) is not None

    def runs(self, name: str) -> bool:
        """Tell whether the verifier's own texts name a thing."""
        return self.script is not None and _has_word(self.script, name)


def is_the_verifiers(thing: Missing, task: TaskText) -> bool:
    """Tell whether a verifier, and not the agent it scores, is to blame for a missing thing; in doubt it is not.

    A name that everybody knows is the verifier's unless the task asks to install it. Any other name is the agent's
    where the task speaks of it, and the verifier's where only the verifier does.
    """
    if thing.place == "elsewhere":
        return False
    if thing.kind == "tool":
        return _is_its_tool(thing, task)
    if thing.kind == "module":
        return _is_its_module(thing, task)
    return True


def _is_its_tool(thing: Missing, task: TaskText) -> bool:
    name = PurePosixPath(thing.name).name
    if is_own_place(thing.name) or _RUNNERS.fullmatch(name):
        return True
    if "/" in thing.name:
        return False
    runs = task.runs(name)
    if _TOOLS.fullmatch(name):
        return (runs or thing.place == "verifier") and not task.asks_for(name)
    return runs and not task.names(name)


def _is_its_module(thing: Missing, task: TaskText) -> bool:
    name = re.split(r"[./]", thing.name, maxsplit=1)[0] if not thing.name.startswith("@") else thing.name
    if _RUNNER_MODULES.fullmatch(name):
        return True
    if ".so" in thing.name or name in sys.stdlib_module_names:
        return thing.place == "verifier"
    if _MODULES.fullmatch(name):
        return not any(task.asks_for(known) for known in (name, _PACKAGES.get(name, name)))
    return task.script is not None and (thing.place == "verifier" or task.runs(name)) and not task.names(name)


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text) is not None
