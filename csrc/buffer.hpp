// Memory that is kept from call to call, aligned for any vector.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace gateup {

class Buffer {
 public:
  // At least n floats; what was there before is lost when it grows. Throws std::bad_alloc.
  float* floats(std::int64_t n) {
    if (n > size_) {
      memory_.reset();
      size_ = 0;
      const std::size_t bytes = (static_cast<std::size_t>(n) * sizeof(float) + 63) / 64 * 64;
      memory_.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
      if (!memory_) throw std::bad_alloc();
      size_ = n;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  std::unique_ptr<float, Free> memory_;
  std::int64_t size_ = 0;
};

}  // namespace gateup
