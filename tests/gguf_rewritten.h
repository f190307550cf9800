#pragma once
// A GGUF file's tensors with some matrices in another of llama.cpp's types.

#include "backend/sliced_weight.h"
#include "base/dtype.h"
#include "base/ggml_blocks.h"
#include "checkpoint/gguf_checkpoint.h"
#include "ggml_encode.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace nibble::test {

// The experts' matrices, or all others. Rows that are no whole blocks become Q8_0, as llama.cpp's quantiser does.
class Rewritten {
 public:
  Rewritten(const checkpoint::GgufCheckpoint& file, DType type, bool experts) : tensors(file.tensors()) {
    for (checkpoint::TensorEntry& entry : tensors) {
      RawTensor& tensor = entry.tensor;
      const bool expert = entry.name.find("_exps.weight") != std::string::npos;
      const bool matrix = entry.name.find("attn_") != std::string::npos || entry.name.find("token_embd") == 0 ||
                          entry.name == "output.weight";
      if (tensor.shape.size() < 2 || !(experts ? expert : matrix && !expert)) continue;
      const auto count = static_cast<size_t>(tensor.bytes.size() / static_cast<size_t>(bytes_of(tensor.dtype)) *
                                             static_cast<size_t>(info_of(tensor.dtype).values));
      std::vector<float> values(count);
      backend::read_rows({tensor, tensor.shape[tensor.shape.size() - 2], tensor.shape.back()}, 0, values);
      tensor.dtype = tensor.shape.back() % info_of(type).values == 0 ? type : DType::kGgmlQ8;
      std::vector<std::byte>& bytes = bytes_.emplace_back();
      if (tensor.dtype == DType::kGgmlQ8) {
        bytes.resize(values.size() / 32 * 34);
        quantize_ggml_q8(values, bytes);
      } else if (backend::is_float(type)) {
        for (const float value : values) {
          const uint32_t bits = type == DType::kF32   ? std::bit_cast<uint32_t>(value)
                                : type == DType::kF16 ? F16::from_float(value).bits
                                                      : Bf16::from_float(value).bits;
          for (int64_t b = 0; b < bytes_of(type); ++b) bytes.push_back(static_cast<std::byte>(bits >> (8 * b)));
        }
      } else {
        bytes = ggml_encode(type, values);
      }
      tensor.bytes = bytes;
    }
  }
  std::vector<checkpoint::TensorEntry> tensors;

 private:
  std::deque<std::vector<std::byte>> bytes_;
};

}  // namespace nibble::test
