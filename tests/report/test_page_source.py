"""The page's modules and style: formatted alike, joined without a build step, and without anything unsafe."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import fedatlas.report.page
from fedatlas.report.page import join_scripts

FOLDER = Path(fedatlas.report.page.__file__).parent / "browser"
ROOT = Path(__file__).parents[2]
BIOME = ROOT / "build" / "biome" / "node_modules" / ".bin" / "biome"
MODULES = sorted(FOLDER.glob("*.js"))
FORBIDDEN = (
    *("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc"),
    *("fetch(", "XMLHttpRequest", "WebSocket", "import(", "localStorage", "sessionStorage", "document.cookie"),
    *("console.", "debugger", "var "),
)


def names(pattern: str, source: str) -> list[str]:
    return re.findall(pattern, source, re.MULTILINE)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_a_module_says_what_it_is_and_uses_nothing_unsafe(path: Path) -> None:
    source = path.read_text()
    assert source.startswith("// ")
    assert source.endswith("\n")
    assert "\t" not in source
    assert "\r" not in source
    assert not [line for line in source.splitlines() if line != line.rstrip() or (len(line) - len(line.lstrip())) % 2]
    code = re.sub(r"//.*", "", source)
    assert [word for word in FORBIDDEN if word in code] == []
    assert not re.search(r"[^=!]==[^=]|!=[^=]", code)
    assert len(source.splitlines()) <= 400


def test_imports_are_exported_and_used() -> None:
    exports = {
        path.stem: set(names(r"^export (?:async )?(?:function|const|class) (\w+)", path.read_text()))
        for path in MODULES
    }
    used: dict[str, set[str]] = {stem: set() for stem in exports}
    for path in MODULES:
        source = path.read_text()
        for found, module in names(r'^import \{([^}]*)\} from "\./(\w+)\.js";$', source):
            for name in (word.strip() for word in found.split(",") if word.strip()):
                assert name in exports[module], (path.name, name)
                assert len(re.findall(rf"\b{name}\b", source)) > 1, f"{path.name} does not use {name}"
                used[module].add(name)
    assert {stem: sorted(own - used[stem]) for stem, own in exports.items() if own - used[stem]} == {}


def test_functions_are_used() -> None:
    for path in MODULES:
        source = path.read_text()
        for name in names(r"^(?:async )?function (\w+)", source):
            assert len(re.findall(rf"\b{name}\b", source)) > 1, f"{path.name} does not use {name}"


def test_all_modules_are_on_the_page_without_imports() -> None:
    script = join_scripts()
    assert all(f"const {path.stem}_module = " in script for path in MODULES)
    assert not re.search(r"^(import|export) ", script, re.MULTILINE)
    assert "</script" not in script


def test_the_style_s_colours_are_all_defined_and_used() -> None:
    style = (FOLDER / "page.css").read_text()
    scripts = "".join(path.read_text() for path in MODULES)
    defined, wanted = set(names(r"^\s*--(\w[\w-]*):", style)), set(re.findall(r"var\(--([\w-]+)\)", style))
    assert wanted <= defined
    assert not [name for name in defined - wanted if f'ink("{name}")' not in scripts]
    assert "@import" not in style
    assert "url(" not in style


@pytest.mark.skipif(not BIOME.exists(), reason="no biome: .ci/run puts it into build/biome")
def test_biome_finds_nothing_to_change_in_scripts_and_style() -> None:
    done = subprocess.run(
        [BIOME, "check", "--error-on-warnings"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_node_parses_every_module(tmp_path: Path) -> None:
    (tmp_path / "joined.mjs").write_text(join_scripts())
    for path in (tmp_path / "joined.mjs", *(shutil.copy(own, tmp_path / f"{own.stem}.mjs") for own in MODULES)):
        done = subprocess.run(["node", "--check", path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
