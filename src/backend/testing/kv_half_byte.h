#pragma once
// A type of keys and values that no backend has, for tests: MXFP4 rows, half a byte a value and a scale per 32 of them.

#include "backend/kv_dtype.h"
#include "base/mx.h"

#include <cstdint>
#include <span>
#include <vector>

namespace nibble::backend {

inline constexpr KvType kHalfByte = {static_cast<KvDtype>(kKvDtypes), "half", "half", 4, 1, kMxBlock, true, {}};

inline E8m0 half_byte_scale(float most) { return mx_scale_for(most, MxFormat::kMxfp4, MxScaleRule::kCeil); }
inline uint8_t half_byte_code(float x, E8m0 scale) {
  return scale.bits == E8m0::kNan ? uint8_t{0} : mx_encode_element(MxFormat::kMxfp4, x * mx_inverse_scale(scale));
}
inline float half_byte_value(uint8_t code, E8m0 scale) { return mx_decode(MxFormat::kMxfp4, code, scale); }

// A row by mx_quantize, which shares no line with the above.
inline void encode_half_bytes(std::span<const float> row, uint8_t* codes, uint8_t* scales) {
  mx_quantize(row, MxScaleRule::kCeil, {MxFormat::kMxfp4, {codes, row.size() / 2}, {scales, row.size() / kMxBlock}});
}
inline void round_half_bytes(std::span<float> row) {
  std::vector<uint8_t> codes(row.size() / 2), scales(row.size() / kMxBlock);
  encode_half_bytes(row, codes.data(), scales.data());
  mx_dequantize({MxFormat::kMxfp4, codes, scales}, row);
}

}  // namespace nibble::backend
