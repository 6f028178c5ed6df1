// The Python module gateup._native: checks what it is given, picks the instruction set, runs.
//
// Tensors come as addresses, so nothing here links to torch and any version of it will do.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "act_and_mul.hpp"
#include "bind_decoder.hpp"
#include "bind_dense.hpp"
#include "bind_matrix.hpp"
#include "bind_peaks.hpp"
#include "isa.hpp"
#include "parallel.hpp"

namespace nb = nanobind;

namespace gateup {
namespace {

// Raised when this interface changes; gateup/ops/native.py refuses another number.
constexpr int kInterface = 2;

// (address, row stride, step, dtype); a step of 2 is one half of interleaved gate and up.
using ViewArgs = std::tuple<std::uintptr_t, std::int64_t, std::int64_t, std::int32_t>;

// The kernels of act ⊙ up for the instruction set in use; they need no more of AVX-512 than
// its first processors had, and VNNI's always have that.
const Kernels& kernels() {
#ifdef GATEUP_HAVE_AVX512
  if (current_isa() >= Isa::kAvx512Vnni) return avx512::kernels();
#endif
#ifdef GATEUP_HAVE_AVX2
  if (current_isa() >= Isa::kAvx2) return avx2::kernels();
#endif
  return generic::kernels();
}

std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (const Isa isa : usable_isas()) names.emplace_back(isa_name(isa));
  return names;
}

// ---- arguments: mistakes here are the caller's (ops/native.py), not the user's ---------------

View view_of(const ViewArgs& args) {
  const auto [address, row_stride, step, dtype] = args;
  if (dtype < kFloat32 || dtype > kFloat16) throw std::invalid_argument("unknown dtype");
  if (step != 1 && step != 2) throw std::invalid_argument("step is neither 1 nor 2");
  return {reinterpret_cast<char*>(address), row_stride, step, dtype};
}

void require_single(const View& view) {
  if (view.step != 1) throw std::invalid_argument("only gate and up can be interleaved");
}

void require_pair(const View& a, const View& b) {
  if (a.dtype != b.dtype || a.step != b.step) {
    throw std::invalid_argument("gate and up differ in dtype or step");
  }
  if (a.step == 1) return;
  const std::int64_t itemsize = a.dtype == kFloat32 ? 4 : 2;
  const std::int64_t apart = a.data < b.data ? b.data - a.data : a.data - b.data;
  if (apart != itemsize || a.row_stride != b.row_stride) {
    throw std::invalid_argument("interleaved gate and up are not neighbours");
  }
}

Job job_of(int act, std::int64_t rows, std::int64_t cols) {
  if (act < 0 || act >= kActs) throw std::invalid_argument("unknown activation");
  if (rows < 0 || cols < 0) throw std::invalid_argument("negative size");
  Job job{};
  job.rows = rows;
  job.cols = cols;
  job.blocks_per_row = (cols + kBlock - 1) / kBlock;
  job.act = act;
  return job;
}

struct Task {
  const Job& job;
  void (*kernel)(const Job&, std::int64_t, std::int64_t);
};

void run_part(void* context, std::int64_t begin, std::int64_t end) {
  const Task& task = *static_cast<const Task*>(context);
  task.kernel(task.job, begin, end);
}

void run(const Job& job, void (*kernel)(const Job&, std::int64_t, std::int64_t), int threads) {
  Task task{job, kernel};
  parallel_for(job.rows * job.blocks_per_row, threads, run_part, &task);
}

void forward(int act, std::int64_t rows, std::int64_t cols, const ViewArgs& gate,
             const ViewArgs& up, const ViewArgs& h, int threads) {
  Job job = job_of(act, rows, cols);
  job.gate = view_of(gate);
  job.up = view_of(up);
  job.h = view_of(h);
  require_pair(job.gate, job.up);
  require_single(job.h);
  nb::gil_scoped_release released;
  run(job, kernels().forward, threads);
}

void backward(int act, std::int64_t rows, std::int64_t cols, const ViewArgs& dy,
              const ViewArgs& gate, const ViewArgs& up, const ViewArgs& d_gate,
              const ViewArgs& d_up, const ViewArgs& h, int threads) {
  Job job = job_of(act, rows, cols);
  job.dy = view_of(dy);
  job.gate = view_of(gate);
  job.up = view_of(up);
  job.d_gate = view_of(d_gate);
  job.d_up = view_of(d_up);
  job.h = view_of(h);
  require_pair(job.gate, job.up);
  require_pair(job.d_gate, job.d_up);
  require_single(job.dy);
  require_single(job.h);
  nb::gil_scoped_release released;
  run(job, kernels().backward, threads);
}

void exp_of(std::uintptr_t in, std::uintptr_t out, std::int64_t n) {
  nb::gil_scoped_release released;
  kernels().exp(reinterpret_cast<const float*>(in), reinterpret_cast<float*>(out), n);
}

}  // namespace
}  // namespace gateup

NB_MODULE(_native, m) {
  using namespace gateup;
  m.doc() = "CPU kernels of gateup; call them through gateup.ops.native.";
  m.attr("INTERFACE") = kInterface;
  m.def("forward", &forward, "h = act(gate) * up");
  m.def("backward", &backward, "d_gate, d_up and, unless its address is 0, h");
  m.def("exp", &exp_of, "e^x for float32 x <= 0");
  m.def("isa", [] { return std::string(isa_name(current_isa())); }, "The instruction set in use");
  m.def("isas", &isas, "The instruction sets this processor and build have, the widest first");
  m.def("use_isa", &use_isa, "Use one of isas()");
  m.def("use_openmp", &use_openmp, "Run on the team behind this GOMP_parallel; 0: plain threads");
  m.def("team", [] { return std::string(team()); }, "What runs the threads");
  bind_decoder(m);
  bind_dense(m);
  bind_matrix(m);
  bind_peaks(m);
}
