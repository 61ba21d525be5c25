// The peer of benchmarks/allocator.py: PyTorch's caching allocator at default settings, written plainly
// with one std::set of free blocks a pool, over the same arrays.
//
//     g++ -O2 -std=c++17 -o peer allocator_peer.cpp; ./peer INPUT ROUNDS
//
// INPUT is int64 numbers: start blocks, steps, slots, pools, streams; then the start blocks (head, address,
// size, place, small, slot, ...: 9 numbers each), then kinds, slots, sizes and places, each of `steps` numbers.
// Prints the median CPU seconds of a replay, peak reserved and allocated bytes, reserved bytes at the end, and a
// checksum of the reserved bytes after each allocation.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <set>
#include <vector>

using i64 = std::int64_t;

constexpr i64 MIB = 1 << 20;

struct Block {
  i64 address, size;
  int list;
  bool used;
  Block *prev, *next;
};

struct Smaller {
  bool operator()(const Block* a, const Block* b) const {
    return a->size != b->size ? a->size < b->size : a->address < b->address;
  }
};

using FreeList = std::set<Block*, Smaller>;

struct Step {
  int kind, slot, place;
  i64 size;
};

struct Allocator {
  std::vector<FreeList> lists;  // of one pool, size class and stream
  int streams;
  i64 reserved = 0, allocated = 0, peak_reserved = 0, peak_allocated = 0, next = i64(1) << 48;

  Allocator(int pools, int streams) : lists(2 * pools * streams), streams(streams) {}

  bool small(const Block* b) const { return b->list / streams & 1; }

  void reserve(i64 size) {
    reserved += size;
    peak_reserved = std::max(peak_reserved, reserved);
  }

  void use(Block* b) {
    b->used = true;
    allocated += b->size;
    peak_allocated = std::max(peak_allocated, allocated);
  }

  Block* malloc(i64 request, int place) {
    i64 size = request < 512 ? 512 : (request + 511) / 512 * 512;
    int list = size <= MIB ? place + streams : place;
    FreeList& free = lists[list];
    Block probe{0, size, list, false, nullptr, nullptr};
    auto found = free.lower_bound(&probe);
    Block* b;
    if (found != free.end()) {
      b = *found;
      free.erase(found);
    } else {
      i64 wanted = size <= MIB ? 2 * MIB : size < 10 * MIB ? 20 * MIB : (size + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
      b = new Block{next, wanted, list, false, nullptr, nullptr};
      next += wanted;
      reserve(wanted);
    }
    i64 rest = b->size - size;
    if (small(b) ? rest >= 512 : rest > MIB) {
      Block* other = new Block{b->address + size, rest, list, false, b, b->next};
      if (b->next) b->next->prev = other;
      b->next = other;
      b->size = size;
      free.insert(other);
    }
    use(b);
    return b;
  }

  void free(Block* b) {
    allocated -= b->size;
    b->used = false;
    FreeList& free = lists[b->list];
    if (Block* p = b->prev; p && !p->used) {
      free.erase(p);
      b->address = p->address;
      b->size += p->size;
      b->prev = p->prev;
      if (b->prev) b->prev->next = b;
      delete p;
    }
    if (Block* n = b->next; n && !n->used) {
      free.erase(n);
      b->size += n->size;
      b->next = n->next;
      if (b->next) b->next->prev = b;
      delete n;
    }
    free.insert(b);
  }

  void empty_cache() {
    for (int list = 0; list < 2 * streams; ++list)
      for (auto it = lists[list].begin(); it != lists[list].end();) {
        Block* b = *it;
        if (b->prev || b->next) {
          ++it;
          continue;
        }
        reserve(-b->size);
        it = lists[list].erase(it);
        delete b;
      }
  }
};

int main(int, char** argv) {
  FILE* file = std::fopen(argv[1], "rb");
  std::fseek(file, 0, SEEK_END);
  std::vector<i64> in(std::ftell(file) / sizeof(i64));
  std::rewind(file);
  if (std::fread(in.data(), sizeof(i64), in.size(), file) != in.size()) return 1;
  const i64 starts = in[0], steps = in[1], slots = in[2], pools = in[3], streams = in[4];
  const i64* start = &in[5];
  const i64* body = start + 9 * starts;
  std::vector<Step> todo(steps);
  for (i64 i = 0; i < steps; ++i)
    todo[i] = {int(body[i]), int(body[steps + i]), int(body[3 * steps + i]), body[2 * steps + i]};
  std::vector<double> seconds;
  for (int round = 0; round < std::atoi(argv[2]); ++round) {
    std::clock_t before = std::clock();
    Allocator a(pools, streams);
    std::vector<Block*> tenants(slots);
    std::vector<i64> curve;
    Block* last = nullptr;
    for (const i64* r = start; r < body; r += 9) {
      Block* b = new Block{r[1], r[2], int(r[3] + r[4] * streams), false, r[0] ? nullptr : last, nullptr};
      if (b->prev) b->prev->next = b;
      a.reserve(b->size);
      if (r[5] >= 0) {
        a.use(b);
        tenants[r[5]] = b;
      } else {
        a.lists[b->list].insert(b);
      }
      last = b;
    }
    for (const Step& s : todo) {
      if (s.kind == 0) {
        tenants[s.slot] = a.malloc(s.size, s.place);
        curve.push_back(a.reserved);
      } else if (s.kind < 0) {
        a.empty_cache();
      } else if (tenants[s.slot]) {
        a.free(tenants[s.slot]);
        tenants[s.slot] = nullptr;
      }
    }
    seconds.push_back(double(std::clock() - before) / CLOCKS_PER_SEC);
    std::uint64_t sum = 0;
    for (i64 r : curve) sum = sum * 31 + std::uint64_t(r);
    if (round == 0) {
      std::printf("%lld %lld %lld %llu", (long long)a.peak_reserved, (long long)a.peak_allocated,
                  (long long)a.reserved, (unsigned long long)sum);
    }
  }
  std::sort(seconds.begin(), seconds.end());
  std::printf(" %.6f\n", seconds[seconds.size() / 2]);
}
