// How attention's work is shared among threads.
#include <algorithm>
#include <atomic>
#include <vector>

#include "attention.hpp"
#include "buffer.hpp"
#include "isa.hpp"
#include "parallel.hpp"

namespace gateup {
namespace {

using i64 = std::int64_t;

// Rows of a block: enough that the cache's float16 is widened rarely, few enough for L2.
constexpr i64 kBlockRows = 96;

i64 chunks_of(const AttentionBlock& block) {
  return (block.sequence->position + block.last + kChunk - 1) / kChunk;
}

// The first chunk that the block's first token sees.
i64 first_chunk(const AttentionShape& shape, const AttentionBlock& block) {
  if (shape.window <= 0) return 0;
  const i64 oldest = block.sequence->position + block.first - shape.window + 1;
  return oldest > 0 ? oldest / kChunk : 0;
}

struct Run {
  const AttentionJob& job;
  const AttentionKernels& kernels;
  std::vector<AttentionBlock> blocks;
  i64 most_rows = 0;

  i64 rows(const AttentionBlock& block) const {
    return (block.last - block.first) * job.shape.group();
  }
  i64 query_floats() const { return round_up(most_rows * job.shape.padded_dim(), kPanel); }
  i64 panel_floats() const { return 2 * kChunk * job.shape.padded_dim(); }
  i64 state_floats() const {
    return round_up(most_rows * (job.shape.padded_dim() + 2), kPanel);
  }
  void clear(const AttentionBlock& block, float* state) const {
    const i64 n = rows(block);
    float* sums = state + n * job.shape.padded_dim();
    std::fill(sums, sums + n, 0.0f);
    std::fill(sums + n, sums + 2 * n, -__builtin_inff());
  }
};

// One thread's memory for `whole`.
struct Slot {
  float *queries, *panels, *state, *next;
};

// A block by one thread, chunk after chunk.
void whole(const Run& run, const AttentionBlock& block, const Slot& slot) {
  run.kernels.pack(run.job, block, slot.queries);
  run.clear(block, slot.state);
  for (i64 c = first_chunk(run.job.shape, block); c < chunks_of(block); ++c) {
    run.kernels.chunk(run.job, block, c, slot.queries, slot.next, slot.panels);
    run.kernels.merge(run.rows(block), run.job.shape.padded_dim(), slot.state, slot.next);
  }
  run.kernels.finish(run.job, block, slot.state);
}

struct WholeBlocks {
  const Run& run;
  float* memory;
  i64 stride;
  std::atomic<i64> next{0};

  // parallel_for's index is the slot; blocks are taken one by one, the longest first.
  static void body(void* context, i64 begin, i64 end) {
    auto& self = *static_cast<WholeBlocks*>(context);
    const i64 count = static_cast<i64>(self.run.blocks.size());
    for (i64 index = begin; index < end; ++index) {
      float* at = self.memory + index * self.stride;
      const Slot slot{at, at + self.run.query_floats(),
                      at + self.run.query_floats() + self.run.panel_floats(),
                      at + self.run.query_floats() + self.run.panel_floats() +
                          self.run.state_floats()};
      for (i64 i = self.next.fetch_add(1); i < count; i = self.next.fetch_add(1)) {
        whole(self.run, self.run.blocks[static_cast<std::size_t>(count - 1 - i)], slot);
      }
    }
  }
};

// Few blocks over many keys: a chunk at a time; whoever brings a block's last one merges all.
struct SplitBlocks {
  struct Part {
    std::size_t block;
    i64 chunk;
  };
  const Run& run;
  std::vector<Part> parts;
  std::vector<i64> first_part;  // of each block, and the end
  std::vector<std::atomic<i64>> left;
  float* memory;
  i64 state_stride, slot_stride;
  std::atomic<i64> next{0};

  float* state(i64 part) const { return memory + part * state_stride; }

  void part(i64 index, float* scratch) {
    const Part& p = parts[static_cast<std::size_t>(index)];
    const AttentionBlock& block = run.blocks[p.block];
    run.kernels.pack(run.job, block, scratch);
    run.kernels.chunk(run.job, block, p.chunk, scratch, state(index),
                      scratch + run.query_floats());
    if (left[p.block].fetch_sub(1) != 1) return;
    float* sum = scratch;  // queries are done with; queries and panels hold a state
    run.clear(block, sum);
    for (i64 i = first_part[p.block]; i < first_part[p.block + 1]; ++i) {
      run.kernels.merge(run.rows(block), run.job.shape.padded_dim(), sum, state(i));
    }
    run.kernels.finish(run.job, block, sum);
  }

  static void body(void* context, i64 begin, i64 end) {
    auto& self = *static_cast<SplitBlocks*>(context);
    const i64 count = static_cast<i64>(self.parts.size());
    float* slots = self.memory + count * self.state_stride;
    for (i64 index = begin; index < end; ++index) {
      for (i64 i = self.next.fetch_add(1); i < count; i = self.next.fetch_add(1)) {
        self.part(i, slots + index * self.slot_stride);
      }
    }
  }
};

void run_whole(const Run& run, int threads, Buffer& memory) {
  const int slots = static_cast<int>(std::min<i64>(threads, static_cast<i64>(run.blocks.size())));
  const i64 stride = run.query_floats() + run.panel_floats() + 2 * run.state_floats();
  WholeBlocks work{run, memory.floats(slots * stride), stride};
  parallel_for(slots, slots, WholeBlocks::body, &work);
}

void run_split(const Run& run, int threads, Buffer& memory) {
  std::vector<SplitBlocks::Part> parts;
  std::vector<i64> first;
  std::vector<std::atomic<i64>> left(run.blocks.size());
  for (std::size_t b = 0; b < run.blocks.size(); ++b) {
    first.push_back(static_cast<i64>(parts.size()));
    const i64 begin = first_chunk(run.job.shape, run.blocks[b]), end = chunks_of(run.blocks[b]);
    for (i64 c = begin; c < end; ++c) parts.push_back({b, c});
    left[b] = end - begin;
  }
  first.push_back(static_cast<i64>(parts.size()));
  const i64 count = static_cast<i64>(parts.size());
  const int slots = static_cast<int>(std::min<i64>(threads, count));
  const i64 state = run.state_floats();
  const i64 slot = std::max(run.query_floats() + run.panel_floats(), state);
  float* at = memory.floats(count * state + slots * slot);
  SplitBlocks work{run, std::move(parts), std::move(first), std::move(left), at, state, slot};
  parallel_for(slots, slots, SplitBlocks::body, &work);
}

}  // namespace

const AttentionKernels& attention_kernels() {
  const Isa isa = current_isa();
  (void)isa;
#ifdef GATEUP_HAVE_AVX512
  if (isa >= Isa::kAvx512Vnni) return avx512::attention_kernels();
#endif
#ifdef GATEUP_HAVE_AVX2
  if (isa >= Isa::kAvx2) return avx2::attention_kernels();
#endif
  return generic::attention_kernels();
}

void attend(const AttentionJob& job, int threads, Buffer& memory) {
  Run run{job, attention_kernels(), {}};
  const i64 tokens = std::max<i64>(1, kBlockRows / job.shape.group());
  i64 chunks = 0;
  for (i64 first = 0;; first += tokens) {
    bool any = false;
    for (int s = 0; s < job.count; ++s) {
      const Sequence& sequence = job.sequences[s];
      if (first >= sequence.rows) continue;
      any = true;
      const i64 last = std::min(first + tokens, sequence.rows);
      run.most_rows = std::max(run.most_rows, (last - first) * job.shape.group());
      for (int g = 0; g < job.shape.kv_heads; ++g) {
        run.blocks.push_back({&sequence, g, first, last});
        chunks = std::max(chunks, chunks_of(run.blocks.back()) -
                                      first_chunk(job.shape, run.blocks.back()));
      }
    }
    if (!any) break;
  }
  const i64 count = static_cast<i64>(run.blocks.size());
  if (count >= 4 * static_cast<i64>(threads) || chunks <= 1) {
    run_whole(run, threads, memory);
  } else {
    run_split(run, threads, memory);
  }
}

}  // namespace gateup
