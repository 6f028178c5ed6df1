// Memory that kernels use within a call and keep for the next.
//
// Plain functions in a source of their own: kernel sources are compiled for instruction sets that
// the machine may lack, and must not bring copies of standard templates into the program.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gateup {

constexpr int kScratchSlots = 6;

// At least `bytes` bytes of this thread's slot, aligned to 64, contents unspecified; valid until
// the thread asks for the same slot again. Throws std::bad_alloc.
std::uint8_t* scratch(int slot, std::size_t bytes);

// A piece of memory for each thread of a parallel loop, allocated by its caller, so that a worker
// can neither fail nor keep any. `memory` holds count pieces of `bytes`.
struct Pieces {
  std::uint8_t* memory;
  std::size_t bytes;
  int count;
  unsigned char* taken;  // [count], zeros at first
};

// From this thread's slot.
Pieces pieces(int slot, std::size_t bytes, int count);

// A free piece; there is one as long as no more than `count` threads hold any.
std::uint8_t* take(Pieces& pieces);
void give_back(Pieces& pieces, const std::uint8_t* piece);

// Asks for huge pages under memory not yet touched; with pages of 4 KiB, looking up addresses
// holds back a stream of weights. Nothing happens where that is not possible.
void use_huge_pages(std::uint8_t* memory, std::size_t bytes);

}  // namespace gateup
