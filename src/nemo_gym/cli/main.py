"""`gym`: the command tree, and the one place that reads the command line.

Commands are loaded when they are run: the tables below hold where each lives and one line about it, so that help costs
nothing. Exit codes: 0; 1 there are failures that the user must see; 2 usage; 130 and 143 interrupted.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import itertools
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, NamedTuple, NoReturn

from nemo_gym.errors import GymError, nearest_name


class Target(NamedTuple):
    """Where a command lives (`module:function`), and what it is for."""

    where: str
    summary: str


COMMANDS: Mapping[tuple[str, ...], Target] = {
    ("quickstart",): Target("nemo_gym.cli.quickstart:command", "Run a first evaluation, without keys or downloads"),
    ("env", "init"): Target("nemo_gym.cli.env_init:command", "Write the files of a new resources server"),
    ("env", "test"): Target("nemo_gym.cli.env_test:command", "Run a resources server's tests, or its verifier's cases"),
    ("env", "publish"): Target("nemo_gym.cli.env_publish:command", "Check whether an environment is ready for others"),
    ("env", "schema"): Target("nemo_gym.cli.env_schema:command", "Print the JSON Schema of a resources server's rows"),
    ("env", "start"): Target("nemo_gym.cli.env_start:command", "Start an environment with its agent and model server"),
    ("env", "stop"): Target("nemo_gym.cli.env_stop:command", "Stop what `gym env start` started"),
    ("env", "status"): Target("nemo_gym.cli.env_status:command", "Show the running servers and whether they answer"),
    ("env", "validate"): Target("nemo_gym.cli.env_validate:command", "Check a configuration without starting anything"),
    ("env", "resolve"): Target("nemo_gym.cli.env_resolve:command", "Print the merged configuration, secrets hidden"),
    ("env", "list"): Target("nemo_gym.cli.listing:list_command", "The same as `gym list`"),
    ("env", "search"): Target("nemo_gym.cli.listing:search_command", "The same as `gym search`"),
    ("eval", "run"): Target("nemo_gym.cli.eval_run:command", "Collect rollouts for a file of tasks"),
    ("eval", "status"): Target("nemo_gym.cli.eval_status:command", "Show how far a run is"),
    ("eval", "aggregate"): Target("nemo_gym.cli.eval_aggregate:command", "Compute metrics over the files of a run"),
    ("eval", "health-check"): Target("nemo_gym.cli.eval_health_check:command", "Check the evidence of a run"),
    ("eval", "profile"): Target("nemo_gym.cli.eval_profile:command", "Show rewards task by task"),
    ("capture", "ls"): Target("nemo_gym.cli.capture_ls:command", "List captured rollouts"),
    ("capture", "show"): Target("nemo_gym.cli.capture_show:command", "Show the calls of a rollout, or one call"),
    ("capture", "check"): Target("nemo_gym.cli.capture_check:command", "Look for damage and missing calls"),
    ("capture", "seal"): Target("nemo_gym.cli.capture_seal:seal_command", "Compress finished captures"),
    ("capture", "unseal"): Target("nemo_gym.cli.capture_seal:unseal_command", "Undo `seal`"),
    ("dataset", "make"): Target("nemo_gym.cli.dataset_make:command", "Make tasks with an environment's generator"),
    ("conformance",): Target("nemo_gym.cli.conformance:command", "Show which rows of evidence an agent fulfils"),
    ("list",): Target("nemo_gym.cli.listing:list_command", "List environments, agents, models and more"),
    ("search",): Target("nemo_gym.cli.listing:search_command", "Find an environment, agent or model by words"),
}

GROUPS: Mapping[str, str] = {
    "env": "Write, start, stop and check environments",
    "eval": "Run evaluations and look at their results",
    "capture": "Look into captured model calls",
    "dataset": "Make datasets of tasks",
}

OPTIONAL_VALUES: Mapping[str, str] = {"--watch": "2"}
"""Options whose number may be left out, and what it is then: a run saves its progress every two seconds."""

_EPILOGUE = """\
Options:
  -h, --help     Show help; after a command, the help of that command
  --version      Show the version
  -v, --verbose  Say more on stderr
  --json         Print the result as JSON, for commands that print one
"""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command line and exit with its code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _open_standard_files()
    # A run of which every rollout has the same reward is nothing to be warned of; its metrics show the interval.
    warnings.filterwarnings("ignore", "95% intervals without width", RuntimeWarning)
    try:
        code = run(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        # The reader of our output is gone, as after `gym list ... | head`; nothing is left to say.
        _give_up_stdout()
        code = 1
    except UnwritableOutputError as error:
        _give_up_stdout()
        _say(f"Error: {error}")
        code = 1
    sys.exit(code)


def _give_up_stdout() -> None:
    """Let what is left go nowhere: the interpreter writes it at its end, and would end with another error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(text: str) -> None:
    # Loaded where there is something to say: help and version print nothing else.
    from nemo_gym.cli.output import note

    note(text)


class UnwritableOutputError(Exception):
    """Standard output takes nothing any more, as on a full disk; a reader that left is `BrokenPipeError`."""


class _Output(io.TextIOWrapper):
    """Standard output that says of an error that it is its own: one of a write names no file."""

    def write(self, text: str, /) -> int:
        with _as_output_error():
            return super().write(text)

    def flush(self) -> None:
        with _as_output_error():
            super().flush()


@contextlib.contextmanager
def _as_output_error() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UnwritableOutputError(f"standard output cannot be written: {error.strerror}.") from error


def _open_standard_files() -> None:
    """Put the null device where stdin, stdout or stderr is closed: the next file or socket would get its number.

    What is printed would go there then, and uvloop aborts the process when it closes a file of its own under one.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)  # a closed one would be the same trap for a child process
    os.close(fd)
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, "w" if fd else "r", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout is sys.__stdout__:
        encoding, errors = sys.stdout.encoding, sys.stdout.errors
        line_buffering, write_through = sys.stdout.line_buffering, sys.stdout.write_through
        sys.stdout = _Output(
            sys.stdout.detach(), encoding, errors, line_buffering=line_buffering, write_through=write_through
        )


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Raises only what is a defect, and `KeyboardInterrupt`."""
    try:
        return _dispatch(list(arguments))
    except GymError as error:
        _say(f"Error: {error}")
        return error.exit_code
    except OSError as error:
        if isinstance(error, BrokenPipeError) or error.filename is None:
            raise
        # A file that cannot be read or written is the user's to fix, whichever command met it.
        reason = error.strerror or type(error).__name__
        _say(f"Error: `{error.filename}`: {reason[:1].lower()}{reason[1:]}.")
        return 2


def _dispatch(arguments: list[str]) -> int:
    flags, words = _split_global_flags(arguments)
    if "--version" in flags:
        return _print_version(as_json="--json" in flags)
    path, rest = _find_command(words)
    if path is None:
        return _group_help(words, asked="--help" in flags)
    if "--help" in flags:
        rest.insert(0, "--help")
    if "--json" in flags:
        rest.insert(0, "--json")
    _set_up_logging(verbose="--verbose" in flags)
    return _run_command(path, _with_optional_values(rest))


def _split_global_flags(arguments: list[str]) -> tuple[set[str], list[str]]:
    """Take the flags in front of the command, and `-v` wherever it is; everything else is the command's."""
    names = {"-h": "--help", "--help": "--help", "--version": "--version", "--json": "--json"}
    flags: set[str] = set()
    words = [word for word in arguments if word not in ("-v", "--verbose")]
    if len(words) < len(arguments):
        flags.add("--verbose")
    while words and words[0] in names:
        flags.add(names[words.pop(0)])
    return flags, words


def _with_optional_values(words: Sequence[str]) -> list[str]:
    """Give an option of `OPTIONAL_VALUES` its number where the next word is none."""
    given: list[str] = []
    for word, after in itertools.zip_longest(words, words[1:]):
        given.append(word)
        if word in OPTIONAL_VALUES and not _is_number(after):
            given.append(OPTIONAL_VALUES[word])
    return given


def _is_number(word: str | None) -> bool:
    try:
        float(word or "")
    except ValueError:
        return False
    return True


def _find_command(words: list[str]) -> tuple[tuple[str, ...] | None, list[str]]:
    for length in (1, 2):
        path = tuple(words[:length])
        if len(path) == length and path in COMMANDS:
            return path, words[length:]
    return None, words


def _group_help(words: list[str], *, asked: bool) -> int:
    """Print the help of the whole tree or of one group, or say what is wrong with the words."""
    group = words[0] if words and words[0] in GROUPS else None
    rest = [word for word in words[1 if group else 0 :] if word not in ("-h", "--help")]
    if rest:
        known = _names_below(group)
        if rest[0].startswith("-"):
            return _usage_error(f"no such option: `{rest[0]}`.", nearest_name(rest[0], ["--help", "--version"]), group)
        known += [" ".join(path) for path in COMMANDS] if group is None else []
        hint = nearest_name(rest[0], known)
        if not hint and (homes := [" ".join(path) for path in COMMANDS if path[-1] == rest[0]]):
            hint = f" Did you mean `gym {homes[0]}`?"
        return _usage_error(f"no such command: `gym {f'{group} ' if group else ''}{rest[0]}`.", hint, group)
    help_wanted = asked or any(word in ("-h", "--help") for word in words)
    print(_help_text(group), end="", file=sys.stdout if help_wanted else sys.stderr)
    return 0 if help_wanted else 2


def _names_below(group: str | None) -> list[str]:
    if group is not None:
        return [path[1] for path in COMMANDS if path[0] == group and len(path) > 1]
    return list(dict.fromkeys(path[0] for path in COMMANDS))


def _help_text(group: str | None) -> str:
    if group is not None:
        rows = [(path[1], target.summary) for path, target in COMMANDS.items() if path[0] == group]
        return f"Usage: gym {group} COMMAND [OPTIONS]\n\n{GROUPS[group]}.\n\nCommands:\n{_rows(rows)}\n{_EPILOGUE}"
    rows = [(" ".join(path), target.summary) for path, target in COMMANDS.items()]
    return (
        "Usage: gym COMMAND [OPTIONS]\n\nRollouts of LLM agents, with evidence: start an environment, collect "
        f"rollouts, see what\nhappened in each.\n\nCommands:\n{_rows(rows)}\n{_EPILOGUE}"
    )


def _rows(rows: Iterable[tuple[str, str]]) -> str:
    listed = list(rows)
    width = max(len(name) for name, _ in listed)
    return "".join(f"  {name.ljust(width)}  {summary}\n" for name, summary in listed)


def _usage_error(message: str, hint: str, group: str | None) -> int:
    where = f"gym {group} --help" if group else "gym --help"
    _say(f"Error: {message}{hint} `{where}` lists the commands.")
    return 2


def _print_version(*, as_json: bool) -> int:
    from nemo_gym import __version__

    print(f'{{"version": "{__version__}"}}' if as_json else f"gym {__version__}")
    return 0


def _set_up_logging(*, verbose: bool) -> None:
    import logging

    from nemo_gym.records.visible import visible

    class Visible(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return visible(super().format(record))

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Visible("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("nemo_gym").setLevel(logging.DEBUG if verbose else logging.INFO)


def _run_command(path: tuple[str, ...], arguments: list[str]) -> int:
    import typer

    module, _, name = COMMANDS[path].where.partition(":")
    function = getattr(importlib.import_module(module), name)
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(_exiting(function))
    program = f"gym {' '.join(path)}"
    # The library keeps this class in a private module; it is the base of the one that it does show.
    usage_error: type[Exception] = typer.BadParameter.__bases__[0]
    try:
        code = typer.main.get_command(app).main(args=arguments, prog_name=program, standalone_mode=False)
    except usage_error as error:
        _say(f"Error: {_usage_message(error)} `{program} --help` explains the options.")
        return 2
    except typer.Abort:
        return 130
    return code if isinstance(code, int) else 0


def _usage_message(error: Any) -> str:
    """Say what is wrong with the options, with the nearest name for one that does not exist."""
    option = getattr(error, "option_name", None)
    if option is not None and hasattr(error, "possibilities"):
        parameters = error.ctx.command.params if error.ctx else []
        known = [name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)]
        flags = [name for name in known if name.startswith("--")]
        return f"no such option: `{option}`.{nearest_name(option, flags)}"
    message = str(error.format_message()).rstrip(".")
    return f"{message[:1].lower()}{message[1:]}."


def _exiting(function: Callable[..., Any]) -> Callable[..., Any]:
    """A command may return its exit code; Ctrl-C is 130 whatever the library makes of it."""
    import typer

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> None:
        try:
            code = function(*args, **kwargs)
        except KeyboardInterrupt as error:
            raise typer.Exit(130) from error
        raise typer.Exit(code if isinstance(code, int) else 0)

    # Evaluated here, in the namespace of the command's own module.
    signature = inspect.signature(function, eval_str=True)
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    return call


if __name__ == "__main__":
    main()
