#include "scratch.hpp"

#include <cstring>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace gateup {
namespace {

constexpr std::size_t kAlign = 64;

struct Held {
  std::uint8_t* memory = nullptr;
  std::size_t bytes = 0;

  void grow(std::size_t wanted) {
    release();
    memory = static_cast<std::uint8_t*>(::operator new(wanted, std::align_val_t{kAlign}));
    bytes = wanted;
  }
  void release() {
    if (memory != nullptr) ::operator delete(memory, std::align_val_t{kAlign});
    memory = nullptr;
    bytes = 0;
  }
  ~Held() { release(); }
};

thread_local Held t_held[kScratchSlots];

}  // namespace

std::uint8_t* scratch(int slot, std::size_t bytes) {
  Held& held = t_held[slot];
  if (held.bytes < bytes) held.grow(bytes + bytes / 4);
  return held.memory;
}

Pieces pieces(int slot, std::size_t bytes, int count) {
  const std::size_t rounded = (bytes + kAlign - 1) / kAlign * kAlign;
  const std::size_t flags = static_cast<std::size_t>(count);
  std::uint8_t* memory = scratch(slot, rounded * flags + flags);
  Pieces p{memory, rounded, count, memory + rounded * flags};
  std::memset(p.taken, 0, flags);
  return p;
}

std::uint8_t* take(Pieces& p) {
  for (int i = 0;; i = i + 1 < p.count ? i + 1 : 0) {
    if (!__atomic_test_and_set(&p.taken[i], __ATOMIC_ACQUIRE)) {
      return p.memory + static_cast<std::size_t>(i) * p.bytes;
    }
  }
}

void give_back(Pieces& p, const std::uint8_t* piece) {
  __atomic_clear(&p.taken[static_cast<std::size_t>(piece - p.memory) / p.bytes],
                 __ATOMIC_RELEASE);
}

void use_huge_pages(std::uint8_t* memory, std::size_t bytes) {
#ifdef __linux__
  constexpr std::uintptr_t page = 1 << 21;
  const std::uintptr_t first = (reinterpret_cast<std::uintptr_t>(memory) + page - 1) / page * page;
  const std::uintptr_t end = (reinterpret_cast<std::uintptr_t>(memory) + bytes) / page * page;
  if (end > first) (void)madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#else
  (void)memory, (void)bytes;
#endif
}

}  // namespace gateup
