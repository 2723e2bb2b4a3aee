#include "emulator.h"

#include <setjmp.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

namespace emulator {

dim3 thread_index, block_index, grid_size;
unsigned char* shared = nullptr;

namespace {

constexpr size_t kStackBytes = 64 * 1024;
constexpr size_t kCanary = 256;

struct Barrier {
  int expected = 0, arrived = 0;
  unsigned turn = 0;
};

struct Warp {
  Barrier barrier;
  unsigned exchanges[32] = {};
  unsigned char slots[2][32 * kSlot];
};

struct Fiber {
  ucontext_t start;
  jmp_buf place;
  bool started = false, done = false;
  const Barrier* waits_for = nullptr;
  unsigned turn = 0;
  std::unique_ptr<unsigned char[]> stack{new unsigned char[kStackBytes]};
};

jmp_buf scheduler_place;
std::vector<Fiber> fibers;
std::vector<Warp> warps;
Barrier block;
int current = 0;
const std::function<void()>* kernel_body = nullptr;

[[noreturn]] void fail(const char* message) {
  std::fprintf(stderr, "emulator: %s (block %u,%u,%u)\n", message, block_index.x, block_index.y,
               block_index.z);
  std::abort();
}

void yield() {
  if (_setjmp(fibers[current].place) == 0) _longjmp(scheduler_place, 1);
}

void wait(Barrier& barrier) {
  if (++barrier.arrived == barrier.expected) {
    barrier.arrived = 0;
    ++barrier.turn;
    return;
  }
  Fiber& self = fibers[current];
  self.waits_for = &barrier;
  self.turn = barrier.turn;
  yield();
  self.waits_for = nullptr;
}

void enter() {
  (*kernel_body)();
  fibers[current].done = true;
  _longjmp(scheduler_place, 1);
}

bool runnable(const Fiber& fiber) {
  return !fiber.done && (!fiber.waits_for || fiber.waits_for->turn != fiber.turn);
}

void resume(int index) {
  current = index;
  thread_index = dim3(index, 0, 0);
  Fiber& fiber = fibers[index];
  if (_setjmp(scheduler_place)) return;
  if (fiber.started) _longjmp(fiber.place, 1);
  fiber.started = true;
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = fiber.stack.get();
  fiber.start.uc_stack.ss_size = kStackBytes;
  fiber.start.uc_link = nullptr;
  makecontext(&fiber.start, enter, 0);
  setcontext(&fiber.start);
}

// SNAPEXPORT_EMULATOR_LATE: number of a warp whose threads run only if no other thread can, in
// descending order. Results must not depend on it.
int late_warp() {
  const char* text = std::getenv("SNAPEXPORT_EMULATOR_LATE");
  return text ? std::atoi(text) : -1;
}

// Runs each runnable thread from `first` on once. Returns their number.
int turn(int first, int count, bool last_first, int& left) {
  int turns = 0;
  for (int i = 0; i < count; ++i) {
    const int index = first + (last_first ? count - 1 - i : i);
    if (!runnable(fibers[index])) continue;
    resume(index);
    ++turns;
    left -= fibers[index].done;
  }
  return turns;
}

void run_block(int threads, int late) {
  for (Fiber& fiber : fibers) fiber.started = fiber.done = false, fiber.waits_for = nullptr;
  for (Warp& warp : warps) warp = Warp{}, warp.barrier.expected = 32;
  block = Barrier{threads, 0, 0};
  for (int left = threads; left > 0;) {
    int turns = 0;
    for (int first = 0; first < threads; first += 32) {
      if (first / 32 != late) turns += turn(first, 32, late >= 0, left);
    }
    if (turns == 0 && late >= 0) turns = turn(late * 32, 32, true, left);
    if (turns == 0) fail("a barrier that not every thread reaches");
  }
  if (block.arrived) fail("threads ended while others wait");
}

}  // namespace

void run(dim3 grid, int threads, int shared_bytes, const std::function<void()>& body) {
  std::vector<unsigned char> arena(shared_bytes + kCanary + 16);
  shared = arena.data() + (16 - reinterpret_cast<uintptr_t>(arena.data()) % 16);
  fibers.resize(threads);
  warps.resize(threads / 32);
  kernel_body = &body;
  grid_size = grid;
  const int late = late_warp();
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        block_index = dim3(x, y, z);
        std::memset(shared, 0xff, shared_bytes + kCanary - 16);  // floats that are not numbers
        run_block(threads, late);
        for (size_t i = 0; i < kCanary - 16; ++i) {
          if (shared[shared_bytes + i] != 0xff) fail("a write beyond shared memory");
        }
      }
    }
  }
}

void block_barrier() { wait(block); }
void warp_barrier() { wait(warps[current / 32].barrier); }

const unsigned char* exchange(const void* mine, size_t bytes) {
  if (bytes > kSlot) fail("an exchange of more than a slot");
  Warp& warp = warps[current / 32];
  const int lane = current % 32;
  unsigned char* slots = warp.slots[warp.exchanges[lane]++ % 2];
  std::memcpy(slots + lane * kSlot, mine, bytes);
  wait(warp.barrier);
  return slots;
}

}  // namespace emulator

namespace snapexport {
namespace {

float decode_float16(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float magnitude = exponent == 31 ? (fraction ? NAN : INFINITY)
                          : exponent     ? std::ldexp(1024.0f + fraction, exponent - 25)
                                         : std::ldexp(static_cast<float>(fraction), -24);
  return bits >> 15 ? -magnitude : magnitude;
}

float from_float16(uint16_t bits) {
  static const std::vector<float> decoded = [] {
    std::vector<float> all(1 << 16);
    for (size_t i = 0; i < all.size(); ++i) all[i] = decode_float16(static_cast<uint16_t>(i));
    return all;
  }();
  return decoded[bits];
}

float from_bfloat16(uint16_t bits) { return __uint_as_float(static_cast<uint32_t>(bits) << 16); }

struct Operands {
  uint32_t a[4], b[2];
};

// PTX ISA, mma.m16n8k16: lane = 4 g + t. Register r of A holds row g + 8 (r % 2), columns
// 2t + 8 (r / 2) and the next; register r of B rows 2t + 8 r and the next of column g; C's four
// are rows g, g, g + 8, g + 8 and columns 2t, 2t + 1 in turn.
template <class Convert>
void mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Convert convert) {
  Operands mine;
  std::memcpy(mine.a, a, sizeof a);
  std::memcpy(mine.b, b, sizeof b);
  const auto* slots = emulator::exchange(&mine, sizeof mine);
  const auto lane_of = [&](int row, int k) {
    return reinterpret_cast<const Operands*>(slots + (row * 4 + k % 8 / 2) * emulator::kSlot);
  };
  const auto half = [&](uint32_t pair, int k) {
    return convert(static_cast<uint16_t>(k % 2 ? pair >> 16 : pair & 0xffff));
  };
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  for (int i = 0; i < 4; ++i) {
    for (int k = 0; k < 16; ++k) {
      const float left = half(lane_of(g, k)->a[i / 2 + k / 8 * 2], k);
      const float right = half(lane_of(2 * t + i % 2, k)->b[k / 8], k);
      c[i] += left * right;
    }
  }
}

}  // namespace

void mma_float16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  mma(c, a, b, from_float16);
}

void mma_bfloat16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  mma(c, a, b, from_bfloat16);
}

}  // namespace snapexport
