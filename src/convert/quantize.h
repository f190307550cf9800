#pragma once
// Float tensors to MX blocks: any safetensors file, or the experts of a gpt-oss checkpoint that was saved unquantised.

#include "base/mx.h"
#include "base/thread_pool.h"
#include "checkpoint/safetensors.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace nibble::convert {

struct QuantizeOptions {
  MxFormat format = MxFormat::kMxfp4;
  MxScaleRule scale = MxScaleRule::kOcpFloor;
  std::string name_glob;       // files: only tensors whose name matches (* and ?); empty: all that can be
  ThreadPool* pool = nullptr;  // null: the caller alone
};

// One tensor that was quantised: BF16, F16 or F32 in, <name>_blocks [..., k/32, bytes per block] and <name>_scales
// [..., k/32] out, both U8.
struct QuantizedTensor {
  std::string name;
  Shape shape;  // as it was
  int64_t bytes_before = 0, bytes_after = 0;
  MxError error;
};

using OnQuantized = std::function<void(const QuantizedTensor&)>;

// Every float tensor of rank 2 or more whose last dimension is a multiple of 32 is quantised along it; the others are
// copied. Throws Error(kInvalidRequest) when no tensor qualifies, and what reading and writing throw.
void quantize_file(const std::filesystem::path& input, const std::filesystem::path& output,
                   const QuantizeOptions& options, const OnQuantized& on_tensor);

// A Hugging Face gpt-oss directory whose experts are float (gate_up_proj [experts, hidden, 2 * inter], down_proj
// [experts, inter, hidden]) becomes one as OpenAI ships it: experts transposed to output rows and in MXFP4, everything
// else and all other files copied, quantization_config added. `output` must be absent or empty. Throws
// Error(kInvalidRequest) for another format than MXFP4 or experts that are quantised already.
void quantize_checkpoint(const std::filesystem::path& input, const std::filesystem::path& output,
                         const QuantizeOptions& options, const OnQuantized& on_tensor);

}  // namespace nibble::convert
