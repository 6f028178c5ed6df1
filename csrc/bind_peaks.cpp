// The binding of peaks.hpp: operations or bytes a second, on as many threads as asked.
#include "bind_peaks.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "isa.hpp"
#include "parallel.hpp"
#include "peaks.hpp"

namespace nb = nanobind;

namespace gateup {
namespace {

const PeakKernels& kernels() {
  switch (current_isa()) {
#ifdef GATEUP_HAVE_AMX
    case Isa::kAmx:
      return amx::peak_kernels();
#endif
#ifdef GATEUP_HAVE_AVX512
    case Isa::kAvx512Bf16:
      return avx512bf16::peak_kernels();
    case Isa::kAvx512Vnni:
      return avx512vnni::peak_kernels();
#endif
#ifdef GATEUP_HAVE_AVX2
    case Isa::kAvx2:
      return avx2::peak_kernels();
#endif
    default:
      return generic::peak_kernels();
  }
}

struct Job {
  std::int64_t (*compute)(std::int64_t);
  std::int64_t rounds;
  std::int64_t (*read)(const std::uint8_t*, std::int64_t);
  const std::uint8_t* data;
  std::int64_t nbytes;  // of one part
};

void run(void* context, std::int64_t begin, std::int64_t end) {
  const Job& job = *static_cast<const Job*>(context);
  for (std::int64_t part = begin; part < end; ++part) {
    if (job.compute != nullptr) {
      job.compute(job.rounds);
    } else {
      job.read(job.data + part * job.nbytes, job.nbytes);
    }
  }
}

double seconds_of(const Job& job, int threads) {
  const auto start = std::chrono::steady_clock::now();
  parallel_for(threads, threads, run, const_cast<Job*>(&job));
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Operations a second of "fp32", "bf16" or "int8" over about `seconds`; 0 without instructions.
double peak(const std::string& kind, double seconds, int threads) {
  const PeakKernels& k = kernels();
  Job job{};
  if (kind == "fp32") {
    job.compute = k.fp32;
  } else if (kind == "bf16") {
    job.compute = k.bf16;
  } else if (kind == "int8") {
    job.compute = k.int8;
  } else {
    throw std::invalid_argument("no such peak: " + kind);
  }
  if (threads < 1 || !(seconds > 0)) throw std::invalid_argument("threads or seconds below 1");
  if (job.compute == nullptr) return 0;
  nb::gil_scoped_release released;
  job.rounds = 1000;
  double took = seconds_of(job, threads);
  while (took < seconds / 4 && job.rounds < (std::int64_t{1} << 40)) {
    job.rounds *= 4;
    took = seconds_of(job, threads);
  }
  // Never fewer than were timed: a thread that was put aside makes them look slow.
  if (took < seconds) {
    job.rounds = static_cast<std::int64_t>(static_cast<double>(job.rounds) * seconds / took);
  }
  took = seconds_of(job, threads);
  const double operations = static_cast<double>(job.compute(1)) * static_cast<double>(job.rounds);
  return operations * threads / took;
}

// Bytes a second read from [address, address + nbytes), once through.
double read_rate(std::uintptr_t address, std::int64_t nbytes, int threads) {
  constexpr std::int64_t kPage = 4096;
  if (threads < 1 || nbytes < threads * kPage) throw std::invalid_argument("too little to read");
  Job job{};
  job.read = kernels().read;
  job.data = reinterpret_cast<const std::uint8_t*>(address);
  job.nbytes = nbytes / threads / kPage * kPage;
  nb::gil_scoped_release released;
  const double took = seconds_of(job, threads);
  return static_cast<double>(job.nbytes) * threads / took;
}

}  // namespace

void bind_peaks(nb::module_& m) {
  m.def("peak", &peak, "Operations a second of fp32, bf16 or int8 multiply-adds");
  m.def("read_rate", &read_rate, "Bytes a second read from memory");
}

}  // namespace gateup
