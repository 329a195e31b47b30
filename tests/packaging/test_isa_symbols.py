"""Proves that no code of a higher instruction-set level can be linked in where a lower one is meant.

The linker keeps one copy of every weak symbol (inline functions, template instances). If an AVX-512 object offers one
that other objects offer too, its copy may serve them all, and older processors die of an illegal instruction. So a weak
symbol of such an object must carry the level's namespace in its name: then no other object has it.
"""

import re

import pytest

from pairloom import _native
from tests.packaging.build_tree import output, require_tree

LEVELS = [level for level in _native.build_info()["isa_levels"] if level != "baseline"]

# The address of the C++ runtime's exception handler: data, the same for all.
HARMLESS = {"DW.ref.__gxx_personality_v0"}

SYMBOL = re.compile(r"^[0-9a-f]+ ([WVu]) (.+)$", re.MULTILINE)


@pytest.mark.parametrize("level", LEVELS)
def test_weak_symbols_carry_their_level(level: str) -> None:
    objects = sorted((require_tree() / "CMakeFiles" / f"pairloom_isa_{level}.dir").rglob("*.o"))
    assert objects
    for path in objects:
        symbols = [name for _, name in SYMBOL.findall(output("nm", "--demangle", "--defined-only", str(path)))]
        leaked = [name for name in symbols if f"pairloom::{level}::" not in name and name not in HARMLESS]
        assert not leaked, f"{path.name} offers to everybody: {leaked}"


@pytest.mark.parametrize("level", LEVELS)
def test_objects_hold_only_their_own_level(level: str) -> None:
    others = [f"pairloom::{other}::" for other in _native.build_info()["isa_levels"] if other != level]
    for path in (require_tree() / "CMakeFiles" / f"pairloom_isa_{level}.dir").rglob("*.o"):
        defined = output("nm", "--demangle", "--defined-only", str(path))
        assert not [other for other in others if other in defined], path.name
