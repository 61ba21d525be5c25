"""`moexray whatif`: experiments on the user's own history."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from moexray.faces.cli.policies import command as policies
from moexray.faces.cli.refuse import check_paths, refusing
from moexray.faces.cli.say import say
from moexray.faces.cli.size_option import SizeOption
from moexray.faces.cli.whatif_routing import routing

if TYPE_CHECKING:
    from moexray.whatif.allocator import Study

__all__ = ["command"]


@click.group("whatif")
def command() -> None:
    """Experiments on your own history: what would another setting have done."""


command.add_command(policies)
command.add_command(routing)


@command.command("memory")
@click.argument("paths", nargs=-1, required=True, metavar="SNAPSHOT...")
@click.option("--capacity", type=SizeOption(), help="Device memory that PyTorch may have, e.g. 78GiB.")
@click.option("--memory-fraction", type=click.FloatRange(0, 1, min_open=True),
              help="set_per_process_memory_fraction of the process, a share of --capacity.")  # fmt: skip
@click.option(
    "--conf", "confs", multiple=True, help="Replay just this PYTORCH_ALLOC_CONF string; repeatable."
)
@click.option("--engine", type=click.Choice(["vllm", "sglang", "trtllm", "hf", "other"]),
              help="Engine of the server: with --tp it tells whether custom all-reduce runs.")  # fmt: skip
@click.option("--tp", type=click.IntRange(min=1), default=1, show_default=True, help="Tensor parallel size.")
@click.option("--no-custom-all-reduce", is_flag=True, help="Custom all-reduce is disabled.")
@click.option("--sleep-mode", is_flag=True, help="Sleep mode (vLLM) or the memory saver (SGLang) is on.")
@click.option("--cuda-ipc", is_flag=True, help="Tensors are shared with other processes by CUDA IPC.")
@click.option("--custom-pool", is_flag=True, help="A MemPool with an allocator of its own is in use.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def memory(paths: tuple[str, ...], **options: Any) -> None:
    """Replay the history in SNAPSHOT under many allocator settings and name the line to set.

    SNAPSHOT is a memory snapshot with history, or a folder with some (and the launch line, which is
    read for conflicts); or a profile with memory events of a CPU run, for a forecast. The replay of
    the recorded settings is checked first; if it does not agree with the recording, nothing is
    advised. What is advised holds for all files given.
    """
    begin = time.perf_counter()
    with refusing():
        check_paths(paths)
        found = _study(paths, options)
    from moexray.faces.cli import whatif_words

    seconds = time.perf_counter() - begin
    render = whatif_words.document if options["form"] == "json" else whatif_words.text
    say(render(found, seconds))


def _study(paths: tuple[str, ...], options: dict[str, Any]) -> Study:
    from moexray.readers.read_any import read_any
    from moexray.whatif import allocator as whatif

    use = whatif.Use(
        engine=options["engine"],
        tensor_parallel=options["tp"],
        sleep_mode=options["sleep_mode"],
        cuda_ipc=options["cuda_ipc"],
        custom_pool=options["custom_pool"],
        no_custom_all_reduce=options["no_custom_all_reduce"],
    )
    size = whatif.Memory(capacity=options["capacity"], fraction=options["memory_fraction"])
    return whatif.study(read_any(paths), size, use, options["confs"])
