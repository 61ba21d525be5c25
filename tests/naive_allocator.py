"""The caching allocator's rules once more, written to be obvious: no free lists, no links between blocks.

Memory is segments with a mapped flag for each page and a list of tenants; what is free is worked out anew
for each question. Rounding and segment sizes are spelled out here, too, so that nothing is shared.
"""

from itertools import pairwise

MIB = 1 << 20


def rounded(request, settings):
    if request < 512:
        return 512
    interval = 0
    while interval < 15 and request >= (2 << interval) * MIB:
        interval += 1
    divisions = settings.roundup[interval]
    if divisions > 1 and request > 512 * divisions:
        top = 1
        while top * 2 <= request:
            top *= 2
        step = top // divisions
        while step and top < request:
            top += step
        return top if step else 2 * top
    return (request + 511) // 512 * 512


class NaiveAllocator:
    def __init__(self, settings, device, va_bytes):
        self.settings, self.device, self.va_bytes = settings, device, va_bytes
        self.segments = []  # dicts: address, size, stream, pool, small, page (0: not expandable), mapped pages
        self.tenants = {}  # id -> dict: segment, address, size, requested, pending (its turn, or 0)
        self.no_split, self.overflow, self.custom, self.freeable = set(), [], set(), []
        self.capturing = False
        self.searches, self.born = {}, {}
        self.retries = self.ooms = self.rejections = self.deferred = 0
        self.peak = dict.fromkeys(("allocated", "requested", "active", "reserved", "inactive_split"), 0)

    # ---- what there is

    def runs(self, segment):
        """Free runs (address, size, mapped) of a segment: no tenant, one mapped flag throughout."""
        cuts = {segment["address"], segment["address"] + segment["size"]}
        page = segment["page"] or segment["size"]
        for i in range(segment["size"] // page):
            if i == 0 or segment["mapped"][i] != segment["mapped"][i - 1]:
                cuts.add(segment["address"] + i * page)
        mine = [t for t in self.tenants.values() if t["segment"] is segment]
        for t in mine:
            cuts |= {t["address"], t["address"] + t["size"]}
        cuts, out = sorted(cuts), []
        taken = {t["address"] for t in mine}
        for a, b in pairwise(cuts):
            if a in taken:
                continue
            inside = any(t["address"] < a < t["address"] + t["size"] for t in mine)
            mapped = segment["mapped"][(a - segment["address"]) // page]
            if inside:
                continue
            if out and out[-1][0] + out[-1][1] == a and out[-1][2] == mapped:
                out[-1] = (out[-1][0], out[-1][1] + b - a, mapped)
            else:
                out.append((a, b - a, mapped))
        return out

    def free_blocks(self, pool, small, stream=None):
        """(stream, size, address, segment) of free mapped runs, in the order in which best fit looks."""
        rows = [
            (g["stream"], size, address, g)
            for g in self.segments
            if g["pool"] == pool and g["small"] == small and stream in (None, g["stream"])
            for address, size, mapped in self.runs(g)
            if mapped
        ]
        return sorted(rows, key=lambda r: r[:3])

    def everything(self):
        """(address, size, used) of all blocks."""
        used = [(t["address"], t["size"], True) for t in self.tenants.values()]
        free = [(a, n, False) for g in self.segments for a, n, mapped in self.runs(g) if mapped]
        return sorted(used + free)

    def is_whole(self, row):
        return not row[3]["page"] and row[1] == row[3]["size"]

    def reserved(self):
        return sum(sum(g["mapped"]) * (g["page"] or g["size"]) for g in self.segments)

    def figures(self):
        held = list(self.tenants.values())
        split = 0
        for g in self.segments:
            if not g["page"]:
                split += sum(n for _, n, _ in self.runs(g) if n < g["size"])
        return {
            "allocated": sum(t["size"] for t in held if not t["pending"]),
            "requested": sum(t["requested"] for t in held),
            "active": sum(t["size"] for t in held),
            "reserved": self.reserved(),
            "inactive_split": split,
        }

    def after(self):
        """After each operation: new free blocks are born at the count of searches of their pool."""
        now = {}
        for g in self.segments:
            count = self.searches.get((g["pool"], g["small"]), 0)
            for a, n, mapped in self.runs(g):
                if mapped:
                    now[a, n, id(g)] = self.born.get((a, n, id(g)), count)
        self.born = now
        for name, value in self.figures().items():
            self.peak[name] = max(self.peak[name], value)

    # ---- a request

    def search(self, size, stream, pool, expandable):
        small, split = size <= MIB, self.settings.max_split
        self.searches[pool, small] = self.searches.get((pool, small), 0) + 1
        fits = [r for r in self.free_blocks(pool, small, stream) if r[1] >= size]
        if not expandable:
            fits = [r for r in fits if not r[3]["page"]]
        if not fits:
            return None
        at = 0
        while fits[at][3]["page"] and at + 1 < len(fits) and self.reach(fits[at + 1]) < self.reach(fits[at]):
            at += 1
        block = fits[at]
        if split is not None and size < split and block[1] >= split:
            return None
        if split is not None and size >= split and block[1] >= size + self.settings.max_non_split_rounding:
            return None
        return block

    def reach(self, row):
        """How large a block can grow: with the unmapped run right behind it."""
        end = row[2] + row[1]
        return row[1] + sum(n for a, n, mapped in self.runs(row[3]) if a == end and not mapped)

    def grow(self, size, stream, pool, expandable):
        small = size <= MIB
        wanted = 2 * MIB if small else self.settings.large_segment if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        if self.settings.limit is not None and self.reserved() + wanted > self.settings.limit:
            return None
        if expandable:
            return self.expand(size, stream, pool, small)
        address = self.device.allocate(wanted)
        if address is None:
            return None
        segment = {"address": address, "size": wanted, "stream": stream, "pool": pool, "small": small, "page": 0, "mapped": [True]}
        self.segments.append(segment)
        return (stream, wanted, address, segment)

    def expand(self, size, stream, pool, small):
        mine = [g for g in self.segments if g["page"] and (g["stream"], g["pool"], g["small"]) == (stream, pool, small)]
        start = None
        for g in sorted(mine, key=lambda g: g["address"]):
            runs = self.runs(g)
            for i, (address, _, mapped) in enumerate(runs):
                if mapped or start is not None:
                    continue
                first = i - 1 if i and sum(runs[i - 1][:2]) == address else i
                total, at = 0, runs[first][0]
                for a, n, _ in runs[first:]:
                    if a != at:
                        break
                    total, at = total + n, a + n
                if total >= size:
                    start = (g, runs[first][0])
        if start is None:
            page = 2 * MIB if small else self.settings.large_segment
            pages = -(-self.va_bytes // page)
            base = self.device.reserve(pages * page)
            g = {"address": base, "size": pages * page, "stream": stream, "pool": pool, "small": small, "page": page, "mapped": [False] * pages}
            self.segments.append(g)
            start = (g, base)
        g, begin = start
        while True:
            runs = {a: (n, mapped) for a, n, mapped in self.runs(g)}
            n, mapped = runs[begin]
            if mapped and n >= size:
                return (stream, n, begin, g)
            hole, missing = (begin + n, size - n) if mapped else (begin, size)
            length = min(-(-missing // g["page"]) * g["page"], runs[hole][0])
            if not self.device.map(hole, length):
                return None
            first = (hole - g["address"]) // g["page"]
            for i in range(first, first + length // g["page"]):
                g["mapped"][i] = True
            self.after()

    def malloc(self, id, request, stream, pool):
        size = rounded(request, self.settings)
        expandable = self.settings.expandable and pool not in self.custom
        block = self.search(size, stream, pool, expandable)
        if block is None:
            self.collect()
            block = self.grow(size, stream, pool, expandable)
        limit, split_active = self.settings.limit, expandable
        if block is None and self.settings.throw_on_oom and limit is not None:
            seg = 2 * MIB if size <= MIB else self.settings.large_segment if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            if self.reserved() + seg > limit:
                self.rejections += 1
                self.ooms += 1
                self.after()
                return None
        if block is None and pool == (0, 0):
            for other in self.overflow:
                if block is None:
                    block = self.search(size, stream, other, False)
                    split_active = False if block else expandable
        if block is None and self.oversize(size, stream, pool):
            block = self.grow(size, stream, pool, expandable)
        if block is None and not self.capturing:
            self.empty_cache()
            self.retries += 1
            block = self.grow(size, stream, pool, expandable)
        if block is None:
            self.ooms += 1
            self.after()
            return None
        _, have, address, segment = block
        rest, split = have - size, self.settings.max_split
        if segment["pool"] in self.no_split:
            cut = False
        elif size <= MIB or split_active:
            cut = rest >= 512
        else:
            cut = rest > MIB and (split is None or size < split)
        self.tenants[id] = {
            "segment": segment, "address": address, "size": size if cut else have, "requested": request, "pending": 0,
        }  # fmt: skip
        self.after()
        return address

    # ---- giving back

    def drop(self, row):
        self.segments.remove(row[3])
        self.device.release(row[2], row[1])

    def oversize(self, size, stream, pool):
        split = self.settings.max_split
        if split is None:
            return False
        want, rows = max(size, split), self.free_blocks(pool, size <= MIB, stream)
        above = [r for r in rows if r[1] >= want]
        if above and self.is_whole(above[0]):
            self.drop(above[0])
            return True
        total = 0
        for row in reversed([r for r in rows if r[1] < want]):
            if total < want and row[1] >= split and self.is_whole(row):
                total += row[1]
                self.drop(row)
        return total >= want

    def collect(self):
        limit = self.settings.limit
        if not self.settings.gc_threshold or limit is None:
            return
        target = self.reserved() - int(self.settings.gc_threshold * limit)
        while target > 0:
            rows = [r for r in self.free_blocks((0, 0), False) if r[1] == r[3]["size"]]
            count = self.searches.get(((0, 0), False), 0)
            ages = [count - self.born[r[2], r[1], id(r[3])] for r in rows]
            old = [r for r, age in zip(rows, ages, strict=True) if age >= sum(ages) / len(ages) and not r[3]["page"]]
            if not old:
                return
            for row in old:
                target -= row[1]
                self.drop(row)

    def free(self, id, later=False):
        if later:
            self.deferred += 1
            self.tenants[id]["pending"] = self.deferred
        else:
            self.tenants.pop(id, None)
        self.after()

    def complete(self, id):
        if id in self.tenants and self.tenants[id]["pending"]:
            del self.tenants[id]
        self.after()

    def empty_cache(self):
        for id, _ in sorted(self.tenants.items(), key=lambda row: row[1]["pending"]):
            self.complete(id)
        kinds = [((0, 0), False), ((0, 0), True)]
        for pool in self.freeable:
            kinds += [(pool, True), (pool, False)]
        for pool, small in kinds:
            rows = self.free_blocks(pool, small)
            for row in rows:
                if self.is_whole(row):
                    self.drop(row)
            for _, n, a, g in rows:
                if not g["page"]:
                    continue
                pages = [i for i in range(len(g["mapped"])) if a <= g["address"] + i * g["page"] and g["address"] + (i + 1) * g["page"] <= a + n]
                for i in pages:
                    g["mapped"][i] = False
                if pages:
                    self.device.unmap(g["address"] + pages[0] * g["page"], len(pages) * g["page"])
                if not any(g["mapped"]):
                    self.segments.remove(g)
        self.after()
