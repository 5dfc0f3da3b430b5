"""Completions and the manual: loaded by the shells and formatters that they are for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from daemon_harness import BIN, copy_model, model
from job_tools import detach
from terminal import Terminal

from conftest import MakeDaemon

PATH = f"{BIN}:{os.environ['PATH']}"
PRECISIONS = ["auto", "bf16", "exact", "q8"]
Complete = Callable[..., list[str]]


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"no {program} here")


def run(*command: str, code: int = 0, **more: str) -> str:
    env = {key: value for key, value in os.environ.items() if not key.startswith("MICROKIMI")}
    done = subprocess.run(
        command, env={**env, **more, "PATH": PATH}, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == code, done
    return done.stdout.decode()


def help_of(command: str) -> str:
    return run(str(BIN / "mk"), command, "--help")


def commands() -> list[str]:
    listed = run(str(BIN / "mk"), "--help").split("Commands:\n")[1].split("\n\n")[0]
    return [line.split()[0] for line in listed.splitlines()]


def options(command: str) -> list[str]:
    """Every name in the first column of the help."""
    return [
        name
        for line in help_of(command).splitlines()
        if re.match(r"  -", line)
        for name in line.split()[0].split(",")
    ]


def bash(*words: str, cwd: Path | None = None, **env: str) -> list[str]:
    """What bash offers for the last word."""
    script = (
        'source <(mk completions bash); COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
        "$(complete -p mk | sed 's/.*-F \\([^ ]*\\) .*/\\1/'); printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    if cwd:
        script = f"cd '{cwd}'; {script}"
    return sorted(run("bash", "-c", script, "bash", *words, **env).split("\n")[:-1])


def fish(*words: str, **env: str) -> list[str]:
    line = " ".join(words)
    script = f"mk completions fish | source; complete -C '{line}'"
    out = run("fish", "--no-config", "-c", script, **env)
    return sorted(one.split("\t")[0] for one in out.splitlines())


@needs("bash")
def test_bash_completes_commands_options_and_values() -> None:
    everything = [*commands(), "help", "--help", "--version"]
    assert len(everything) > 15
    assert bash("mk", "") == sorted(everything)
    assert bash("mk", "det") == ["detokenize"]
    for command in commands():
        assert bash("mk", command, "-") == sorted(options(command))
    assert bash("mk", "run", "--max") == ["--max-new"]
    assert bash("mk", "run", "--precision", "") == PRECISIONS
    assert bash("mk", "map", "--precision", "=", "b") == ["bf16"]
    assert bash("mk", "map", "--precision", "=") == PRECISIONS
    assert bash("mk", "completions", "") == ["bash", "fish", "zsh"]
    assert bash("mk", "build", "--arch", "") == ["dsv4", "k3"]
    assert bash("mk", "build", "--preset", "mi") == ["micro"]
    assert bash("mk", "config", "un") == ["unset"]
    assert bash("mk", "config", "--json", "get", "max_") == ["max_batch", "max_queue"]
    assert bash("mk", "run", "--temp", "") == [""]


@needs("bash")
def test_bash_completes_files_with_blanks(tmp_path: Path) -> None:
    (tmp_path / "some prompts.txt").touch()
    (tmp_path / "other").touch()
    assert bash("mk", "map", "so", cwd=tmp_path) == ["some prompts.txt"]
    assert bash("mk", "run", "-f", "", cwd=tmp_path) == ["other", "some prompts.txt"]


@needs("bash")
def test_models_complete_and_names_are_not_expanded(
    make_daemon: MakeDaemon, tmp_path: Path
) -> None:
    place = make_daemon()
    models = place.home / "data" / "microkimi" / "models"
    models.mkdir(parents=True)
    hostile = "x$(touch ran)`touch ran`"
    for name in ("river-small", "river large", hostile):
        copied = Path(copy_model(tmp_path / "copy"))
        shutil.copy(copied, models / f"{name}.bin")
        shutil.rmtree(copied.parent)
    env = place.env()
    # Completing starts no daemon.
    assert bash("mk", "load", "riv", cwd=tmp_path, **env) == [""]
    assert not place.socket.exists()
    place.start()
    both = ["river large", "river-small"]
    assert bash("mk", "load", "riv", cwd=tmp_path, **env) == both
    assert bash("mk", "run", "-m", "riv", cwd=tmp_path, **env) == both
    assert bash("mk", "run", "--model", "x", cwd=tmp_path, **env) == [hostile]
    assert list(tmp_path.rglob("ran")) == []
    if shutil.which("fish"):
        assert fish("mk", "run", "--model", "riv", **env) == both


@needs("bash")
def test_ids_of_jobs_complete(make_daemon: MakeDaemon) -> None:
    place = make_daemon()
    env = place.env()
    assert bash("mk", "jobs", "show", "", **env) == [""]
    assert not place.socket.exists()
    place.start()
    ids = sorted(detach(place, "verify", model()) for _ in range(2))
    assert bash("mk", "jobs", "show", "", **env) == ids
    assert bash("mk", "jobs", "rm", ids[0][:5], **env) == [ids[0]]
    if shutil.which("fish"):
        assert fish("mk", "jobs", "attach", "", **env) == ids


@needs("fish")
def test_fish_completes_commands_options_and_values() -> None:
    assert set(commands()) <= set(fish("mk", ""))
    assert fish("mk", "det") == ["detokenize"]
    assert fish("mk", "run", "--max") == ["--max-new"]
    assert fish("mk", "map", "--precision", "") == PRECISIONS
    assert fish("mk", "completions", "") == ["bash", "fish", "zsh"]
    for command in commands():
        long = [name for name in options(command) if name.startswith("--")]
        assert set(long) <= set(fish("mk", command, "--"))


ZSH = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1= ; stty -echo columns 300; autoload -U compinit; compinit -u -D"
zpty -w shell "eval \"\$(mk completions zsh)\"; zstyle ':completion:*' verbose no"
zpty -w shell "setopt no_always_last_prompt; LISTMAX=1000; bindkey '^D' list-choices"
# With the prompt, the line editor reads the terminal.
zpty -w shell "PS1='PRO''MPT '"
zpty -r shell out '*PROMPT*'
zpty -w -n shell "$1"$'\004'$'\025'"print EN''D"$'\n'
zpty -r shell out '*END*'
print -r -- $out
"""


def zsh(line: str) -> set[str]:
    """The words that zsh shows."""
    shown = run("zsh", "-f", "-c", ZSH, "zsh", line)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", " ", shown)
    return set(shown.split())


@needs("zsh")
def test_zsh_completes_commands_options_and_values() -> None:
    assert set(commands()) <= zsh("mk ")
    assert {"--max-new", "--system", "--no-autostart"} <= zsh("mk run --")
    assert set(PRECISIONS) <= zsh("mk map --precision ")
    assert {"bash", "fish", "zsh"} <= zsh("mk completions ")


def test_a_shell_that_is_not_known() -> None:
    assert run(str(BIN / "mk"), "completions", "csh", code=2) == ""


@needs("groff")
def test_the_manual_of_the_config_file_holds_every_key(
    tmp_path: Path, make_daemon: MakeDaemon
) -> None:
    page = tmp_path / "page.5"
    page.write_text(run(str(BIN / "mk"), "--man-config"))
    text = formatted(page)
    example = text.split("EXAMPLE\n")[1].split("\nSEE ALSO")[0]
    daemon = make_daemon()
    daemon.config.write_text(example)
    listed = run(str(BIN / "mk"), "config", **daemon.env())
    keys = [line.split()[0] for line in listed.splitlines() if line.startswith("  ")]
    assert len(keys) > 12
    described = text.split("\nKEYS\n")[1].split("\nEXAMPLE")[0]
    for key in keys:
        assert re.search(rf"^ +{key.split('.')[0]} = ", described, re.M), key
    assert listed.count("file, line") == len(keys)


def manual(tmp_path: Path, program: str = "mk") -> Path:
    page = tmp_path / f"{program}.1"
    page.write_text(run(str(BIN / program), "--man"))
    return page


def formatted(page: Path) -> str:
    """The page as wide text, without faces."""
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8", "-P-c", "-rLL=300n", str(page)],
        capture_output=True,
        check=True,
    )
    assert done.stderr == b""
    return re.sub(".\x08", "", done.stdout.decode())


@needs("groff")
def test_the_manual_formats_without_warnings_and_holds_everything(tmp_path: Path) -> None:
    text = formatted(manual(tmp_path))
    sections = text.split("COMMANDS\n")[1]
    for command in commands():
        section = re.split(r"\n   mk ", sections)
        (mine,) = [
            one for one in section if one.split("\n")[0].strip() in (command, f"mk {command}")
        ]
        for name in options(command):
            assert re.search(rf"^ +(-[^ ]+, )*{re.escape(name)}(,| |$)", mine, re.M), (
                command,
                name,
            )
        for example in help_of(command).split("Examples:\n")[1].splitlines():
            assert example.strip() in mine
    for line in run(str(BIN / "mk"), "--help").split("Exit codes:\n")[1].splitlines()[:10]:
        code, meaning = line.split(maxsplit=1)
        assert re.search(rf"^ +{code} +{re.escape(meaning)}\.$", text, re.M), line
    assert "MICROKIMI_SOCKET" in text and "microkimi 0" in text


@needs("groff")
def test_the_daemons_manual_holds_all_of_its_help(tmp_path: Path) -> None:
    text = formatted(manual(tmp_path, "microkimid"))
    shown = run(str(BIN / "microkimid"), "--help")
    options, tables = shown.split("Options:\n")[1].split("\n\n", 1)
    names = re.findall(r"^  ((?:-\w,)?--[\w-]+)", options, re.M)
    assert len(names) > 8 and "--man" not in shown
    for name in names:
        assert re.search(rf"^ +{name.replace(',', ', ')}( |$)", text, re.M), name
    for line in re.findall(r"^  +(?:[^ ]+ )*[^ ]+  +(.*)$|^ {8,}(.*)$", tables, re.M):
        meaning = "".join(line).strip()
        assert meaning + "." in text, meaning
    words = " ".join(text.split())
    assert "mk service install" in words and "microkimi 0" in words


@needs("groff")
def test_every_setting_in_the_daemons_manual_is_one(
    tmp_path: Path, make_daemon: MakeDaemon
) -> None:
    text = formatted(manual(tmp_path, "microkimid"))
    section = text.split("CONFIGURATION\n")[1].split("\nSERVICE")[0]
    settings = re.findall(r"^ +(\w+ = .*?)(?:  .*)?$", section, re.M)
    assert len(settings) > 10
    daemon = make_daemon()
    daemon.config.write_text("\n".join(settings) + "\n")
    daemon.start()
    assert "unknown key" not in daemon.log()
    assert daemon.client().call("status")["max_batch"] == 8


@needs("man")
def test_man_shows_the_manual(tmp_path: Path) -> None:
    page = manual(tmp_path)
    done = subprocess.run(
        ["man", "--warnings=w", "-l", str(page)],
        env={**os.environ, "MANPAGER": "cat", "MANWIDTH": "100", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        check=True,
    )
    assert done.stderr == b"" and b"mk map" in re.sub(b".\x08", b"", done.stdout)


def test_help_fits_the_terminal() -> None:
    for command in ("run", "map", "build"):
        # The shell makes the terminal narrow before mk looks at it.
        script = f"stty cols 60; exec '{BIN / 'mk'}' {command} --help"
        terminal = Terminal(["/bin/sh", "-c", script], {"PATH": PATH}, columns=60)
        assert terminal.wait() == 0
        shown = terminal.shown.replace("\r", "")
        text, examples = shown.split("Examples:\n")
        assert max(len(line) for line in text.splitlines()) <= 60
        plain = help_of(command)
        assert max(len(line) for line in plain.splitlines()) > 60
        assert shown.split() == plain.split()  # nothing is lost
        assert examples.strip() == plain.split("Examples:\n")[1].strip()
