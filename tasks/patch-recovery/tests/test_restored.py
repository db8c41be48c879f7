"""Compare /app/restored with the tree that was lost, file by file, by digests."""

import hashlib
import unittest
from pathlib import Path

RESTORED = Path("/app/restored")
LOST = {
    "NEWS": "858b0d67d52f1b8ab925505b037bf5982ec0aa96ec14b754b8c020266aae33c3",
    "README.md": "646c69a8a4930099d827a9819de91fc69b75cb589844c5d1e3325e0fdd233ca8",
    "bin/pocketlog": "d6f82ff67f4d6190bd22372634ae446d45a3aa49e598a70675a3468ebf17a11d",
    "docs/FORMAT.md": "2c0a1bfe8a75e53d7dd4e2923b3ab00c03028909d4173a2d62aeb7b9c93b7440",
    "pocketlog/__init__.py": "f21d98cc0a0f28c6bed66c468069f7c9fe20beef2d7752a46d0c69023ddfeb1d",
    "pocketlog/__main__.py": "13a1a5b340cdcfc1902b62be90e508c7c71886000d5bf087e7854aadf09fb35e",
    "pocketlog/cli.py": "3ec94bebe17fb67d71722a26440a32c1ab2a76f389f11c5eaf436928b87d274e",
    "pocketlog/legacy.py": "bd8a225d8861878f5b63d485c720f32dc6c4b87ab51703beaf5188b946f93c07",
    "pocketlog/store.py": "2f67955d24b9e53e5c7a70da90065259f74158d6da674ac862ba5893ca61d2d1",
    "tests/test_store.py": "3d0994412101537c5f751cd431ee25ffeb3f408b57243b2608239818c86e28fd",
}
RELEASE = {
    "README.md": "8110ccdb09ac9f0c68cd1979fc5711b202dfc22553b3f12fb0cd93bd647cffa9",
    "docs/format.txt": "c948b63c051a078752fcb771d32c9af2da12187373b149fadc7c199c069384f8",
    "pocketlog/__init__.py": "f21d98cc0a0f28c6bed66c468069f7c9fe20beef2d7752a46d0c69023ddfeb1d",
    "pocketlog/cli.py": "c89841f74643c93b7753ce222f34e67fcb0243e34a336025df5a8bb08a9dcc6e",
    "pocketlog/legacy.py": "bd8a225d8861878f5b63d485c720f32dc6c4b87ab51703beaf5188b946f93c07",
    "pocketlog/store.py": "5302c9520ebe8244bfa9afcc601134ab550b16b18f8969f1bc08fbb0a06a6ed2",
    "tests/test_store.py": "757aec5454095d91fb195bd4491a68a0dce41515d19bb9ca41b4191bc8573673",
}
EXECUTABLE = ["bin/pocketlog"]


def tree(root):
    """Return {relative name: SHA-256 of the content} of all files below a directory."""
    files = (path for path in root.rglob("*") if not path.is_dir())
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


class Restored(unittest.TestCase):
    def same(self, name):
        path = RESTORED / name
        self.assertTrue(path.is_file(), f"{path} is not there")
        self.assertEqual(hashlib.sha256(path.read_bytes()).hexdigest(), LOST[name], f"{path} is not as it was")

    def test_release_is_untouched(self):
        self.assertEqual(tree(Path("/app/release")), RELEASE)

    def test_nothing_is_missing_and_nothing_is_added(self):
        self.assertEqual(sorted(tree(RESTORED)), sorted(LOST))
        directories = {str(path.relative_to(RESTORED)) for path in RESTORED.rglob("*") if path.is_dir()}
        self.assertEqual(directories, {"bin", "docs", "pocketlog", "tests"})

    def test_executable_files(self):
        found = sorted(name for name in LOST if (RESTORED / name).stat().st_mode & 0o111)
        self.assertEqual(found, EXECUTABLE)

    def test_readme_has_both_changes(self):
        self.same("README.md")

    def test_renamed_document(self):
        self.same("docs/FORMAT.md")

    def test_file_without_last_newline(self):
        self.same("NEWS")

    def test_store_has_the_second_version_and_its_cache(self):
        self.same("pocketlog/store.py")

    def test_cli_has_no_weekdays(self):
        self.same("pocketlog/cli.py")

    def test_mail_in_base64(self):
        self.same("bin/pocketlog")
        self.same("tests/test_store.py")

    def test_reverted_removal(self):
        self.same("pocketlog/legacy.py")

    def test_version_was_not_raised(self):
        self.same("pocketlog/__init__.py")
        self.same("pocketlog/__main__.py")


if __name__ == "__main__":
    unittest.main()
