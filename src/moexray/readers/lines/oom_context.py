"""Whether words about memory are a record: not in program text, documentation, passing tests or searches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moexray.core.pattern import lazy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.readers.lines.line import Line

__all__ = ["Surroundings", "bare_error", "is_quoted"]

# Statements of program text; a log shows such lines only below a 'File "..."' line of a traceback.
STATEMENT = lazy(
    r"^\s*(?:import \w|from [\w.]+ import |(?:async )?def \w+\(|class \w+[(:]|#include\b|namespace \w"
    r"|using \w"
    r"|fn \w|func \w|package \w|return\b|raise\b|try:|else:|(?:if|elif|for|while|with"
    r"|except)\b.*:\s*(?:#.*)?$"
    r"|@[\w.]+(?:\(.*\))?$|[A-Za-z_][\w.]* = |(?:public|private|static|const|auto|void|int) |\}\s*$|\{\s*$)"
)
CODE_LEAD = lazy(
    r"^\s*(?:raise|return|throw|assert\w*|print\w*|if|elif|while|with|def|except|const|static|auto|yield|case"
    r"|TORCH_CHECK\w*|std::|self\.|log(?:ger|ging)?\.\w+|warnings?\.)\b|^\s*[\w.\[\]]+ [+]?="
    r" *[rbfuRBFU]{0,2}[\"'(]"
    r"|(?:\bmatch *=|==|!=) *[rf]?[\"']$|^\s*(?://|/\*|\"\"\"|''')"
)
COMMENT_LEAD = lazy(r"^\s*(?:#|--|;|\*)\s+\S+.*[a-z]{3}(?:.*\s|$)")
TEACHES = lazy(
    r"(?i)\bfor example\b|\be\.g\.(?!,)|\blooks? (?:something )?like\b|\btypical(?:ly)?\b|\bexample"
    r" (?:message|output|of|error)"
    r"|\byou (?:may|might|will|can|could|would) (?:also )?(?:see|get|encounter|find)|\bsuch as\b"
    r"|\bsample (?:message|output)"
    r"|\bmessages? (?:of the form|is printed|reads?\b)|\bif you (?:see|get|encounter)|\bwhat does\b.*\bmean"
)
EARLIER = lazy(
    r"(?i)\b(?:previous|earlier|prior|former|last) (?:run|process|instance|attempt|boot|engine|server"
    r"|job|incarnation)\b"
)
CAUGHT = lazy(
    r"(?i)\bcaught\b|\bas (?:expected|planned|intended)\b|\bexpected (?:error|oom|out|failure)|\bon"
    r" purpose\b|\bhandled\b"
    r"|\bhalv(?:ed|ing|e)\b|\b(?:retry(?:ing)?|trying|continu\w+|next) (?:with )?(?:a )?(?:smaller|lower"
    r"|batch|bs\b|half)"
    r"|\b(?:reduc|decreas)(?:ed|ing|e) (?:the )?(?:batch|micro|max)"
    r"|\bbatch[_ -]?size (?:finder|search|scal\w+|tun\w+)|\bauto[_ -]?batch"
    r"|\blargest batch\b|\bsearch (?:ended|finished|done|complete|goes)|\bprob(?:e|ing)\b|\bbinary search\b"
    r"|\b(?:does|did) not fit\b|\bbatch(?: size)? \d+ (?:failed|too (?:large|big))|\bis ignored\b"
    r"|\bignoring\b"
)
# In the lines after a message "caught" must be about it: a watchdog and signal handlers catch, too.
CAUGHT_LATER = lazy(
    r"(?i)\bcaught (?:an? |the |this )?(?:oom|out of|cuda|hip|memory|it\b)"
    r"|\b(?:oom|error|was|been|is) caught\b"
    r"|\b(?:best|optimal|final|usable) batch[ _]size\b"
    r"|\bas (?:expected|planned|intended)\b|\bon purpose\b|\bbatch (?:was )?halved\b"
    r"|\b(?:retry(?:ing)?|trying|continu\w+) (?:with )?(?:a )?(?:smaller|lower|batch|bs\b|half)"
    r"|\b(?:reduc|decreas)(?:ed|ing) (?:the )?(?:batch|micro)|\blargest batch\b"
    r"|\bbatch[_ -]?size (?:finder|search)"
    r"|\bbinary search\b"
    r"|\bsearch (?:ended|finished|done|complete|goes)"
)
EXCEPTION = lazy(r"(?:[\w.]+\.)?\w*(?:Error|Exception|error)\b\W*(?:\(\d+\))?\W*$")
PASSED = lazy(r"^=+ .*\b\d+ passed\b.*=+\s*$|^OK(?: \(.*\))?$|^\[  PASSED  \]|^test result: ok")
FAILED = lazy(r"^=+ .*\b\d+ (?:failed|error)|^FAILED\b|^\[  FAILED  \]")
ERROR_LEAD = lazy(
    r"^\W*(?:[\w.]+\.)?\w*(?:Error|Exception)\b|^\W*(?:terminate called|what\(\)|Failed\b|fatal\b"
    r"|ERROR\b|error:|panic|"
    r"Triton Error|Exception in|THCudaCheck FAIL|CUDA (?:runtime |driver )?error\b|HIP error\b|Cuda"
    r" (?:error|failure))"
)
SPEAKS = lazy(
    r"(?i)\b(?:avoid|prevent|helps?|may|might|could|would|should|if|when|unless|fixed|fix(?:es)?|in case"
    r"|to reduce|guard)\b"
)
BARE = lazy(
    r"(?:CUDA|HIP|ROCm|XPU) out of memory|(?:CUDA|HIP|cuda|hip|Cuda) ?(?:runtime |driver )?(?:error"
    r"|failure)(?: ?\(?\d+\)?)?"
    r" ?:? ?'?out of memory|cudaErrorMemoryAllocation|hipError(?:OutOfMemory|MemoryAllocation)"
    r"|CUDA_ERROR_OUT_OF_MEMORY|UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY|Triton Error \[(?:CUDA|HIP)\]: out"
    r" of memory"
    r"|error=2 : out of memory|cudaMalloc\w*.{0,160}: out of memory"
    r"|^(?:torch\.(?:cuda\.)?)?OutOfMemoryError:?\s*$"
)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What kind of text a file is, as far as it decides whether a message in it happened.

    Args:
        source: Program text.
        passed: A test run that passed; errors in it were expected.
        prose: Headings and paragraphs, hardly a log line.
    """

    source: bool
    passed: bool
    prose: bool

    @classmethod
    def of(cls, lines: Sequence[Line]) -> Surroundings:
        """Looks at the whole file."""
        total = known = statements = headings = 0
        passed = failed = False
        below_frame = False
        document = False  # laid-out JSON: its braces are no statements
        for line in lines:
            text = line.text
            if not text.strip():
                continue
            document = document or (not total and text.lstrip()[:1] in ("{", "["))
            total += 1
            known += line.known
            if not line.known and not below_frame and STATEMENT.match(text):
                statements += 1
            below_frame = text.lstrip().startswith('File "')
            headings += text.startswith(("# ", "## ", "### ", "====", "----"))
            passed = passed or bool(PASSED.match(text))
            failed = failed or bool(FAILED.match(text))
        quiet = known < 0.1 * total
        return cls(
            source=statements >= 3 and statements >= 0.12 * total and quiet and not document,
            passed=passed and not failed,
            prose=headings >= 2 and quiet,
        )


def is_quoted(lead: str, around: Surroundings, lines: Sequence[Line], first: int, last: int) -> bool:
    """Whether a message with numbers is only quoted, expected or caught.

    Args:
        lead: Text before the message on its first line, prefixes already taken off.
        around: The kind of text.
        lines: All lines of the file.
        first: Index of the line where the message begins.
        last: Index of the line where it ends.
    """
    if around.source or around.passed or CODE_LEAD.search(lead) or COMMENT_LEAD.match(lead):
        return True
    line = lines[first]
    before = " ".join(x.text for x in lines[max(first - 3, 0) : first] if x.text.strip() and not x.known)
    if TEACHES.search(lead) or EARLIER.search(lead):
        return True
    if not line.known and TEACHES.search(before[-400:]) and "Traceback" not in before:
        return True
    said = CAUGHT.search(lead)
    logged = line.level == "error" and said is not None and said[0].lower() == "caught"  # by who logs it
    if (said and not logged) or CAUGHT.search(lines[last].text[-160:]):
        return True
    if line.level in ("info", "debug") and lead.strip() and not EXCEPTION.search(lead):
        return True
    after = lines[last + 1 : last + 4]
    return any(CAUGHT_LATER.search(x.text) for x in after if x.level != "error")


def bare_error(lines: Sequence[Line], at: int, around: Surroundings) -> bool:
    """Whether a line is an out-of-memory error without numbers: an error line, a traceback's end."""
    line = lines[at]
    text = line.text
    m = BARE.search(text) if "emory" in text or "EMORY" in text else None
    if m is None or around.source or around.passed or CODE_LEAD.search(text[: m.start()]):
        return False
    if "ried to allocate" in text[m.end() : m.end() + 24]:
        return False  # a template: a placeholder stands where the number would be
    ends_traceback = bool(ERROR_LEAD.match(text)) or "failed: out of memory" in text
    if not ends_traceback and line.level != "error":
        return False
    if around.prose or COMMENT_LEAD.match(text[: m.start()]):
        return False
    sentence = text[: m.start()] + " " + text[m.end() : m.end() + 80].partition(".")[0]
    if SPEAKS.search(sentence) or TEACHES.search(text) or EARLIER.search(text) or CAUGHT.search(text):
        return False
    return not any(CAUGHT_LATER.search(x.text) for x in lines[at + 1 : at + 4] if x.level != "error")
