"""The package: lazy names, one readable sentence when operators are missing, a support table that is not stale."""

import subprocess
import sys
from pathlib import Path

import pytest

import pairloom
from pairloom import _library, _registry

ROOT = Path(pairloom.__file__).resolve().parents[2]


def python(program: str, **environment: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def test_import_does_not_import_torch():
    assert python("import pairloom, sys; print('torch' in sys.modules)") == "False"


def test_every_public_name_is_found():
    for name in pairloom.__all__:
        assert getattr(pairloom, name) is not None
        assert name in dir(pairloom)
    with pytest.raises(AttributeError, match="no attribute 'tripletloss'"):
        getattr(pairloom, "tripletloss")  # noqa: B009 - a lookup is what is tested


def test_star_import():
    assert python("from pairloom import *; print(MultiSimilarityLoss.__name__)") == "MultiSimilarityLoss"


def test_missing_library_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(_library, "LIBRARY", tmp_path / "libpairloom_torch.so")
    monkeypatch.setattr(_library, "_loaded", lambda: False)
    with pytest.raises(ImportError, match=r"operators are not built: .* does not exist; build them with") as caught:
        _library.load()
    assert "\n" not in str(caught.value)


def test_library_of_another_torch_is_one_sentence(tmp_path, monkeypatch):
    broken = tmp_path / "libpairloom_torch.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(_library, "LIBRARY", broken)
    monkeypatch.setattr(_library, "_loaded", lambda: False)
    with pytest.raises(ImportError, match=r"built against torch .* do not load into torch .* rebuild them") as caught:
        _library.load()
    assert "\n" not in str(caught.value)


def test_support_table_is_not_stale():
    path = ROOT / "docs" / "support.md"
    if not path.is_file():
        pytest.skip("an installed package has no docs folder")
    assert path.read_text(encoding="utf-8") == _registry.support_table() + "\n", "run `make docs`"


def test_records_are_complete():
    for record in _registry.records():
        assert record.name == record.op._schema.name.removeprefix("pairloom::")
        assert record.reference is getattr(pairloom.reference, record.name)
        names = [sample.name for sample in record.samples()]
        assert len(names) == len(set(names)) > 3
        for documented in filter(None, (record.function, record.module)):
            assert ">>>" in documented.__doc__, f"{documented.__name__} has no example"
            assert "Args:" in documented.__doc__
