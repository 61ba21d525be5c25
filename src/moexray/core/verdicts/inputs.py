"""What the verdicts about the files themselves mean: data only."""

from __future__ import annotations

from moexray.core.verdicts.verdict import Verdict

__all__ = ["VERDICTS"]

ANY = ("any file",)
TRACES = ("traces",)

VERDICTS: tuple[Verdict, ...] = (
    Verdict(
        "input.empty",
        "The file holds nothing.",
        "0 bytes, or white space only.",
        "A header without rows is not empty: it has 0 rows.",
        ("Check the recording.",),
        ANY,
    ),
    Verdict(
        "input.truncated",
        "The file ends in the middle of a record; the whole records before were used.",
        "The decompressor or the parser meets the end too early; the offset and the number of records "
        "are given.",
        "Only an end mark is missing that the format allows to miss (the bracket of an array of trace "
        "events).",
        ("Record again, with more time for the shutdown.",),
        ("gzip, JSON, pickles, tables",),
    ),
    Verdict(
        "input.gzip_damaged",
        "The compressed data fail their checksum, or foreign bytes follow them; what came before was used.",
        "Checksum or length wrong, or bytes after the last member.",
        "Several members behind each other are legal; an early end is input.truncated.",
        ("Copy again and compare checksums.",),
        ("gzip files",),
    ),
    Verdict(
        "input.name_mismatch",
        "Name and content disagree; the content was believed.",
        "The first bytes against the ending of the name.",
        "Content that is not recognised is skipped instead.",
        ("Rename the file.",),
        ANY,
    ),
    Verdict(
        "input.encoding",
        "The text is not plain UTF-8; it was read all the same.",
        "A byte order mark, NUL bytes, or bytes that are no UTF-8 (then read as Latin-1).",
        "ASCII and UTF-8 with Windows line ends are plain.",
        ("None needed.",),
        ("logs, tables, JSON",),
    ),
    Verdict(
        "input.json_repaired",
        "The JSON was invalid and was repaired where only one reading exists.",
        "Bare inf, nan, N/A become missing values; raw control characters, bad escapes, stray bytes, "
        "lost commas are "
        "mended; records that could be read in two ways are dropped and counted.",
        "Valid JSON, however unusual its content.",
        ("Update the exporter.",),
        ("traces, dumps",),
    ),
    Verdict(
        "input.negative_duration",
        "Some events have impossible times; they were dropped and counted.",
        "A duration below 0 or missing, an end stamp of 0, an end more than an hour beyond the capture.",
        "Events of length zero are legal.",
        ("Update the profiler.",),
        TRACES,
    ),
    Verdict(
        "input.dialect",
        "An unusual but unambiguous form was read; the text says how.",
        "Separators and decimal commas seen in all rows; times as text; begin/end pairs; events at the "
        "top level.",
        "Two readings remain (input.dirty_table); the form is plain standard.",
        ("None needed.",),
        ("tables, traces",),
    ),
    Verdict(
        "input.dirty_table",
        "A table holds values that cannot be right; no statistic is made from such a row.",
        "NaN, infinity, negative counts, ragged rows, separators within numbers, all zero; row and "
        "column are named.",
        "Empty fields that mean 'not measured'.",
        ("Mend the exporter.",),
        ("counts, matrices",),
    ),
    Verdict(
        "input.missing_values",
        "Some fields are placeholders and count as missing.",
        "[N/A], [Not Supported], [Insufficient Permissions], [Unknown Error], ERR!; repeated headers are "
        "skipped.",
        "All memory fields are missing (smi.unified_memory).",
        ("Run with more rights or another query.",),
        ("nvidia-smi tables, metrics",),
    ),
    Verdict(
        "input.scrape_dirty",
        "A metrics page is partly unusable.",
        "NaN or infinite samples, duplicate series, a page that is no metrics page (skipped).",
        "Exemplars, _created series, units, end marks and time stamps are legal.",
        ("Mend the scrape target.",),
        ("Prometheus text",),
    ),
    Verdict(
        "input.rank_set",
        "Ranks are missing or occur twice; doubles are never merged or averaged.",
        "World size or members of a group against the ranks found; the rank comes from the content, then "
        "the name.",
        "The world size is unknown; a single rank was given (a choice).",
        ("Collect the missing ranks.",),
        ("traces, dumps, logs of several ranks",),
    ),
    Verdict(
        "input.shape_mismatch",
        "Tables of the ranks do not fit together; they were not merged.",
        "Number of layers or experts, or the kind of number, differs; the odd ones are named.",
        "They differ by padding that a header explains.",
        ("Export all with one version.",),
        ("tables of several ranks",),
    ),
    Verdict(
        "input.clock_jump",
        "A log's clock goes backwards or leaps; durations across it are not computed.",
        "A step back of more than 1 s, or a leap of whole hours.",
        "Lines of several workers that interleave within a second.",
        ("Log in UTC.",),
        ("logs",),
    ),
    Verdict(
        "input.unsafe_pickle",
        "A pickle wants to run code and was not loaded; nothing of it was imported or called.",
        "An opcode names a global outside of the allow-list.",
        "Plain containers and numbers of any protocol.",
        ("Export as JSON, or use a converter that you trust.",),
        ("pickles",),
    ),
    Verdict(
        "input.huge",
        "The file is too large for viewers; it was read as a stream, in bounded memory.",
        "More than 500 MiB of raw trace; warn and refused where a limit of memory or expansion is passed.",
        "It was read only in part: then the text says how much.",
        ("A shorter capture, fewer stacks.",),
        ("traces, snapshots",),
    ),
    Verdict(
        "input.unreadable",
        "A reader of moexray failed on the file: a fault of ours.",
        "The reader raised an error that it should not raise.",
        "Damaged input is told by the other ids.",
        ("Report it, with the file if you may.",),
        ANY,
    ),
)
