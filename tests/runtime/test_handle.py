"""Detaching puts back the very objects, in whatever order handles come off."""

import itertools

import pytest

from moexray.core.errors import UsageError
from moexray.runtime import guard as guards
from moexray.runtime import handle as layers
from moexray.runtime.handle import Handle


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.setattr(guards, "_said", set())


class Slotted:
    __slots__ = ("value",)

    def __init__(self):
        self.value = [1]


class Engine:
    @staticmethod
    def fixed(x):
        return x

    @classmethod
    def made(cls):
        return cls

    def forward(self, x):
        return (x,)

    @property
    def speed(self):
        return self._speed

    @speed.setter
    def speed(self, value):
        self._speed = value


def wrap(handle, owner, name, mark):
    """Replaces a function by one that adds a mark, and passes on once the handle is off."""

    def replacement(*args):
        out = before(*args)
        return (*out, mark) if handle.attached else out

    before = handle.replace(owner, name, replacement)


@pytest.mark.parametrize("name", ["fixed", "made", "forward"])
def test_a_class_gets_its_very_object_back(name):
    raw = vars(Engine)[name]
    with Handle("x", lambda h: h.replace(Engine, name, lambda *_: "ours")):
        assert vars(Engine)[name] is not raw
    assert vars(Engine)[name] is raw


def test_an_inherited_attribute_is_inherited_again():
    engine = Engine()
    with Handle("x", lambda h: wrap(h, engine, "forward", "ours")):
        assert engine.forward(1) == (1, "ours")
    assert vars(engine) == {}
    assert engine.forward(1) == (1,)


def test_slots_properties_and_items():
    slotted, engine, items, row = Slotted(), Engine(), {"a": [0]}, [[5], [6]]
    value, engine.speed = slotted.value, (wanted := [9])
    olds = (value, wanted, items["a"], row[1])

    def install(handle):
        assert handle.replace(slotted, "value", 2) is value
        handle.replace(engine, "speed", 3)
        handle.replace_item(items, "a", 4)
        assert handle.replace_item(items, "new", 5) is None
        assert handle.replace_item(row, 1, 6) == [6]

    with Handle("x", install):
        assert (slotted.value, engine.speed, items, row) == (2, 3, {"a": 4, "new": 5}, [[5], 6])
    assert all(a is b for a, b in zip((slotted.value, engine.speed, items["a"], row[1]), olds, strict=True))
    assert list(items) == ["a"]


def test_attach_and_detach_are_safe_twice_and_can_be_repeated():
    engine, undone = Engine(), []

    def install(handle):
        wrap(handle, engine, "forward", "ours")
        handle.on_detach(lambda: undone.append(1))

    handle = Handle("x", install)
    handle.detach()
    for turn in (1, 2):
        assert handle.attach().attach() is handle
        assert engine.forward(0) == (0, "ours")
        handle.detach()
        handle.detach()
        assert (engine.forward(0), undone, handle.attached) == ((0,), [1] * turn, False)


def test_an_install_that_raises_leaves_nothing():
    engine = Engine()
    raw = vars(Engine)["forward"]

    def install(handle):
        handle.replace(Engine, "forward", None)
        handle.replace(engine, "forward", None)
        handle.replace(engine, "backward", None)

    handle = Handle("x", install)
    with pytest.raises(UsageError, match="no backward to replace"):
        handle.attach()
    assert vars(Engine)["forward"] is raw
    assert vars(engine) == {}
    assert not handle.attached


def test_the_host_raising_inside_the_block_detaches():
    engine = Engine()
    with pytest.raises(ValueError, match="the host's"), Handle("x", lambda h: wrap(h, engine, "forward", 1)):
        raise ValueError("the host's")
    assert vars(engine) == {}


def test_an_undo_that_raises_does_not_keep_the_others(caplog):
    engine = Engine()

    def install(handle):
        wrap(handle, engine, "forward", 1)
        handle.on_detach(lambda: 1 // 0)

    Handle("x", install).attach().detach()
    assert vars(engine) == {}
    assert "could not be undone: ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("owner_of", [Engine, lambda: Engine])
def test_handles_come_off_in_any_order(order, owner_of):
    owner, raw = owner_of(), vars(Engine)["forward"]
    call = (lambda: Engine().forward(0)) if isinstance(owner, type) else (lambda: owner.forward(0))
    handles = [Handle(str(i), lambda h, i=i: wrap(h, owner, "forward", i)).attach() for i in range(3)]
    left = {0, 1, 2}
    for i in order:
        handles[i].detach()
        left.discard(i)
        assert call() == (0, *sorted(left))
        assert handles[i].covered == ()
    assert vars(Engine)["forward"] is raw
    assert isinstance(owner, type) or vars(owner) == {}


def test_somebody_elses_patch_stays_and_ours_passes_on(caplog):
    engine = Engine()
    handle = Handle("router", lambda h: wrap(h, engine, "forward", "ours")).attach()
    ours = engine.forward

    def theirs(x):
        return (*ours(x), "theirs")

    engine.forward = theirs
    handle.detach()
    handle.detach()
    assert engine.forward is theirs
    assert engine.forward(0) == (0, "theirs")
    assert handle.covered == ("Engine.forward",)
    assert len(caplog.records) == 1
    engine.forward = ours  # they detach
    assert engine.forward(0) == (0,)
    handle.detach()
    assert vars(engine) == {}
    assert handle.covered == ()


def test_a_handle_over_somebody_elses_patch_puts_theirs_back():
    engine = Engine()
    under = Handle("a", lambda h: wrap(h, engine, "forward", "a")).attach()
    ours = engine.forward
    engine.forward = theirs = lambda x: (*ours(x), "theirs")
    over = Handle("b", lambda h: wrap(h, engine, "forward", "b")).attach()
    under.detach()
    assert engine.forward(0) == (0, "theirs", "b")
    over.detach()
    assert engine.forward is theirs


def test_a_covered_handle_is_not_attached_again_until_theirs_is_gone():
    engine, undone = Engine(), []

    def install(handle):
        wrap(handle, engine, "forward", "ours")
        handle.on_detach(lambda: undone.append(1))

    handle = Handle("router", install).attach()
    ours = engine.forward
    engine.forward = lambda x: (*ours(x), "theirs")
    handle.detach()
    with pytest.raises(UsageError, match=r"router: .*Engine\.forward"):
        handle.attach()
    assert not handle.attached
    assert engine.forward(0) == (0, "theirs")
    engine.forward = ours  # they detach
    assert handle.attach().attached
    assert engine.forward(0) == (0, "ours")  # once
    handle.detach()
    assert vars(engine) == {}
    assert undone == [1, 1]


class Locked(dict):
    """Refuses changes for a while."""

    locked = False

    def __setitem__(self, key, value):
        if self.locked:
            raise PermissionError("locked")
        super().__setitem__(key, value)


def test_what_cannot_be_put_back_is_tried_again(caplog):
    table = Locked(a=[1])
    raw = table["a"]
    under = Handle("x", lambda h: h.replace_item(table, "a", "ours")).attach()
    table.locked = True
    under.detach()
    assert under.covered == ("Locked['a']",)
    assert "could not be undone: PermissionError" in caplog.text
    table.locked = False
    over = Handle("y", lambda h: h.replace_item(table, "a", "over")).attach()
    under.detach()
    assert under.covered == ()
    over.detach()
    assert table["a"] is raw
    assert not [layer for layer in layers._layers if layer.owner is table]
