"""The text that the lab's models are trained on: four domains, all of it there with any CPython.

`python` is the code of the running interpreter's standard library without its docstrings, `english`
those docstrings and the language reference of `pydoc` (both: PSF licence). `tables` (CSV and JSON records)
and `chinese` (sentences of a small grammar) are made here from a seed.
"""

from __future__ import annotations

import ast
import json
import pkgutil
import random
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from moexray.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["DOMAINS", "documents"]

DOMAINS = ("python", "english", "chinese", "tables")
LEFT_OUT = (
    "test",
    "tests",
    "idle_test",
    "site-packages",
    "encodings",
    "lib-dynload",
    "ensurepip",
    "pydoc_data",
)
MADE = 1_500  # documents of a made domain
MOST_BYTES = 1 << 20  # of one source file


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


SUBJECTS = _words(
    "工程师 值班同事 调度器 推理服务 显存分配器 路由器 专家网络 图书管理员 老师 学生 "
    "渔民 医生 厨师 司机 邮递员 研究小组 气象站 市场 村里的老人 小女孩 画家 木匠 银行 "
    "剧团"
)
TIMES = _words(
    "今天早上 昨天夜里 上个星期 去年冬天 午饭以后 春天到来时 每逢周末 半夜两点 下雨的时候 "
    "发布之前 压力测试期间 高峰时段 节日前夕 三天之后 不久以前 傍晚时分"
)
PLACES = _words(
    "机房里 河边 图书馆 城南的集市 实验室 山脚下 厨房里 控制台前 火车站 学校操场 海港 "
    "旧城的茶馆 会议室 果园 第二个机架旁 博物馆门口"
)
VERBS = _words(
    "检查了 重新整理了 发现了 记录了 修好了 讨论了 忘记了 比较了 带走了 准备了 计算了 "
    "画下了 观察了 迁移了 清洗了 说明了 释放了 打开了"
)
OBJECTS = _words(
    "内存碎片 一份延迟报告 三十二个专家的负载 新鲜的蔬菜 两张旧地图 坏掉的水泵 最大的空闲块 "
    "一本关于星星的书 请求队列 红色的灯笼 温度曲线 路由表 一篮苹果 备用的网线 "
    "通信的等待时间 孩子们的作业 去年的账目 门上的锁 一封长信 尾部延迟 显卡的风扇 木头桥"
)
JOINS = _words("因此 可是 同时 后来 不过 于是 另外 结果 其实 据说")
ENDS = _words(
    "大家都松了一口气 问题仍然没有解决 第二天又下起了雨 延迟终于恢复正常 没有人觉得意外 "
    "天色慢慢暗了下来 数字比预期小得多 他们决定再试一次 所有的灯都亮着 空气里有桂花的香味 "
    "这件事写进了手册 路上的行人渐渐少了"
)
COMMA = "\uff0c"  # of Chinese text
COLUMNS = (
    "id",
    "time",
    "rank",
    "layer",
    "expert",
    "tokens",
    "bytes",
    "temp_c",
    "price",
    "qty",
    "score",
    "load",
)
WORDS = ("alpha", "beta", "north", "south", "green", "amber", "ok", "late", "retry", "done", "cold", "hot")


def documents(domain: str) -> list[str]:
    """Texts of a domain, always in the same order.

    Args:
        domain: One of `DOMAINS`.

    Raises:
        UsageError: the interpreter has no sources of its standard library.
    """
    make: dict[str, Callable[[], Iterator[str]]] = {
        "python": _code, "english": _english, "chinese": _chinese, "tables": _tables,
    }  # fmt: skip
    found = [text for text in make[domain]() if len(text) > 200]
    if not found:
        hint = "train with an interpreter that has its standard library as .py files"
        raise UsageError(f"no text for the domain {domain!r}", hint=hint)
    return found


def _sources() -> Iterator[ast.Module]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        if not set(inside.parts) & set(LEFT_OUT) and not path.name.startswith("_sysconfigdata"):
            try:
                yield ast.parse(path.read_bytes()[:MOST_BYTES])
            except (OSError, SyntaxError, ValueError):
                continue


def _described(tree: ast.Module) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            yield node


def _code() -> Iterator[str]:
    for tree in _sources():
        for node in _described(tree):
            node.body = node.body[1:] or [ast.Pass()]
        yield ast.unparse(tree)


def _english() -> Iterator[str]:
    reference = pkgutil.resolve_name("pydoc_data.topics").topics
    yield from (reference[name] for name in sorted(reference))
    for tree in _sources():
        yield "\n\n".join(ast.get_docstring(node) or "" for node in _described(tree))


def _chinese() -> Iterator[str]:
    for seed in range(MADE):
        draw = random.Random(f"chinese {seed}")  # noqa: S311  a seed is the point
        yield "".join(_sentence(draw) for _ in range(30))


def _sentence(draw: random.Random) -> str:
    first = f"{draw.choice(TIMES)}{COMMA}{draw.choice(SUBJECTS)}在{draw.choice(PLACES)}"
    first += f"{draw.choice(VERBS)}{draw.choice(OBJECTS)}"
    if draw.random() < 0.5:
        return f"{first}{COMMA}{draw.choice(JOINS)}{draw.choice(ENDS)}。"
    then = f"{draw.choice(JOINS)}{COMMA}{draw.choice(SUBJECTS)}也{draw.choice(VERBS)}{draw.choice(OBJECTS)}"
    return f"{first}。{then}。"


def _tables() -> Iterator[str]:
    for seed in range(MADE):
        draw = random.Random(f"tables {seed}")  # noqa: S311
        columns = draw.sample(COLUMNS, draw.randint(3, 7))
        rows = [{name: _cell(draw, name, at) for name in columns} for at in range(60)]
        if seed % 2:
            yield "\n".join(json.dumps(row) for row in rows)
        else:
            yield "\n".join((",".join(columns), *(",".join(str(v) for v in row.values()) for row in rows)))


def _cell(draw: random.Random, name: str, at: int) -> int | float | str:
    if name in ("id", "rank", "layer", "expert"):
        return at if name == "id" else draw.randint(0, 63)
    if name in ("time", "temp_c", "price", "load"):
        return round(draw.uniform(0, 1000), draw.choice((1, 3)))
    return draw.randint(0, 99_999) if draw.random() < 0.8 else draw.choice(WORDS)
