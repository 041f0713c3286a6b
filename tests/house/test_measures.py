"""Measures of a package that is made up; nothing is traced."""

from pathlib import Path

import pytest

from tests.house.measures import full_folders, measure_sizes
from tests.house.request import imported_records

FILES = {
    "__init__.py": "",
    "__main__.py": "import made_up.api.app\n",
    "settings.py": "HOST = ''\n",
    "engine.py": "import made_up.core.rule\n\n\ndef run():\n    def step():\n        pass\n",
    "api/__init__.py": "",
    "api/app.py": "import made_up.text.words\nimport made_up.settings\n",
    "api/body.py": "import made_up.text.words\n",
    "text/__init__.py": "",
    "text/words.py": "import made_up.api.body\n",
    "core/__init__.py": "",
    "core/rule.py": "import made_up.core.trees.tree\nimport made_up.settings\n",
    "core/trees/__init__.py": "",
    "core/trees/tree.py": "class Tree:\n    def walk(self) -> int:\n        '''Interface.'''\n",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "made_up" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "made_up"


def test_sizes(package: Path) -> None:
    sizes = measure_sizes(package)
    assert (sizes.files, sizes.lines) == (13, 17)
    assert (sizes.file_p50, sizes.file_p95, sizes.file_max) == (1, 6, 6)
    assert (sizes.function_p50, sizes.function_p95, sizes.function_max) == (2, 3, 3)
    assert (sizes.longest_file, sizes.longest_function) == ("engine.py", "engine.py:run")


def test_a_folder_is_full_at_sixteen_files_besides_its_init(package: Path) -> None:
    for number in range(13):
        (package / "api" / f"route{number}.py").touch()
    assert full_folders(package) == {}
    (package / "api" / "last.py").touch()
    assert full_folders(package) == {package / "api": 16}


def test_what_imports_a_record_needs_it_too(package: Path) -> None:
    rule = package / "core" / "rule.py"
    assert imported_records({rule}, [package]) == {
        package / "settings.py",
        package / "core" / "trees" / "tree.py",
    }
    assert imported_records({package / "api" / "app.py"}, [package]) == {
        package / "settings.py",
        package / "text" / "words.py",
    }
