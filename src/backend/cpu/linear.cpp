#include "backend/cpu/linear.h"

#include "base/dtype.h"
#include "base/mx.h"

namespace nibble::backend::cpu {

void Matrix::decode_row(int64_t row, float* out) const {
  const std::byte* values = weight_.values.bytes.data();
  if (weight_.scales.bytes.empty()) {
    decode_bf16(reinterpret_cast<const Bf16*>(values) + row * cols_, cols_, out);
    return;
  }
  const int64_t first_block = row * cols_ / kMxBlock;
  decode_mxfp4(reinterpret_cast<const uint8_t*>(values) + first_block * mx_block_bytes(MxFormat::kMxfp4),
               reinterpret_cast<const uint8_t*>(weight_.scales.bytes.data()) + first_block, cols_, out);
}

}  // namespace nibble::backend::cpu
