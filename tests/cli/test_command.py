"""The command as a whole: help whose examples run, exit codes and streams, no torch where none is needed, Ctrl-C."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.cli.common import DIM, pairloom

COMMANDS = ("bench", "export", "info", "mine", "score")
PAIRLOOM = (sys.executable, "-m", "pairloom.cli")


def examples(command):
    """Commands after "Examples:" in the help, line ends that are continued put together."""
    text = pairloom(command, "--help", COLUMNS="80").stdout
    after = re.split(r"\n *Examples?:\n", text)[1].replace("\\\n", " ")
    return [line.strip() for line in after.splitlines() if line.strip()]


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_of_the_help_run(command, here):
    found = examples(command)
    assert found
    for example in found:
        words = shlex.split(example)
        environment = dict(words.pop(0).split("=") for _ in range(words.index("pairloom")))
        assert words[:2] == ["pairloom", command]
        pairloom(*words[1:], **environment)
        if "-o" in words and words[-1] != "-":
            assert (here / words[-1]).stat().st_size > 0


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_a_terminal(command):
    lines = pairloom(*([command] if command else []), "--help", COLUMNS="80").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any(line.endswith("...") for line in lines[1:])


def test_streams_and_exit_codes(here):
    def run(*arguments):
        return subprocess.run([*PAIRLOOM, *arguments], capture_output=True, text=True)

    model = ("score", "--model", "retriever.onnx", "-o", "-", "--queries")
    done = run(*model, "queries.npy")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("query,rank,id,score\n0,1,item 0,")
    failed = run(*model, "nothing.npy")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr == "pairloom: --queries is nothing.npy, and there is no such file\n"
    wrong = run(*model)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "--queries" in wrong.stderr


def test_a_reader_that_stops_is_no_error(here):
    np.lib.format.open_memmap("queries.npy", "w+", np.float32, (20_000, DIM))
    command = f"{shlex.join(PAIRLOOM)} score --model retriever.onnx --queries queries.npy -o - | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("query,rank,id,score\n", "")


@pytest.mark.parametrize(
    "command",
    [
        "info",
        "score --model retriever.onnx --queries queries.npy -o found.csv",
        "score --gallery gallery.npy --queries queries.npy --screen int8 --ids ids.csv --exclude positives.csv -o -",
    ],
)
def test_torch_is_not_needed(command, here):
    """In a process where importing torch raises."""
    code = "import sys; sys.modules['torch'] = None; from pairloom.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, *command.split()], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_missing_package_is_named(here):
    code = "import sys; sys.modules['pyarrow'] = None; from pairloom.cli import main; main()"
    arguments = ["score", "--model", "retriever.onnx", "--queries", "queries.npy", "-o", "found.parquet"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install pairloom[tables]" in done.stderr
    assert done.stderr.count("\n") == 1


def test_ctrl_c_leaves_nothing_half_written(here):
    np.lib.format.open_memmap("many.npy", "w+", np.float32, (1_000_000, DIM))
    before = set(os.listdir())
    arguments = ("score", "--model", "retriever.onnx", "--queries", "many.npy", "--batch", "64", "-o", "found.csv")
    running = subprocess.Popen([*PAIRLOOM, *arguments], stderr=subprocess.PIPE, text=True)
    while running.poll() is None and set(os.listdir()) == before:
        time.sleep(0.01)
    assert running.poll() is None
    running.send_signal(signal.SIGINT)
    assert running.communicate()[1] == "pairloom: interrupted\n"
    assert running.returncode == 130
    assert set(os.listdir()) == before


def test_a_terminal_sees_progress(here):
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    arguments = ("score", "--model", "retriever.onnx", "--queries", "queries.npy", "-o", "found.csv")
    running = subprocess.Popen([*PAIRLOOM, *arguments], stderr=theirs, env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    seen = b""
    try:
        while part := os.read(ours, 65536):
            seen += part
    except OSError:  # Linux's way to say that the other side was closed
        pass
    assert running.wait() == 0
    assert b"scoring" in seen
    assert b"100%" in seen
